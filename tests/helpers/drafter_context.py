"""What drafters are built from, around a target that a test has made."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from paceline.core.target import Head, RuntimeOptions, Target
from paceline.drafters.base import DrafterContext
from paceline.drafters.resources import Loaded, Resources

SAME: Any = SimpleNamespace(agrees=lambda other: True)
"""A tokenizer like all others."""


def loaded(target: Any, model: str = "", source: Any = None, tokenizer: Any = SAME) -> Loaded:
    """A target by itself, or its capabilities, with a fingerprint or a whole source."""
    target = target if hasattr(target, "capabilities") else SimpleNamespace(capabilities=target)
    config = getattr(target, "config", SimpleNamespace(eos_token_ids=(), token_to_come=None))
    source = source or SimpleNamespace(fingerprint=model, config=config)
    return Loaded(source, tokenizer, target, RuntimeOptions())


class Given(Resources):
    """Those that a test has made; the draft model is called for when a drafter asks."""

    coarse: Target | None = None

    def coarser(self, drafter: str, head: Head | None = None) -> Loaded:
        return super().coarser(drafter, head) if self.coarse is None else loaded(self.coarse)


def context(
    target: Any,
    draft: Callable[[], Any] | None = None,
    *,
    model: str = "",
    source: Any = None,
    tokenizers: tuple[Any, Any] = (SAME, SAME),
    coarse: Target | None = None,
    learner: Any = None,
    **facts: Any,
) -> DrafterContext:
    """For a target, or its capabilities; `facts` are of the verifier, and options."""

    def load(*_: Any, **__: Any) -> Loaded:
        assert draft is not None
        return loaded(draft(), tokenizer=tokenizers[1])

    whole = loaded(target, model, source, tokenizers[0])
    resources = Given(whole, None if draft is None else "draft", load, learner)
    resources.coarse = coarse
    return DrafterContext(resources, **facts)

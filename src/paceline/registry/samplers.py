"""Samplers and cache plans of canvases by name: `wrapper>rule:key=value`."""

from __future__ import annotations

import inspect
from typing import Any

from paceline.core.expressions import Expression, parse
from paceline.core.options import arguments
from paceline.core.types import Attention, CanvasParams, CanvasTraits
from paceline.denoising.caches import CachePlan
from paceline.denoising.process import Sampler
from paceline.denoising.unmasking import Rule
from paceline.errors import InvalidOption
from paceline.registry import table as registry

# By attention, without a name: the model's own distribution, a place at a time, or faster with the
# same distribution.
DEFAULT_SAMPLERS: dict[Attention, str] = {
    "full": "counts",
    "block": "counts",
    "order": "assd",
    "causal": "linear-spec",
}


def make_sampler(text: str, files: bool = True) -> Sampler:
    """Build a sampler; InvalidOption names the part that is wrong.

    Without `files` options that name a file are refused, too.
    """
    made: Any = None
    names: set[str] = set()
    for method in reversed(parse(text, "sampler").methods()):
        factory, options = _found("sampler", method, files)
        wraps = "inner" in inspect.signature(factory).parameters
        if wraps and made is None:
            raise InvalidOption(
                f"sampler '{factory.name}' wraps another: write {factory.name}>counts"
            )
        if made is not None and not (wraps and isinstance(made, Rule)):
            other = made.name if wraps else factory.name
            raise InvalidOption(f"sampler '{other}' does not go into {text!r}: leave it out")
        if factory.name in names:
            raise InvalidOption(f"sampler '{factory.name}' stands twice: leave one out")
        names.add(factory.name)
        made = factory(made, **options) if wraps else factory(**options)
    sampler: Sampler = made
    return sampler


def make_plan(text: str) -> CachePlan:
    """Build a cache plan; InvalidOption names the part that is wrong."""
    factory, options = _found("cache", parse(text, "cache"), True)
    plan: CachePlan = factory(**options)
    return plan


def _found(kind: registry.Kind, method: Expression, files: bool) -> tuple[Any, dict[str, Any]]:
    factory = registry.find(kind, method.name).load()
    return factory, arguments(factory, kind, method.options, "inner", files=files)


def make_parts(options: CanvasParams, facts: CanvasTraits) -> tuple[Sampler, CachePlan]:
    """Build what the options of a request name; InvalidOption if there is none.

    Without a name: the default of the attention, and the exact cache if the model has any.
    """
    plan = options.cache or ("none" if facts.attention == "full" else "exact")
    return make_sampler(options.sampler or DEFAULT_SAMPLERS[facts.attention]), make_plan(plan)

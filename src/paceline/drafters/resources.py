"""A loaded model, and what drafters may load beside it: a draft model, the target at int8."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.core.processor import cores
from paceline.core.target import Head, RuntimeOptions, Target
from paceline.core.types import Capabilities
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.source import ModelSource
from paceline.models.text import Tokenizer
from paceline.models.vision import PictureReader
from paceline.networks.published import Published, published_head
from paceline.policy.cost import CAREFUL, COST_FORMAT, QUICK, CostModel, load_or_measure
from paceline.version import __version__


@dataclass(frozen=True)
class Loaded:
    """A model on a runtime. Several engines may share it."""

    source: ModelSource
    tokenizer: Tokenizer
    target: Target
    options: RuntimeOptions
    reader: PictureReader | None = None

    @property
    def place(self) -> dict[str, object]:
        """Key of measured costs and tuned choices: model, runtime settings and machine.

        The longest context is left out: it changes neither.
        """
        capabilities = self.target.capabilities
        kv = capabilities.kv_precision
        return {
            **({} if kv in (None, "fp32") else {"kv": kv}),
            "model": self.source.fingerprint,
            "runtime": capabilities.runtime,
            "device": capabilities.device,
            "precision": capabilities.precision,
            "machine": f"{platform.machine()}-{_processor()}-{os.cpu_count()}-"
            f"{min(self.options.threads or cores(), cores())}",
        }

    @cached_property
    def costs(self) -> CostModel:
        """Forward cost c(n) on this machine: kept from earlier runs, else measured in a second or
        two and learned while decoding.
        """
        return self._costs(QUICK)

    @cached_property
    def measured_costs(self) -> CostModel:
        """The same for reports, measured with care; what is loaded after it starts from it."""
        self.__dict__["costs"] = costs = self._costs(CAREFUL)
        return costs

    def _costs(self, within: float) -> CostModel:
        key = {"version": f"{__version__}.{COST_FORMAT}", **self.place}
        return load_or_measure(self.target, key, within)


@dataclass(eq=False)
class Resources:
    """A loaded target, and what a drafter may ask for beside it.

    Attributes:
        loaded: the target, its files, and its forward costs, which are measured on first use.
        named: the draft model, by name, if there is one.
        load: loads it, as `paceline.registry.loading.load_draft`; None where what drafts does so
            for a draft model.
        learner: imports the trainer of drafters that learn while serving, made from weights, the
            target's source and a learning rate; None if there is none.
        drafted: whether a drafter has asked for a draft model.
    """

    loaded: Loaded
    named: str | None = None
    load: Callable[..., Loaded] | None = None
    learner: Callable[[], Callable[..., Any]] | None = None
    drafted: bool = False

    @cached_property
    def published(self) -> Published | None:
        """The published head that is named in place of a draft model, opened."""
        return None if self.named is None else published_head(self.named)

    def draft_model(
        self,
        drafter: str,
        *,
        default: str | None = None,
        translated: bool = False,
        head: Head | None = None,
    ) -> Loaded:
        """Load the draft model, or else a default, for a drafter by name.

        `translated` allows it another vocabulary than the target's, and `head` says which tokens
        it may draft (`paceline.core.target.Runtime.changes`).

        Raises:
            InvalidOption: none was named, or its vocabulary is not the target's.
            RuntimeUnavailable: its runtime cannot leave out tokens.
        """
        named = self.named or default
        if named is None or self.load is None:
            fix = "name one with --draft-model" if self.load else "use a drafter without one"
            raise InvalidOption(f"drafter '{drafter}' needs a draft model: {fix}")
        if self.named is not None and self.published is not None:
            raise InvalidOption(
                f"{named} is a published head and no model, and drafter '{drafter}' needs a model: "
                f"use --drafter {self.published.wiring.drafter}"
            )
        self.drafted = True
        return self.load(self.loaded, named, translated=translated, head=head)

    def coarser(self, drafter: str, head: Head | None = None) -> Loaded:
        """Load the target at int8; raise RuntimeUnavailable if that is no coarser."""
        if not has_coarser(self.loaded.target.capabilities):
            raise RuntimeUnavailable(
                f"drafter '{drafter}' drafts at int8 for a model at fp32: use it with --runtime "
                "cpu --precision fp32, or choose another drafter"
            )
        options = replace(self.loaded.options, precision="int8", kv_precision=None)
        runtime: Any = type(self.loaded.target)
        target = runtime.load(self.loaded.source, options, head=head)
        return replace(self.loaded, target=target, options=options)


def has_coarser(capabilities: Capabilities) -> bool:
    """Return whether a target can be loaded at a coarser precision that drafts for it."""
    return capabilities.runtime == "cpu" and capabilities.precision == "fp32"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return hashlib.sha256(name.encode()).hexdigest()[:8]

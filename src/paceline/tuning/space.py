"""What is tried: drafters alone and combined, and ways to set the size of their drafts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from paceline.drafting import DEFAULT_DRAFTER, has_coarser
from paceline.networks.shipped import shipped_cards
from paceline.tuned import Configuration

if TYPE_CHECKING:
    from paceline.loading import Loaded

PLAIN = Configuration("none")
"""What every candidate is measured against, and what is kept if none of them is faster."""

_MODEL_FREE: tuple[str, ...] = (
    "suffix-decoding+recycling",
    "recycling",
    "suffix-automaton",
    "suffix-decoding",
    "prompt-lookup+recycling",
    "suffix-automaton+recycling",
    "prompt-lookup",
    "aded",
    "suffix-decoding+aded",
    "cacheback",
    "prompt-lookup+cacheback",
    "suffix-decoding+recycling+cacheback",
    "suffix-decoding+recycling+aded",
)
"""Those first that are worth most where time is short."""

_TRAINED: Mapping[str, tuple[str, ...]] = {
    "eagle3": (
        "suffix-automaton>eagle3",
        "suffix-automaton>eagle3:growth=expand-rerank-2",
        "eagle3:growth=expand-rerank-4",
    ),
    "hydra": (
        "suffix-automaton>hydra",
        "prompt-lookup>hydra",
        "hydra",
        "suffix-automaton>hydra:growth=expand-rerank-2",
        "hydra:growth=expand-rerank-4",
    ),
    "block-parallel": ("suffix-automaton>block-parallel",),
    "draft-lm": ("suffix-automaton>draft-lm",),
}
"""By network: what to try with its weights. In front of a small model a network pays best behind a
drafter that costs nothing."""

_COARSER = ("suffix-automaton>quantised", "quantised")
"""For models at fp32."""

_SIZES: tuple[tuple[str, int | None, int | None], ...] = (
    ("cost-model", None, None),
    ("cost-model", 7, 7),
    ("cost-model", 11, 8),
    ("cost-model", 15, 8),
    ("cost-model", 31, 12),
    # With the root, fixed drafts fill the rows of the passes that the CPU runtime has compiled.
    ("fixed", 3, 3),
    ("fixed", 7, 4),
    ("fixed", 7, 7),
    ("fixed", 11, 6),
    ("fixed", 15, 8),
)

SIZINGS: Mapping[str, tuple[str, int | None, int | None]] = {
    controller if nodes is None else f"{controller} {nodes}x{depth}": (controller, nodes, depth)
    for controller, nodes, depth in _SIZES
}
"""Controller, nodes and depth, by name."""

FIRST_SIZING = next(iter(SIZINGS))
"""What all drafters are tried with before their sizes are varied."""


def configuration(drafter: str, sizing: str) -> Configuration:
    """A point of the space."""
    return Configuration(drafter, *SIZINGS[sizing])


DEFAULT = configuration(DEFAULT_DRAFTER, FIRST_SIZING)
"""What drafter "auto" is where nothing was tuned."""


class Space:
    """All drafters with all sizings.

    Attributes:
        drafters: those first that are worth most where time is short, the default before all.
        weights: by network that has weights for the model, what tells them from others.
    """

    def __init__(
        self, trained: Mapping[str, object] = MappingProxyType({}), coarser: bool = False
    ) -> None:
        """Take the drafters that need no weights, and those of networks that have some.

        Args:
            trained: by network, what tells its weights from others.
            coarser: whether the target's own weights can draft at int8.
        """
        self.weights = {name: trained[name] for name in _TRAINED if name in trained}
        with_weights = [_TRAINED[name] for name in self.weights]
        best = [names[0] for names in with_weights]
        others = [name for names in with_weights for name in names[1:]]
        first, later = _MODEL_FREE[:7], _MODEL_FREE[7:]
        order = (DEFAULT_DRAFTER, *(_COARSER if coarser else ()), *best, *first, *others, *later)
        self.drafters: tuple[str, ...] = tuple(dict.fromkeys(order))

    @classmethod
    def of(cls, loaded: Loaded) -> Space:
        """What there is to try with a loaded model."""
        target = loaded.target
        coarser = has_coarser(target.capabilities)
        if getattr(target, "run_network", None) is None or not target.capabilities.feature_layers:
            return cls(coarser=coarser)
        cards = shipped_cards()
        model = loaded.source.fingerprint
        mine = {card.kind: card for card in cards if card.metadata.get("model") == model}
        return cls(mine, coarser)

    @cached_property
    def everything(self) -> Mapping[str, Configuration]:
        """All points by name."""
        return {found.name: found for sizing in SIZINGS for found in self._with(sizing)}

    def first_untried(self, tried: Collection[str]) -> tuple[str, str] | None:
        """Drafter and sizing of the first point whose name is not among `tried`."""
        points = ((drafter, sizing) for sizing in SIZINGS for drafter in self.drafters)
        return next((p for p in points if configuration(*p).name not in tried), None)

    def _with(self, sizing: str) -> Iterable[Configuration]:
        return (configuration(drafter, sizing) for drafter in self.drafters)

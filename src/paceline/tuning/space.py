"""What is tried: drafters alone and merged, and ways to set the size of their drafts."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.loading import DEFAULT_DRAFTER
from paceline.tuned import Configuration

PLAIN = Configuration("none")
"""What every candidate is measured against, and what is kept if none of them is faster."""

DRAFTERS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            DEFAULT_DRAFTER,
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
    )
)
"""Those first that are worth most where time is short."""

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

EVERYTHING: Mapping[str, Configuration] = {
    found.name: found
    for sizing in SIZINGS
    for found in (configuration(drafter, sizing) for drafter in DRAFTERS)
}
"""All points by name."""

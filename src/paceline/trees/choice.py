"""Choice of the tree expansion, by name or by the verifier. Sizes follow the name after a dash.

iid-2.1, branching-2.1, top-and-one-2.1, shared-noise-1    children per node, by level
paths-2                                                    chains
stochastic-beam-3                                          nodes per level
dynamic                                                    none
threshold-0.1                                              least path probability
expand-rerank-4 or -4.6-0.02                               beam, deepest level, floor
static-medusa, -recycling, -falcon or -NODES@FILE          published, or from rank counts
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paceline.core.types import SamplingScheme
from paceline.errors import InvalidOption
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import ExpandRerank, SharedNoise, Static
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam, TopAndOne
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.trees.shapes import FALCON, MEDUSA, TOKEN_RECYCLING, RankCounts, from_rank_accuracies
from paceline.verifiers.base import Shape

_SIZES = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})*")


def expansion_for(
    accepts: frozenset[SamplingScheme | None], shape: Shape, named: str = ""
) -> TreeExpansion:
    """Return the named expansion (see `named_expansion`), or the default if the name is empty.

    The default is shared Gumbel noise if deterministic drafts are accepted, else a sampled chain
    or tree by `shape`. Raises InvalidOption if the verifier is not exact for it.
    """
    if named:
        return _checked(named_expansion(named), accepts, shape)
    if None in accepts:
        return SharedNoise([1])
    trees: tuple[TreeExpansion, ...] = (Branching([2, 1]), TopAndOne([2, 1]), Paths(2))
    for growth in (Iid([1]),) if shape == "chain" else (*trees, Iid([1])):
        if growth.kind in accepts:
            return growth
    raise InvalidOption(f"a draft model cannot draw {_known(accepts)} drafts: use another drafter")


def named_expansion(text: str) -> TreeExpansion:
    """Parse a name like "branching-3.2.1". Raises InvalidOption if name or sizes are wrong."""
    for name, named in _GROWTHS.items():
        if text == name or text.startswith(name + "-"):
            sizes = text[len(name) + 1 :] or named.default
            try:
                return named.make(sizes)
            except ValueError as error:
                raise InvalidOption(
                    f"growth '{name}' is written {named.example} ({named.sizes}), not {text!r}"
                ) from error
    raise InvalidOption(f"unknown growth {text!r}: use {', '.join(_GROWTHS)}")


def _checked(
    growth: TreeExpansion, accepts: frozenset[SamplingScheme | None], shape: Shape
) -> TreeExpansion:
    if growth.kind not in accepts:
        raise InvalidOption(
            f"growth '{growth.name}' makes {growth.kind or 'deterministic'} drafts, and the "
            f"verifier takes {_known(accepts)} ones: use another growth or verifier"
        )
    if shape == "chain" and not growth.chain:
        raise InvalidOption(
            f"growth '{growth.name}' branches, and the verifier takes chains: use another "
            "verifier, or sizes of 1"
        )
    return growth


def _known(accepts: frozenset[SamplingScheme | None]) -> str:
    return ", ".join(sorted(kind or "deterministic" for kind in accepts))


class _Named(NamedTuple):
    # `make` raises ValueError on malformed sizes; `default` stands for sizes left out.

    make: Callable[[str], TreeExpansion]
    default: str
    example: str
    sizes: str


def _widths(text: str) -> list[int]:
    if not _SIZES.fullmatch(text):
        raise ValueError("not whole numbers with dots between them")
    return [int(each) for each in text.split(".")]


def _count(text: str) -> int:
    [count] = _widths(text)
    return count


def _dynamic(text: str) -> TreeExpansion:
    if text:
        raise ValueError("it has no sizes")
    return Dynamic()


def _expand_rerank(text: str) -> TreeExpansion:
    sizes, _, floor = text.partition("-")
    return ExpandRerank(*_beam(*_widths(sizes)), float(floor or 0))


def _beam(width: int, *levels: int) -> tuple[int, int | None]:
    if len(levels) > 1:
        raise ValueError("more than two sizes")
    return width, levels[0] if levels else None


def _static(text: str) -> TreeExpansion:
    published = {"medusa": MEDUSA, "recycling": TOKEN_RECYCLING, "falcon": FALCON}
    if text in published:
        return Static(published[text])
    nodes, _, file = text.partition("@")
    if not file:
        raise ValueError("neither a published shape nor a file")
    size, counts = _count(nodes), RankCounts.load(Path(file).expanduser())
    shape = from_rank_accuracies(counts.accuracies, size, len(counts.trials))
    if not shape:
        raise InvalidOption(f"{file} with {size} nodes makes an empty shape: measure longer")
    return Static(shape)


def _named(
    growth: type[TreeExpansion],
    make: Callable[[str], TreeExpansion],
    default: str,
    sizes: str,
    example: str = "",
) -> tuple[str, _Named]:
    name = growth.name
    return name, _Named(make, default, f"{name}-{example or default}".rstrip("-"), sizes)


_BY_LEVEL = "children per node, by level"

_GROWTHS = dict(
    (
        _named(Iid, lambda text: Iid(_widths(text)), "2.1", _BY_LEVEL),
        _named(Paths, lambda text: Paths(_count(text)), "2", "how many chains"),
        _named(Branching, lambda text: Branching(_widths(text)), "2.1", _BY_LEVEL),
        _named(TopAndOne, lambda text: TopAndOne(_widths(text)), "2.1", _BY_LEVEL),
        _named(SharedNoise, lambda text: SharedNoise(_widths(text)), "1", _BY_LEVEL),
        _named(StochasticBeam, lambda text: StochasticBeam(_count(text)), "3", "nodes per level"),
        _named(Dynamic, _dynamic, "", "it has no sizes"),
        _named(Threshold, lambda text: Threshold(float(text)), "0.1", "least estimate of a place"),
        _named(ExpandRerank, _expand_rerank, "4", "beam, deepest level, floor", "4.6-0.02"),
        _named(Static, _static, "medusa", "medusa, recycling, falcon or NODES@FILE"),
    )
)

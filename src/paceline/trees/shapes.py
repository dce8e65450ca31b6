"""Static draft trees from rank accuracies (Medusa, Cai et al. 2024, arXiv:2401.10774).

The path (0, 2) is the third-ranked child of the first-ranked child of the root. Acceptance
probabilities multiply along a path, so taking the most probable nodes greedily is optimal.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.cache import read_text, write_atomically
from paceline.core.types import ROOT, IntArray, ProbArray, TokenTree
from paceline.errors import InvalidOption
from paceline.trees.base import BestFirst

# Ranks from a child of the root down to a node; 0 is the drafter's first choice.
RankPath = tuple[int, ...]

# Rank path of every node, parents before children, without repeats.
StaticShape = tuple[RankPath, ...]


class ShapeArrays(NamedTuple):
    """A static tree as int64 arrays, one entry per node; top nodes have the parent `ROOT`."""

    parents: IntArray
    ranks: IntArray
    depths: IntArray


def layout(shape: StaticShape) -> ShapeArrays:
    """Convert to arrays. Raises ValueError if a path is empty, repeated, or before its parent."""
    places: dict[RankPath, int] = {(): ROOT}
    for node, path in enumerate(shape):
        if path in places or path[:-1] not in places:
            raise ValueError(f"rank path {path} is no new child of a path before it")
        places[path] = node
    return ShapeArrays(
        np.array([places[path[:-1]] for path in shape], dtype=np.int64),
        np.array([path[-1] for path in shape], dtype=np.int64),
        np.array([len(path) for path in shape], dtype=np.int64),
    )


def chances(shape: StaticShape, accuracies: ProbArray) -> ProbArray:
    """Return the acceptance probability of each node, float64 `[n]`."""
    rows = accuracies.tolist()

    def accuracy(depth: int, rank: int) -> float:
        inside = depth < len(rows) and rank < len(rows[depth])
        return float(rows[depth][rank]) if inside else 0.0

    products = [math.prod(itertools.starmap(accuracy, enumerate(path))) for path in shape]
    return np.array(products, dtype=np.float64)


def from_rank_accuracies(accuracies: ProbArray, nodes: int, depth: int) -> StaticShape:
    """Return the tree of most expected accepted tokens, best first; any prefix is optimal too.

    `accuracies` is float64 `[depth, rank]`: probability that the child of this rank is the
    target's token, given that its parent was accepted. Nodes of probability zero are left out.
    """
    levels = accuracies[: max(depth, 0)].tolist()
    queue: BestFirst[RankPath] = BestFirst()

    def expand(path: RankPath, reached: float) -> None:
        for rank, accuracy in enumerate(levels[len(path)] if len(path) < len(levels) else ()):
            if reached * accuracy > 0:
                queue.push(reached * accuracy, (*path, rank))

    expand((), 1.0)
    shape: list[RankPath] = []
    while queue and len(shape) < nodes:
        reached, path = queue.pop()
        shape.append(path)
        expand(path, reached)
    return tuple(shape)


def _shape(*digits: str) -> StaticShape:
    """Read a published static tree: paths of digits, a for rank 10 and so on."""
    return tuple(tuple(int(each, 36) for each in path) for line in digits for path in line.split())


# Token Recycling (Luo et al. 2024, arXiv:2408.08696): 80 nodes, 6 levels, 8 successors per token.
TOKEN_RECYCLING = _shape(
    "0 1 2 3 4 5 6 7",
    "00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70",
    "000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 "
    "100 101 110 200 300 400 500",
    "0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000",
    "00000 00001 00002 00010 00020 00100 01000 10000",
    "000000 000001 000100",
)

# `mc_sim_7b_63` of Medusa (Cai et al. 2024, arXiv:2401.10774; `medusa/model/medusa_choices.py`):
# 63 nodes, most probable first, 4 levels, 10 tokens per head.
MEDUSA = _shape(
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003",
    "40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021",
    "90 060 0001 16 070",
)

# `kmask2_4layer_tree` of Falcon (Gao et al. 2024, arXiv:2412.12639; `models/choices.py`): 75 nodes,
# 4 levels, two of them per pass, 20 tokens per slot.
FALCON = _shape(
    "0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j",
    "00 01 02 03 04 05 06 07 08 09 0a 10 11 12 13 20 21 22 23",
    "000 001 002 003 004 005 006 010 020 030 011 012 013 014 015 016 017 018 019 100 200",
    "0000 0001 0002 0003 0004 0005 0006 0007 0008 0009 0100 0200 0300 1000 2000",
)


def confident(draft: TokenTree, least: float) -> TokenTree:
    """Drop nodes with a score below `least`, and all below them; without scores, drop none.

    Raises ValueError if the draft was sampled: dropping a sampled token because of its own
    probability would bias the output (predictability).
    """
    if draft.sampling is not None:
        raise ValueError("a sampled draft cannot be pruned by confidence after it was drawn")
    if draft.scores is None:
        return draft
    keep = draft.scores >= least
    if keep.all():
        return draft
    for node, parent in enumerate(draft.parents.tolist()):
        keep[node] &= parent == ROOT or keep[parent]
    return trees.take(draft, np.flatnonzero(keep))


_FORMAT = "paceline-rank-counts-1"

_DOUBT = 2.0


class RankCounts:
    """Trials and hits of every rank, by depth.

    Attributes:
        drafter: name of the drafter measured.
        trials: int64 `[depth, rank]`, visits to a node at this depth (0: root) with such a child.
        hits: int64 `[depth, rank]`, visits where that child was the target's token.
    """

    def __init__(self, drafter: str, depth: int, ranks: int) -> None:
        self.drafter = drafter
        self.trials: IntArray = np.zeros((depth, ranks), dtype=np.int64)
        self.hits: IntArray = np.zeros((depth, ranks), dtype=np.int64)

    def add(self, depth: int, offered: int, rank: int | None) -> None:
        """Count one step: children offered at `depth` (0: the root), and the right rank or None."""
        if depth < len(self.trials):
            self.trials[depth, :offered] += 1
            if rank is not None and rank < self.hits.shape[1]:
                self.hits[depth, rank] += 1

    def observe(self, draft: TokenTree, committed: Sequence[int]) -> None:
        """Count a draft whose siblings are in rank order, as proposed, before pruning.

        `committed` are the tokens after its root, also of later steps.
        """
        below = trees.children(draft)
        node = ROOT
        for depth, token in enumerate(committed):
            offered = below.get(node, [])
            found = [rank for rank, child in enumerate(offered) if draft.tokens[child] == token]
            self.add(depth, len(offered), found[0] if found else None)
            if not found:
                return
            node = offered[found[0]]

    @property
    def accuracies(self) -> ProbArray:
        """float64 `[depth, rank]`, hits per trial; smoothed by two added misses."""
        return self.hits / (self.trials + _DOUBT)

    def save(self, path: Path) -> None:
        """Write a JSON file atomically. Raises InvalidOption if it cannot be written."""
        content = {
            "format": _FORMAT,
            "drafter": self.drafter,
            "trials": self.trials.tolist(),
            "hits": self.hits.tolist(),
        }
        try:
            write_atomically(path, json.dumps(content))
        except OSError as error:
            raise InvalidOption(
                f"cannot write {path} ({error.strerror or error}): give another file"
            ) from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises InvalidOption if unreadable or inconsistent."""
        try:
            content = json.loads(
                read_text(path, f"cannot read {path}", "give a file of rank counts")
            )
        except (ValueError, RecursionError) as error:
            raise _foreign(path, "it is not JSON") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise _foreign(path, f"its format is not {_FORMAT!r}")
        trials, hits = _counts(content.get("trials")), _counts(content.get("hits"))
        if not isinstance(content.get("drafter"), str) or trials is None or hits is None:
            raise _foreign(path, "it lacks a drafter's name or a table of counts")
        if trials.shape != hits.shape:
            raise _foreign(path, f"trials are {trials.shape} and hits {hits.shape}")
        if (np.diff(trials, axis=1) > 0).any() or (hits.sum(axis=1) > trials[:, 0]).any():
            raise _foreign(path, "a step would have had more hits, or higher ranks, than children")
        if (hits > trials).any():
            raise _foreign(path, "a rank has more hits than trials")
        counts = cls(content["drafter"], *trials.shape)
        counts.trials, counts.hits = trials, hits
        return counts


def _counts(table: Any) -> IntArray | None:
    try:
        counts = np.array(table)
    except ValueError:  # rows of unequal length
        return None
    good = counts.dtype == np.int64 and counts.ndim == 2 and counts.size and counts.min() >= 0
    return counts if good else None


def _foreign(path: Path, why: str) -> InvalidOption:
    return InvalidOption(f"{path} holds no rank counts, as {why}: measure again, or give another")

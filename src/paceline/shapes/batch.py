"""The best parts of all drafts of a batch together, by their number of nodes.

One forward verifies the whole batch, so drafts compete for its rows. What a part is worth is its
sum of scores less, at a rate of so many tokens per second, the tokens that could be had in the time
that its paths take. Given the rate, drafts are independent but for the number of nodes, and for the
price of branching at all, which one branch in the batch pays for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.shapes.frontier import Frontier
from paceline.types import IntArray, ProbArray


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be verified of one draft.

    Attributes:
        parents: int64 `[n]`, as in a `TokenTree`.
        scores: float64 `[n]`, probability that each node is accepted, at most its parent's.
        path_seconds: what every root-to-leaf path beyond the first costs.
    """

    parents: IntArray
    scores: ProbArray
    path_seconds: float = 0.0


class Priced(Protocol):
    """The best parts of a batch at some rate of tokens per second."""

    @property
    def worth(self) -> ProbArray:
        """float64, by largest number of nodes, the most that such parts are worth; never falling.
        Entry 0 is 0."""
        ...

    def nodes(self, most: int) -> tuple[IntArray, ...]:
        """Per draft, the nodes of the parts with that worth, ascending; fewer among equals."""
        ...


class Batch:
    """The drafts of a batch, ready to be priced at one rate after another."""

    def __init__(self, drafts: Sequence[Candidates], most: int, fork: float = 0.0) -> None:
        """Take up to `most` nodes in all.

        Args:
            drafts: one per sequence, at least one; they may be empty.
            most: largest number of nodes.
            fork: seconds that any branch costs, however many there are.
        """
        self._drafts = drafts
        self._most = most
        self._fork = fork
        free = not fork and not any(draft.path_seconds > 0 for draft in drafts)
        simple = free or all(map(_is_chain, drafts))
        self._heads = _Heads(drafts, most) if simple else None
        self._frontiers = () if simple else [Frontier(d.parents, d.scores) for d in drafts]

    def priced(self, rate: float) -> Priced:
        """The best parts where a second is worth `rate` tokens."""
        if self._heads is not None:
            return self._heads
        nets = [
            frontier.gains - rate * draft.path_seconds * np.arange(frontier.gains.shape[1])
            for draft, frontier in zip(self._drafts, self._frontiers, strict=True)
        ]
        branching = _Merged(self._frontiers, nets, self._most, -rate * self._fork)
        if not self._fork:
            return branching
        chains = [frontier.gains[:, :1] for frontier in self._frontiers]
        return _Better(_Merged(self._frontiers, chains, self._most), branching)


def _is_chain(draft: Candidates) -> bool:
    return np.array_equal(draft.parents, np.arange(-1, len(draft.parents) - 1))


class _Heads:
    """Where paths cost nothing, the best parts are heads of all nodes sorted by score."""

    def __init__(self, drafts: Sequence[Candidates], most: int) -> None:
        scores = np.concatenate([draft.scores for draft in drafts])
        self._order = np.argsort(-scores, kind="stable")[:most]  # parents before children
        self._ends = np.cumsum([0, *(len(draft.scores) for draft in drafts)])
        self.worth: ProbArray = np.concatenate([[0.0], np.cumsum(scores[self._order])])

    def nodes(self, most: int) -> tuple[IntArray, ...]:
        chosen = np.sort(self._order[:most])
        parts = np.split(chosen, np.searchsorted(chosen, self._ends[1:-1]))
        return tuple(part - end for part, end in zip(parts, self._ends.tolist(), strict=False))


class _Merged:
    """Frontiers, each brought to the number of paths that pays best, and added up."""

    def __init__(
        self,
        frontiers: Sequence[Frontier],
        nets: Sequence[ProbArray],
        most: int,
        fixed: float = 0.0,
    ) -> None:
        """Add up.

        Args:
            frontiers: one per draft.
            nets: float64 `[n + 1, m]`, what their parts are worth, by nodes and paths.
            most: largest number of nodes.
            fixed: added to the worth of all.
        """
        self._frontiers = frontiers
        self._extra = [net.argmax(axis=1) for net in nets]
        self._own = [net.max(axis=1) for net in nets]
        self._sums = [np.full(1, fixed)]  # what the first 0, 1, 2, ... drafts are worth together
        for own in self._own:
            self._sums.append(_add(self._sums[-1], own)[: most + 1])
        self.worth: ProbArray = np.maximum.accumulate(self._sums[-1])

    def nodes(self, most: int) -> tuple[IntArray, ...]:
        left = int(np.argmax(self._sums[-1][: most + 1]))
        out: list[IntArray] = []
        for index in range(len(self._own) - 1, -1, -1):
            before, own = self._sums[index], self._own[index]
            sizes = np.arange(max(0, left - len(before) + 1), min(left, len(own) - 1) + 1)
            size = int(sizes[np.argmax(before[left - sizes] + own[sizes])])
            out.append(self._frontiers[index].nodes(size, int(self._extra[index][size])))
            left -= size
        return tuple(reversed(out))


class _Better:
    """The better of two ways for every number of nodes."""

    def __init__(self, first: Priced, second: Priced) -> None:
        """Compare two ways with the first as good as the second where they are equal."""
        self._ways = first, second
        self.worth: ProbArray = np.maximum(first.worth, second.worth)

    def nodes(self, most: int) -> tuple[IntArray, ...]:
        return max(self._ways, key=lambda way: float(way.worth[: most + 1][-1])).nodes(most)


def _add(first: ProbArray, second: ProbArray) -> ProbArray:
    """The best sums of one entry of each, by the sum of their indices."""
    longer, shorter = (first, second) if len(first) > len(second) else (second, first)
    out: ProbArray = np.full(len(first) + len(second) - 1, -np.inf)
    for index, value in enumerate(shorter.tolist()):
        window = out[index : index + len(longer)]
        np.maximum(window, longer + value, out=window)
    return out

"""Number of nodes to verify: n maximises g(n) - rate * t(B + n), with g the expected committed
tokens, t the seconds, B the roots and `rate` the long-run tokens per second, or the step's own
if higher. Where a change of size costs extra, the last size is the state of an average-reward
Markov decision problem, solved by one step of relative value iteration per decoding step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.types import ROOT
from paceline.policy.cost import CostModel

# Factor by which a draft must beat plain decoding: costs are known no better than that.
MARGIN = 1.02

# Weight of one step in the values of sizes.
_PACE = 1 / 16

# Decay per step of the long-run rate.
_MEMORY = 0.98


class Sizing:
    """Choose the number of nodes to verify, step by step."""

    def __init__(self) -> None:
        self._roots = 0
        self._last = 0
        self._sizes: Sequence[int] = ()
        self._worth: list[float] = []
        self._committed = self._spent = 0.0
        self._earned = self._paid = 1.0  # of late, in steps of plain decoding
        # Seconds that the best number of the last nodes saves, in a steady run: what plain
        # decoding would need for the tokens that they gain, less their own time.
        self.saved = 0.0

    def choose(
        self,
        gains: Sequence[float],
        roots: int,
        costs: CostModel,
        beside: int = 0,
        making: float = 0.0,
    ) -> tuple[int, int]:
        """Return the number of ranked nodes to verify beside `roots` roots, and the size to pad to.

        A size may be kept through a step whose draft cannot fill it. Size 0: no padding, where size
        changes cost nothing.

        Args:
            gains: tokens of a step with 0, 1, ... of the ranked nodes (`batch_gains`).
            roots: sequences in the batch.
            costs: forward costs.
            beside: rows of prefill in the forward. With them a node must gain more than its own
                time would commit in a plain step, and no size is kept.
            making: seconds of this step that go into drafts.
        """
        most = len(gains) - 1
        counts, seconds = _forwards(costs, roots, roots, most)
        plain = seconds[0]
        speed_up = max(self._earned / self._paid, MARGIN)
        own = max([gains[n] / spent for n, spent in zip(counts, seconds, strict=True)])
        best, spent = _best(gains, max(speed_up * roots / plain, own), counts, seconds)
        earned = gains[best] / roots
        self.saved = max(earned * plain - spent, 0.0)
        if beside:
            both = _forwards(costs, roots + beside, 1, most)
            return _best(gains, MARGIN * roots / plain, *both)[0], 0
        if not costs.padded or not costs.switch:
            self._earned = _MEMORY * self._earned + earned
            self._paid = _MEMORY * self._paid + (spent + making) / plain
            return best, 0
        if roots != self._roots:
            self._restart(roots, costs)
        nodes = [min(max(size - roots, 0), most) for size in self._sizes]
        plain = self._sizes[0]
        seconds = [costs.time(s, roots) * (MARGIN if s > plain else 1.0) for s in self._sizes]
        rate, fee = self._rate, self._rate * costs.switch
        value = [
            gains[n] - rate * s + worth
            for n, s, worth in zip(nodes, seconds, self._worth, strict=True)
        ]
        after = [v - fee * (size != self._last) for v, size in zip(value, self._sizes, strict=True)]
        best = after.index(max(after))
        size = self._sizes[best]
        self._committed = _MEMORY * self._committed + gains[nodes[best]]
        self._spent = _MEMORY * self._spent + seconds[best] + costs.switch * (size != self._last)
        elsewhere = max(value) - fee
        worth = [
            old + _PACE * (max(v, elsewhere) - old)
            for old, v in zip(self._worth, value, strict=True)
        ]
        self._worth = [each - worth[0] for each in worth]
        return nodes[best], size

    def ran(self, size: int) -> bool:
        """Note the padded size of a forward; return whether it was that of the one before."""
        same = size == self._last
        self._last = size
        return same

    @property
    def _rate(self) -> float:
        return self._committed / self._spent

    def _restart(self, roots: int, costs: CostModel) -> None:
        self._roots = roots
        sizes = [size for size in costs.sizes if size >= costs.size(roots)]
        self._sizes = sizes or [costs.size(roots)]
        self._worth = [0.0] * len(self._sizes)
        # Plain decoding is the rate to beat, believed like a few steps.
        self._committed = 4.0 * roots
        self._spent = 4.0 * costs.time(roots, roots)


def _best(
    gains: Sequence[float], rate: float, counts: list[int], seconds: list[float]
) -> tuple[int, float]:
    # Most tokens beyond what the time is worth.
    left = [gains[n] - rate * spent for n, spent in zip(counts, seconds, strict=True)]
    best = left.index(max(left))
    return counts[best], seconds[best]


def _forwards(
    costs: CostModel, rows: int, sequences: int, most: int
) -> tuple[list[int], list[float]]:
    # With padding, only numbers that fill a size up: fewer take as long. Beyond the largest
    # size seconds are in proportion.
    if not costs.padded:
        return list(range(most + 1)), costs.span(rows, most, sequences)
    counts, seconds = [0], [costs.time(rows, sequences)]
    beyond = costs.sequence * (sequences - 1)
    for size, spent in zip(costs.sizes, costs.seconds, strict=True):
        nodes = min(size - rows, most)
        if nodes > counts[-1]:
            counts.append(nodes)
            seconds.append(spent + beyond)
    done = counts[-1]
    counts += range(done + 1, most + 1)
    seconds += costs.span(rows + done + 1, most - done - 1, sequences)
    return counts, seconds


# Pruning of side branches that gain less than they cost.

# By node, ascending, the tokens that it is worth; at most its parent's worth.
MarginalGain = dict[int, float]


class Priced(NamedTuple):
    """Draft with a price on its branches.

    Attributes:
        parents: as in a `TokenTree`.
        expected_accepted: per node, acceptance probability, at most its parent's.
        path: price of a path beyond the first, in tokens.
    """

    parents: list[int]
    expected_accepted: list[float]
    path: float


def worth_keeping(drafts: Sequence[Priced], fork: float) -> list[MarginalGain]:
    """Return, per draft, the remaining nodes and their worth; `fork` is the price of branching."""
    heads = [_heads(draft, bool(fork)) for draft in drafts]
    gain = sum(
        value - draft.path
        for draft, side in zip(drafts, heads, strict=True)
        for value in side.values()
        if value > draft.path
    )
    left = 1 - fork / gain if gain > fork else 0.0
    return [_worth(*each, left) for each in zip(drafts, heads, strict=True)]


def _heads(draft: Priced, forked: bool) -> dict[int, float]:
    # First nodes of side branches, and the tokens expected along each one's most likely path.
    if not (draft.path or forked) or draft.parents == list(range(ROOT, len(draft.parents) - 1)):
        return {}
    expected_accepted = list(draft.expected_accepted)
    best: dict[int, int] = {}
    for node in reversed(range(len(expected_accepted))):  # children before parents
        if node in best:
            expected_accepted[node] += expected_accepted[best[node]]
        runner_up = best.get(draft.parents[node])
        if runner_up is None or expected_accepted[node] >= expected_accepted[runner_up]:
            best[draft.parents[node]] = node
    firsts = set(best.values())
    return {node: value for node, value in enumerate(expected_accepted) if node not in firsts}


def _worth(draft: Priced, heads: dict[int, float], left: float) -> MarginalGain:
    # `left` is the share of a branch's gain beyond the price of the fork.
    if not heads:
        return dict(enumerate(draft.expected_accepted))
    worth: MarginalGain = {}
    share = {ROOT: 1.0}  # of its expected tokens that a node is worth: the same along a path
    for node, (parent, expected_accepted) in enumerate(
        zip(draft.parents, draft.expected_accepted, strict=True)
    ):
        if parent not in share:
            continue
        value = heads.get(node)
        if value is None:
            share[node] = share[parent]
        elif value > draft.path and left:
            share[node] = left * (value - draft.path) / value
        else:
            continue
        worth[node] = min(expected_accepted * share[node], worth.get(parent, 1.0))
    return worth

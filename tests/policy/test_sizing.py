"""The number of nodes to verify, step by step."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from paceline.core.types import ProbArray
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import Sizing

COSTS = CostModel((1, 4, 8, 16), [1.0, 1.2, 1.6, 2.4])


def powers(rate: float) -> ProbArray:
    """Candidates of a chain whose tokens are each accepted at `rate`."""
    return np.cumprod(np.full(15, rate))


GOOD, BAD = powers(0.9), powers(0.02)


def run(sizing: Sizing, steps: list[ProbArray], roots: int = 1) -> list[int]:
    """Rows of every step."""
    rows = []
    for ranked in steps:
        nodes = sizing.choose(list(accumulate(ranked, initial=float(roots))), roots, COSTS)
        assert 0 <= nodes <= len(ranked)
        rows.append(roots + nodes)
    return rows


def per_second(sizes: list[int], drafts: list[ProbArray]) -> float:
    """Tokens of one sequence per second."""
    tokens = sum(1 + float(draft[: n - 1].sum()) for n, draft in zip(sizes, drafts, strict=True))
    return tokens / sum(COSTS.time(size) for size in sizes)


def best(draft: ProbArray) -> int:
    return max(range(1, 17), key=lambda n: per_second([n], [draft]))


@pytest.mark.parametrize("ranked", [GOOD, BAD, powers(0.5)])
def test_drafts_of_one_quality_settle_on_the_best_size(ranked: ProbArray) -> None:
    [size] = set(run(Sizing(), [ranked] * 300)[200:])
    assert per_second([size], [ranked]) > 0.99 * per_second([best(ranked)], [ranked])


def test_sizes_follow_the_draft() -> None:
    sizes = run(Sizing(), [GOOD, BAD] * 10)
    assert min(sizes[::2]) > max(sizes[1::2]) == 1


def test_poor_drafts_must_beat_what_good_ones_bring() -> None:
    """A draft that is better than plain decoding, alone; not among drafts that are better still."""
    poor, sizing = powers(0.2), Sizing()
    assert run(sizing, [poor]) > [1]
    run(sizing, [GOOD] * 50)
    assert run(sizing, [poor]) == [1]
    run(sizing, [BAD] * 200)  # which are never verified
    assert run(sizing, [poor]) > [1]


def test_what_drafts_cost_counts_in_the_long_run() -> None:
    """Time that goes into making them is no time of good steps."""
    sizing = Sizing()
    for _ in range(50):
        sizing.choose(list(accumulate(GOOD, initial=1.0)), 1, COSTS, making=10.0)
    assert run(sizing, [powers(0.2)]) > [1]


def test_drafts_by_turns_bring_more_than_each_at_its_own_best() -> None:
    drafts = [GOOD, powers(0.4), powers(0.3)] * 60
    alone = per_second(list(map(best, drafts)), drafts)
    assert per_second(run(Sizing(), drafts), drafts) > 1.005 * alone


def test_no_candidates_no_nodes() -> None:
    sizing = Sizing()
    assert run(sizing, [np.zeros(0)] * 3) == [1, 1, 1]
    assert run(sizing, [np.zeros(0)], roots=40) == [40]

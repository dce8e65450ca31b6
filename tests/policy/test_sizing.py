"""The number of nodes to verify where a change of the forward's size costs extra."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest

from paceline.core.types import ProbArray
from paceline.policy.cost import CostModel
from paceline.policy.plugin_sizes import Sizing


def powers(rate: float) -> ProbArray:
    """Candidates of a chain whose tokens are each accepted at `rate`."""
    return np.cumprod(np.full(15, rate))


GOOD, BAD = powers(0.9), powers(0.02)


def costs(switch: float, padded: bool = True) -> CostModel:
    return CostModel((1, 4, 8, 16), [1.0, 1.2, 1.6, 2.4], switch, padded)


def run(sizing: Sizing, steps: list[ProbArray], model: CostModel, roots: int = 1) -> list[int]:
    """The padded size of every step."""
    sizes = []
    for ranked in steps:
        gains = list(accumulate(ranked, initial=float(roots)))
        nodes, size = sizing.choose(gains, roots, model)
        assert 0 <= nodes <= len(ranked)
        assert not size or roots + nodes <= size
        sizes.append(size or model.size(roots + nodes))
        sizing.ran(sizes[-1])
    return sizes


def rate(ranked: ProbArray, size: int) -> float:
    """Tokens per second of one sequence that never leaves a size."""
    return (1 + float(ranked[: size - 1].sum())) / costs(0).time(size)


def steady(ranked: ProbArray) -> int:
    """The size that commits most per second if it is never left."""
    return max(costs(0).sizes, key=lambda size: rate(ranked, size))


def changes(sizes: list[int]) -> int:
    return sum(a != b for a, b in pairwise(sizes))


@pytest.mark.parametrize("switch", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("ranked", [GOOD, BAD, powers(0.5)])
def test_drafts_of_one_quality_settle_on_a_good_size(switch: float, ranked: ProbArray) -> None:
    [size] = set(run(Sizing(), [ranked] * 300, costs(switch))[200:])
    assert rate(ranked, size) > 0.9 * rate(ranked, steady(ranked))


def test_sizes_follow_the_draft_while_changes_are_free() -> None:
    assert steady(GOOD) > steady(BAD)
    assert run(Sizing(), [GOOD, BAD] * 10, costs(0)) == [steady(GOOD), steady(BAD)] * 10


def test_poor_drafts_must_beat_what_good_ones_bring() -> None:
    """A draft that is better than plain decoding, alone; not among drafts that are better still."""
    poor, model = powers(0.2), costs(0, padded=False)
    sizing = Sizing()
    assert run(sizing, [poor], model) > [1]
    run(sizing, [GOOD] * 50, model)
    assert run(sizing, [poor], model) == [1]
    run(sizing, [BAD] * 200, model)  # which are never verified
    assert run(sizing, [poor], model) > [1]


def test_what_drafts_cost_counts_in_the_long_run() -> None:
    """Time that goes into making them is no time of good steps."""
    poor, model = powers(0.2), costs(0, padded=False)
    sizing = Sizing()
    for _ in range(50):
        gains = list(accumulate(GOOD, initial=1.0))
        sizing.choose(gains, 1, model, making=10.0)
    assert run(sizing, [poor], model) > [1]


def test_drafts_by_turns_bring_more_than_each_at_its_own_best() -> None:
    model = costs(0, padded=False)

    def per_second(sizes: list[int], drafts: list[ProbArray]) -> float:
        tokens = sum(
            1 + float(draft[: n - 1].sum()) for n, draft in zip(sizes, drafts, strict=True)
        )
        return tokens / sum(model.time(size) for size in sizes)

    def alone(draft: ProbArray) -> int:
        return max(range(1, 17), key=lambda n: per_second([n], [draft]))

    drafts = [GOOD, powers(0.4), powers(0.3)] * 60
    assert per_second(run(Sizing(), drafts, model), drafts) > 1.005 * per_second(
        list(map(alone, drafts)), drafts
    )


def test_sizes_stay_where_changes_are_dear() -> None:
    sizes = run(Sizing(), [GOOD, BAD] * 150, costs(5.0))
    assert changes(sizes[200:]) <= 2


def test_a_lasting_change_moves_the_size() -> None:
    for before, after in ((GOOD, BAD), (BAD, GOOD)):
        sizes = run(Sizing(), [before] * 200 + [after] * 300, costs(0.5))
        for size, ranked in ((sizes[199], before), (sizes[-1], after)):
            assert rate(ranked, size) > 0.9 * rate(ranked, steady(ranked))


def test_other_batches_have_other_sizes() -> None:
    sizing = Sizing()
    run(sizing, [GOOD] * 30, costs(0.5))
    both = np.sort(np.concatenate([BAD, BAD]))[::-1]
    for roots in (2, 5, 16, 40):
        sizes = run(sizing, [both] * 60, costs(0.5), roots)
        assert min(sizes) >= roots
    assert sizes[-1] == 40  # beyond every measured size nothing is drafted


def test_no_candidates_no_nodes() -> None:
    sizing = Sizing()
    assert run(sizing, [np.zeros(0)] * 3, costs(0.5)) == [1, 1, 1]
    assert sizing.choose([1.0], 1, costs(0.5, padded=False)) == (0, 0)


def test_a_size_is_kept_through_a_step_without_a_draft() -> None:
    sizing = Sizing()
    sizes = run(sizing, [GOOD] * 60, costs(5.0))
    assert run(sizing, [np.zeros(0)], costs(5.0)) == sizes[-1:]


def test_changes_of_size_are_reported() -> None:
    sizing = Sizing()
    assert [sizing.ran(size) for size in (4, 4, 8, 8, 4)] == [False, True, False, True, False]

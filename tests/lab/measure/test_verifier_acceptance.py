"""From rounds to rows: means, spread, and inequalities that are seen to fail."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pytest

from paceline.lab.measure import acceptance as verifier_acceptance
from paceline.lab.measure.acceptance import ChainFigures, Key
from paceline.policy.cost import CostModel

NODES: dict[Key, tuple[float, float]] = {
    ("rejection", "independent", 1): (0.5, 0.5),
    ("recursive", "independent", 2): (0.6, 0.7),
    ("recursive-distinct", "without replacement", 2): (0.65, 0.8),
    ("coupled", "shared noise", 2): (0.9, 0.8),  # an estimate may lie above the bound
}
CHAINS: dict[Key, float] = {("rejection", "one path", 1): 1.0, ("block", "one path", 1): 1.25}


def changed(nodes: dict[Key, tuple[float, float]], chains: dict[Key, float]) -> ChainFigures:
    return ChainFigures(NODES | nodes, CHAINS | chains)


def test_means_are_over_all_nodes_and_intervals_over_prompts() -> None:
    low = changed({("rejection", "independent", 1): (0.2, 0.6)}, {})
    prompts = [[ChainFigures(NODES, CHAINS)] * 3, [low], []]
    rows = {row["verifier"]: row for row in verifier_acceptance.rows(prompts)}
    row = rows["rejection"]
    assert row["acceptance"] == pytest.approx((3 * 0.5 + 0.2) / 4)
    assert row["bound"] == pytest.approx((3 * 0.5 + 0.6) / 4)
    assert row["gap"] == pytest.approx(0.1)
    assert (row["acceptance_low"], row["acceptance_high"]) == pytest.approx((0.2, 0.5))
    assert rows["recursive"]["share_of_bound"] == pytest.approx(0.6 / 0.7)
    costs = CostModel((1, 4), [1.0, 2.0]), CostModel((1, 4), [0.1, 0.1])
    chains = {row["verifier"]: row for row in verifier_acceptance.chain_rows(prompts, 3, *costs)}
    assert chains["block"]["accepted"] == pytest.approx(1.25)
    assert chains["block"]["nodes"] == 3
    assert chains["block"]["speed"] == pytest.approx(2.25 / (3 * 0.1 + 2.0))


def test_more_paths_pay_where_rows_are_cheap() -> None:
    """Two paths accept more; dear rows, or a dear draft model, speak for one."""
    pair = "multipath-block", "independent paths", 2
    prompts = [[changed({}, {pair: 1.5})]]
    for forward, draft, best in [(1.1, 0.1, 2), (3.0, 0.1, 1), (1.1, 2.0, 1)]:
        costs = CostModel((1, 7), [1.0, forward]), CostModel((1, 2), [0.1, draft])
        rows = verifier_acceptance.chain_rows(prompts, 3, *costs)
        assert max(rows, key=itemgetter("speed"))["paths"] == best


def test_a_bound_of_zero_has_no_share() -> None:
    none = ChainFigures(dict.fromkeys(NODES, (0.0, 0.0)), CHAINS)
    assert {row["share_of_bound"] for row in verifier_acceptance.rows([[none]])} == {None}


def test_inequalities_hold_where_they_should() -> None:
    entries = verifier_acceptance.orderings([[ChainFigures(NODES, CHAINS)] * 2])
    assert [entry["holds"] for entry in entries] == [True] * 4
    assert [entry["cases"] for entry in entries] == [6, 2, 2, 2]
    assert entries[1]["mean"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("place", "nodes", "chains"),
    [
        (0, {("rejection", "independent", 1): (0.51, 0.5)}, {}),
        (1, {}, {("block", "one path", 1): 0.99}),
        (2, {("recursive-distinct", "without replacement", 2): (0.59, 0.8)}, {}),
        (3, {("recursive-distinct", "without replacement", 2): (0.65, 0.69)}, {}),
    ],
)
def test_one_round_against_it_fails_an_inequality(
    place: int, nodes: dict[Key, tuple[float, float]], chains: dict[Key, float]
) -> None:
    entries = verifier_acceptance.orderings(
        [[ChainFigures(NODES, CHAINS)] * 9, [changed(nodes, chains)]]
    )
    assert [i for i, entry in enumerate(entries) if not entry["holds"]] == [place]


def test_an_interval_covers_its_mean() -> None:
    generator = np.random.default_rng(0)
    values = [generator.random(size) for size in (3, 8, 5, 1)]
    low, high = verifier_acceptance.interval(values)
    assert low < np.concatenate(values).mean() < high

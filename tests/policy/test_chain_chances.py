"""What a network says of its tokens, and how often they stand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.policy.acceptance import PlattScaling


def stands(said: float, slope: float, offset: float) -> float:
    odds = (said / (1 - said)) ** slope * np.exp(offset)
    return float(odds / (1 + odds))


def taught(slope: float, offset: float, chains: int) -> PlattScaling:
    """Chains of four tokens, of which one with chance p stands as often as a line says."""
    generator = np.random.default_rng(0)
    line = PlattScaling()
    for _ in range(chains):
        chances = generator.uniform(0.02, 0.98, 4).tolist()
        right = [generator.random() < stands(chance, slope, offset) for chance in chances]
        line.learn(chances, [1] * 4, [int(each) for each in right] + [1])
    return line


SAID = [0.1, 0.3, 0.5, 0.7, 0.9]


@pytest.mark.parametrize(("slope", "offset"), [(1.0, 0.6), (0.7, -1.0), (1.5, 0.0), (1.0, -0.8)])
def test_any_line_is_learned(slope: float, offset: float) -> None:
    true = [stands(said, slope, offset) for said in SAID]
    np.testing.assert_allclose(taught(slope, offset, 3000).acceptance(SAID), true, atol=0.06)


def test_a_line_follows_the_text() -> None:
    line = taught(1.0, 1.0, 2000)
    before = line.acceptance(SAID)
    generator = np.random.default_rng(1)
    for _ in range(2000):
        [chance] = generator.uniform(0.02, 0.98, 1).tolist()
        line.learn([chance], [1], [int(generator.random() < stands(chance, 1.0, -1.0))])
    true = [stands(said, 1.0, -1.0) for said in SAID]
    np.testing.assert_allclose(line.acceptance(SAID), true, atol=0.08)
    assert max(abs(np.array(before) - true)) > 0.3  # what it knew before was far off


def test_tokens_behind_one_that_fell_teach_nothing() -> None:
    chances = [0.4, 0.9, 0.9]
    whole, first = PlattScaling(), PlattScaling()
    whole.learn(chances, [1, 2, 3], [7, 2, 3])
    first.learn(chances[:1], [1], [7])
    assert whole.acceptance(SAID) == first.acceptance(SAID)
    unknown = PlattScaling()
    unknown.learn(chances, [1, 2, 3], [1])  # committed up to there
    known = PlattScaling()
    known.learn(chances[:1], [1], [1])
    assert unknown.acceptance(SAID) == known.acceptance(SAID)


def test_chances_stay_chances() -> None:
    line = PlattScaling()
    for _ in range(500):
        line.learn([0.0, 1.0], [1, 2], [1, 3])
    found = line.acceptance([0.0, 1e-30, 0.5, 1.0])
    assert all(0 < each < 1 for each in found)
    assert line.predicted(0.0) == 0.0


def test_a_limit_is_said_in_the_network_s_own_terms() -> None:
    """Chains end where they should stand with a chance, whatever the network says."""
    modest, boastful = taught(1.0, 1.0, 2000), taught(1.0, -1.0, 2000)
    assert modest.predicted(0.2) < 0.2 < boastful.predicted(0.2)
    for line in (modest, boastful):
        assert 0 < line.predicted(0.1) < line.predicted(0.3) < 1

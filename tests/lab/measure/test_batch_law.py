"""The law over batch size: coefficients are found again, and it is not extended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.lab.measure.batch_law import BatchLaw, laws

BATCHES = (1, 2, 4, 8, 16)
SETTINGS = {"model": "m", "limit": 4, "max_new_tokens": 8, "drafters": ["none", "fast"]}


def bench(batch: int, speedup: float, rate: float = 100.0, **more: Any) -> dict[str, Any]:
    each = {"category": "all", "tokens_per_second": rate}
    rows = [
        {**each, "drafter": "none", "speedup": 1.0},
        {**each, "drafter": "fast", "speedup": speedup},
        {**each, "drafter": "fast", "category": "qa", "speedup": 9.0},
    ]
    return {"complete": True, "rows": rows, "settings": {**SETTINGS, **more, "batch": batch}}


def speedup(benches: list[dict[str, Any]]) -> BatchLaw:
    [law] = [law for law in laws(benches) if (law.drafter, law.value) == ("fast", "speedup")]
    return law


def noisy(slope: float, order: list[int], seed: int) -> BatchLaw:
    noise = np.random.default_rng(seed).normal(size=len(BATCHES)) * 0.02
    values = 1.5 + slope * np.arange(5.0)
    return speedup([bench(b, values[i] + noise[i]) for b, i in zip(BATCHES, order, strict=True)])


def test_known_coefficients_are_found() -> None:
    found = laws([bench(b, 1.5 - 0.2 * n, 50.0 + 30 * n) for n, b in enumerate(BATCHES)])
    assert [(law.drafter, law.value) for law in found] == [
        ("none", "tokens_per_second"),
        ("fast", "speedup"),
        ("fast", "tokens_per_second"),
    ]
    assert [law.fit.intercept for law in found] == pytest.approx([50, 1.5, 50])
    assert [law.doubling[0] for law in found] == pytest.approx([30, -0.2, 30])
    assert all(law.fit.explained == pytest.approx(1) for law in found)


def test_intervals_hold_the_slope_as_often_as_said() -> None:
    hits = 0
    for seed in range(100):
        _, low, high = noisy(-0.2, [0, 1, 2, 3, 4], seed).doubling
        hits += low <= -0.2 <= high < 0
    assert 80 <= hits <= 98  # of 100 at 90%


def test_confused_batches_and_values_linear_in_size_are_no_law() -> None:
    for seed in range(20):
        confused = noisy(-0.2, [2, 4, 1, 0, 3], seed)
        assert confused.doubling[1] < 0 < confused.doubling[2]
        assert confused.fit.explained < 0.5
    linear = speedup([bench(b, 1.5 - 0.05 * b) for b in BATCHES])
    assert linear.fit.explained < 0.9
    foretold = linear.fit.intercept + 2 * linear.doubling[0]
    assert abs(foretold - 1.3) > 0.05


def test_without_a_law_the_interval_holds_nought() -> None:
    inside = 0
    for seed in range(100):
        _, low, high = noisy(0.0, [0, 1, 2, 3, 4], seed).doubling
        inside += low <= 0 <= high
    assert 80 <= inside <= 98


def test_it_takes_repeats_and_three_sizes() -> None:
    law = speedup([bench(b, v) for b, v in ((1, 1.4), (1, 1.6), (2, 1.3), (4, 1.1))])
    assert law.at(1) == pytest.approx(1.5)
    with pytest.raises(InvalidOption, match="3 points of different size, not 2"):
        laws([bench(1, 1.0), bench(2, 1.0), bench(2, 1.1)])

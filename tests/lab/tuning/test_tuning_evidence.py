"""Pairs of runs: sums over repetitions, ratios within pairs, rows over chosen prompts."""

from __future__ import annotations

import pytest
from tests.lab.tuning.simulated import TOKENS, stats

from paceline.lab.measure.report import BASELINE
from paceline.lab.measure.run import Record, Run
from paceline.lab.tuning.space import Evidence


def record(prompt: int, plain: float, **seconds: float) -> Record:
    runs = {name: Run([], stats(each)) for name, each in seconds.items()}
    return Record(prompt, str(prompt), "any", {BASELINE: Run([], stats(plain)), **runs})


def test_speed_ups_are_ratios_of_sums_over_pairs() -> None:
    evidence = Evidence()
    evidence.add(record(0, 100, a=50, b=100))
    evidence.add(record(0, 300, a=250))  # a slow moment, for both alike
    evidence.add(record(1, 80, a=60))
    row = evidence.row("a")
    assert row is not None
    assert row["speedup"] == pytest.approx((100 + 300 + 80) / (50 + 250 + 60))
    assert row["prompts"] == 2
    assert row["forward_cost"] == pytest.approx(row["block_efficiency"] / row["speedup"])
    assert evidence.forwards("a", 0) == 2 * TOKENS
    assert evidence.forwards("b", 1) == 0
    only = evidence.row("a", [1])
    assert only is not None
    assert only["speedup"] == pytest.approx(80 / 60)
    assert evidence.row("b", [1]) is None
    assert evidence.row("c") is None


def test_what_is_kept_brings_it_back() -> None:
    kept: dict[str, object] = {}
    evidence = Evidence(keep=kept.__setitem__)
    for prompt in range(3):
        evidence.add(record(prompt, 100, a=50 + prompt, b=90))
        evidence.add(record(prompt, 100, a=60))
    again = Evidence(kept)
    assert again.row("a") == evidence.row("a")
    assert again.row("b") == evidence.row("b")


@pytest.mark.parametrize("kept", [{"x": {}}, {'["a", 0]': {}}, {'["a", 0]': {"runs": 3}}, {"3": 4}])
def test_what_is_no_evidence_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        Evidence(kept)


def test_one_lucky_prompt_does_not_outrank_many_good_ones() -> None:
    evidence = Evidence()
    evidence.add(record(0, 100, lucky=60, steady=66, slow=110))
    for prompt in range(1, 6):
        evidence.add(record(prompt, 100, steady=66, slow=110))
    assert evidence.ranked() == ["steady", "lucky", "slow"]
    assert Evidence().ranked() == []

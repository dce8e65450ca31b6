"""First finish: what becomes of known samples, and a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.first_finish import Sample, searched

from benchmarks import first_finish


def test_ways_to_use_samples() -> None:
    """Two short right ones, five long wrong ones that agree, and the shortest was cut."""
    right, wrong = Sample(3.0, 10, True), Sample(4.0, 50, True)
    found = searched([right, right, *[wrong] * 5, Sample(3.0, 5, False)], 3.0)
    assert found["one sample"] == pytest.approx((3 / 8, (20 + 250 + 5) / 8, (20 + 250 + 5) / 8))
    assert found["first of 8"] == pytest.approx((1.0, 7 * 10 + 5, 10))
    assert found["last of 8"][0] == 0
    assert found["majority of 8"] == pytest.approx((0.0, 275, 50))
    # Of two: both right, or one of them and anything: all pairs but those of the five and the cut.
    assert found["first of 2"][0] == pytest.approx((1 + 2 * 6) / 28)


def test_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(0)
    records = [
        {"right": 1.0, "samples": [[float(rng.integers(2)), 20 + i, True] for i in range(8)]}
        for _ in range(30)
    ]
    for _, share, interval, *_ in first_finish.table(records):
        low, high = (float(part.rstrip("%")) for part in interval.split(" to "))
        assert low <= float(share.rstrip("%")) <= high


def test_answers_to_other_problems_are_not_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}), encoding="utf-8")
    (tmp_path / "samples.jsonl").write_text('{"question": "2 + 2?"}\n', encoding="utf-8")
    asked = ["--problems", str(problems), "--out", str(tmp_path)]
    assert first_finish.main(asked) == 2
    assert "other problems" in capsys.readouterr().err
    assert first_finish.main(["--problems", "nowhere", "--out", str(tmp_path)]) == 2

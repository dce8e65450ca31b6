"""What ranks send is counted, and results of the order of keys are all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ring
from paceline.lab.measure import results


def test_rows_say_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ring, "SHAPES", {"Qwen2.5 1.5B": (6, 1, 16)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)
    assert ring.main(["--json", "--record", "made"]) == 0
    keys, ordered, queries, both = json.loads(capsys.readouterr().out)
    assert [keys["round"], keys["back"]] == [ordered["round"], ordered["back"]] == [128, 0]
    assert [queries["round"], queries["back"]] == [384, 408]
    assert queries["busiest, beside keys"] == round(408 / 128, 2)
    assert both["back"] > queries["back"]
    assert ordered["differs, ulps"] == both["differs, ulps"] == 0 < queries["differs, ulps"]
    found = json.loads((tmp_path / "docs/results/data/made.json").read_text())
    results.validate("made", found)
    assert found["figures"]

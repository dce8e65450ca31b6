"""Texts that lose tokens by a rule: what is kept, read and said."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.helpers.endless import CONFIG, WEIGHTS, WINDOW

from benchmarks import forgetting
from paceline.core.target import whole
from paceline.lab.measure import results

TOKENS = np.random.default_rng(5).integers(3, 300, 700).tolist()


def test_ways_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SimpleNamespace(
        name="tiny",
        config=CONFIG,
        weights=lambda: WEIGHTS,
        tokenizer=lambda: SimpleNamespace(encode=lambda text: TOKENS),
    )
    monkeypatch.setattr(forgetting, "resolve", lambda model: source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)
    options = ["--tokens", "700", "--windows", str(WINDOW), "--places", "2"]
    assert forgetting.main([*options, "--record", "made", "--json"]) == 0
    full, lightest, oldest = json.loads(capsys.readouterr().out)
    assert full["agree, of 32"] == 32
    assert full["KiB read by a token"] > lightest["KiB read by a token"]
    assert lightest["KiB read by a token"] == oldest["KiB read by a token"]
    assert len({row["nats per token"] for row in (full, lightest, oldest)}) == 3
    results.validate("made", json.loads((tmp_path / "docs/results/data/made.json").read_text()))
    assert forgetting.main([*options, "--tokens", str(whole(WINDOW))]) == 2
    assert forgetting.main(["--windows", "100"]) == 2

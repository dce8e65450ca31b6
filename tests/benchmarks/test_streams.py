"""Prompts that come in pieces, by how they are handed over: what is asked, counted and recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.endless import endless_engine

from benchmarks import streams
from paceline.lab.measure import results


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(model: str, **options: Any) -> Any:
        engine = endless_engine(max_batch=options["max_batch"])
        engine.config["model"] = model
        return engine

    monkeypatch.setattr(streams, "load", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)


def test_pieces_are_the_whole_and_come_in_order() -> None:
    text = list(range(100))
    found = streams.arrivals(random.Random(1), text, 7, 3.0)
    assert [token for piece in found for token in piece.what] == text
    assert [piece.at for piece in found] == sorted(piece.at for piece in found)
    assert found[-1].at == pytest.approx(3.0)


def test_no_prompt_begins_like_another() -> None:
    found = [streams.prompt(range(500), number, 600) for number in range(4)]
    assert {len(each) for each in found} == {600}
    assert len({each[0] for each in found}) == 4


def test_ways_take_turns_and_say_the_same(
    tiny: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--clients", "1,2", "--prompt-tokens", "200", "--pieces", "4", "--seconds", "0.2"]
    assert streams.main([*options, "--rounds", "2", "--json", "--record", "some"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(row["clients"], row["way"]): row for row in found["rows"]}
    assert len(rows) == 6
    assert {row["equal"] for row in rows.values()} == {"2 of 2", "4 of 4"}
    assert rows[1, "waiting"]["cached"] == 0 < rows[1, "writing"]["cached"]
    assert rows[1, "waiting"]["rows"] >= 200 - 1
    recorded = json.loads((tmp_path / "docs/results/data/some.json").read_text())
    results.validate("some", recorded)
    assert len(recorded["rows"]) == 6


@pytest.mark.parametrize(
    "options", [["--clients", "no"], ["--clients", "0"], ["--pieces", "0"], ["--rounds", "0"]]
)
def test_what_cannot_be_is_refused(
    tiny: None, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert streams.main(options) == 2
    assert options[0] in capsys.readouterr().err

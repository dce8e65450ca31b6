"""The end that scripts share: what is printed and recorded, and every exit code."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.script import BUSY, Findings, add_output, run_script

from benchmarks import script
from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.lab.measure.machine import Others

FOUND = Findings(
    title="Letters",
    topic="tokens",
    command="python -m benchmarks.letters",
    columns=("letter", "count"),
    rows=[["a", 1.5], ["bb", None]],
    note="Counted once.",
    figures={"most": 1.5},
)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docs/results/data"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Others, "busy", False)
    return folder


def called(found: Any, *words: str, **more: Any) -> int:
    """Run a script that finds this, or raises it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="here")
    add_output(parser)

    def measure(given: argparse.Namespace) -> Any:
        if isinstance(found, BaseException):
            raise found
        return found

    return run_script(parser, measure, words, **more)


def test_a_table_and_its_note_are_printed(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert called(FOUND) == 0
    table, note = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert [line.split() for line in table.splitlines()] == [
        ["letter", "count"],
        ["a", "1.5"],
        ["bb", "-"],
    ]
    assert note == "Counted once."
    assert called(replace(FOUND, shown="two letters")) == 0
    assert capsys.readouterr().out == "two letters\n"
    assert not list(data.iterdir()), "nothing is recorded that was not asked for"


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(FOUND, "--json") == 0
    told = [{"letter": "a", "count": 1.5}, {"letter": "bb", "count": None}]
    assert strict(capsys.readouterr().out) == told
    assert called(replace(FOUND, data={"worst": float("nan")}), "--json") == 0
    assert strict(capsys.readouterr().out) == {"worst": None}
    assert called(replace(FOUND, data=[]), "--json") == 0
    assert strict(capsys.readouterr().out) == [], "data that is empty is no reason for rows"


def test_findings_are_recorded(data: Path) -> None:
    assert called(FOUND, "--record", "letters") == 0
    found = json.loads((data / "letters.json").read_text())
    results.validate("letters", found)
    for name in ("title", "topic", "command", "note", "figures", "rows"):
        assert found[name] == getattr(FOUND, name)
    assert found["columns"] == list(FOUND.columns)


def test_a_record_that_is_none_is_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(replace(FOUND, topic="letters"), "--record", "letters") == 2
    said = capsys.readouterr()
    assert "Counted once." in said.out, "what was measured is not lost"
    assert said.err.startswith("paceline: error: result letters: unknown topic")
    assert not list(data.iterdir())


@pytest.mark.parametrize(("timed", "busy"), [(True, True), (True, False), (False, True)])
def test_a_busy_machine_is_told_where_times_are(
    timed: bool,
    busy: bool,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Others, "busy", busy)
    assert called(replace(FOUND, timed=timed), "--record", "letters") == 0
    told = timed and busy
    assert (BUSY in capsys.readouterr().err) == told
    note = json.loads((data / "letters.json").read_text())["note"]
    assert note == (f"Counted once. {BUSY}" if told else "Counted once.")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (None, 0),
        (3, 3),
        (replace(FOUND, code=4), 4),
        (replace(FOUND, rows=[]), 1),
        (InvalidOption("--out must be there"), 2),
        (FileNotFoundError("no such file"), 2),
        (UnicodeError("no text"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(found: Any, code: int, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--record", "letters", "--out", "there"]
    assert called(found, *line, stopped="kept in {out}", faults=(UnicodeError,)) == code
    err = capsys.readouterr().err
    assert err == {2: f"paceline: error: {found}\n", 130: "kept in there\n"}.get(code, "")
    assert (data / "letters.json").exists() == (code == 4), "an empty table is recorded nowhere"


@pytest.mark.parametrize("fault", [ValueError("a mistake"), UnicodeError("not named")])
def test_mistakes_of_a_script_are_not_hidden(fault: Exception) -> None:
    with pytest.raises(type(fault)):
        called(fault)


def test_the_checks_above_can_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "dumps", lambda value, indent: json.dumps(value))
    assert called(replace(FOUND, data={"worst": float("nan")}), "--json") == 0
    with pytest.raises(AssertionError, match="NaN"):
        strict(capsys.readouterr().out)
    monkeypatch.setattr(script, "PacelineError", ZeroDivisionError)
    with pytest.raises(InvalidOption):
        called(InvalidOption("--out must be there"))

"""Turns of servers, and parts of a server's trials: what is kept, told and returned."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.serving import abuse, endurance, speed

from paceline.errors import EngineFailed
from paceline.lab.measure import results


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "docs/results/data"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return folder


def recorded(path: Path) -> Any:
    found = json.loads(path.read_text())
    results.validate(path.stem, found)
    return found


class Servers:
    """In place of servers: which flags run, and how many turns there are before Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
        self.running: list[str] = []
        self.most, self.turns = 0, turns
        monkeypatch.setattr(speed, "serving", self.serving)
        monkeypatch.setattr(speed, "turn", self.turn)

    @contextlib.contextmanager
    def serving(self, model: str, port: int, flags: Any) -> Iterator[None]:
        self.running.append(" ".join(flags))
        self.most = max(self.most, len(self.running))
        try:
            yield
        finally:
            self.running.remove(" ".join(flags))

    async def turn(self, name: str, url: str, clients: int, prompts: Any, body: Any) -> speed.Turn:
        if not self.turns:
            raise KeyboardInterrupt
        self.turns -= 1
        return speed.Turn(name, clients, 2.0, 100 if name == speed.PLAIN else 150, (0.5, 0.1))


LINE = ["--model", "a.gguf", "--clients", "1", "--limit", "2"]


def test_turns_are_told_and_servers_ended(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch, turns=99)
    assert speed.main([*LINE, "--record", "some", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["turns"]) == 4
    assert {row["server"]: row["to_plain"] for row in found["rows"]} == {
        speed.PLAIN: 1.0,
        speed.AUTO: 1.5,
    }
    assert [row[:3] for row in recorded(data / "some.json")["rows"]] == [
        [speed.PLAIN, 1, 50.0],
        [speed.AUTO, 1, 75.0],
    ]
    assert (servers.running, servers.most) == ([], 2)


@pytest.mark.parametrize(("turns", "code"), [(3, 0), (0, 1)])
def test_ctrl_c_keeps_the_turns_that_are_done(
    turns: int,
    code: int,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    servers = Servers(monkeypatch, turns)
    assert speed.main([*LINE, "--record", "some"]) == code
    said = capsys.readouterr()
    assert "stopped" in said.err
    assert ("1.50 of drafts off" in said.out) == (data / "some.json").exists() == (code == 0)
    assert servers.running == []


def test_what_is_wrong_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = Servers(monkeypatch, turns=99)
    assert speed.main([*LINE[:-1], "1000"]) == 2
    assert capsys.readouterr().err.startswith("paceline: error: there are too few prompts")

    async def gone(*_: Any) -> speed.Turn:
        raise httpx.ConnectError("nobody is there")

    monkeypatch.setattr(speed, "turn", gone)
    assert speed.main(LINE) == 2
    assert capsys.readouterr().err == "paceline: error: nobody is there\n"
    assert servers.running == []


def test_a_server_that_ends_before_it_answers() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(EngineFailed, match="mine ended with 3"):
        speed.ready(process, 9, "mine")


def parts(*good: bool, ends: BaseException | None = None) -> Iterator[abuse.Part]:
    for number, each in enumerate(good):
        yield abuse.Part(f"part {number}", 10, "seen", each)
    if ends is not None:
        raise ends


@pytest.mark.parametrize(
    ("works", "code", "rows"),
    [
        (parts(True, True), 0, ["yes", "yes"]),
        (parts(True, False), 1, ["yes", "NO"]),
        (parts(True, ends=KeyboardInterrupt()), 0, ["yes"]),
        (parts(ends=KeyboardInterrupt()), 1, []),
        (parts(True, ends=httpx.ReadError("gone")), 2, None),
    ],
)
def test_parts_are_told_as_they_end(
    works: Iterator[abuse.Part],
    code: int,
    rows: list[str] | None,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = ("parts", "asked")
    monkeypatch.setattr(
        endurance,
        "findings",
        lambda given: abuse.of_parts(works, not given.json, "Parts", "command", columns),
    )
    assert endurance.main(["--record", "some"]) == code
    out = capsys.readouterr().out
    if rows is not None:
        assert [line.split()[0] == "good" for line in out.splitlines()] == [
            each == "yes" for each in rows
        ]
    if not rows:
        assert not (data / "some.json").exists()
    else:
        assert [row[3] for row in recorded(data / "some.json")["rows"]] == rows

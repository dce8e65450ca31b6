"""`paceline audit`: what it prints, and the exit code that says whether anything is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest
from tests.cli.conftest import Command, one_line

from paceline.lab.audit.engine import SeededRequest, Token
from paceline.proof import cases, controls
from paceline.proof.cases import Control, draft_sampling
from paceline.proof.controls import CONTROLS
from paceline.proof.negative import AlwaysAccepts
from paceline.registry import table as registry
from paceline.registry.table import Index
from paceline.verifiers.rejection import Rejection

TINY = replace(
    cases.QUICK,
    vocabularies=(3,),
    depths=(1, 2),
    widths=(2,),
    samplings=((1.0, 1.0),),
    loops=(0, 0, 0),
    noise_sizes=((2, 2, 2),),
)
QUICKLY = ("audit", "inside", "--quick", "--jobs", "1")


class Liar(AlwaysAccepts):
    """Emits the draft model's law and claims that nothing is lost."""

    name: ClassVar[str] = "liar"
    lossless: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer cases still, and one control."""
    monkeypatch.setattr(cases, "QUICK", TINY)
    monkeypatch.setattr(controls, "CONTROLS", CONTROLS[:1])


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A plugin whose rule is wrong."""

    class Point:
        value = "plugin:METHOD"

        def load(self) -> Index:
            return {"verifier": {"liar": f"{__name__}:Liar"}}

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    registry.methods.cache_clear()
    yield "liar"
    monkeypatch.undo()
    registry.methods.cache_clear()


def test_a_sound_rule_passes_with_exit_code_0(command: Command) -> None:
    outcome = command(*QUICKLY, "--verifier", "rejection", "--verifier", "relaxed")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].split()[:2] == ["verifier", "draft"]
    assert any(line.startswith("rejection") and line.endswith("exact") for line in lines)
    assert "wrong rules caught: 1 of 1" in lines
    assert "lossy, not counted as exact: relaxed, at its limit (ratio=1.0) exact" in lines
    assert lines[-1].startswith("passed in ")
    assert lines[-1].endswith(" s")


def test_json_is_one_object_and_nothing_else(command: Command) -> None:
    outcome = command(*QUICKLY, "--verifier", "rejection", "--json")
    report = json.loads(outcome.out)
    assert (outcome.code, outcome.err, report["passed"]) == (0, "", True)
    assert {row["verifier"] for row in report["rows"]} == {"rejection"}
    for row in report["rows"]:
        assert row["exact"]
        assert row["max_abs_error"] <= 1e-12
    assert report["negative_controls"] == [
        {"name": CONTROLS[0].name, "caught": True, "how": report["negative_controls"][0]["how"]}
    ]
    assert {"refused", "bad_input", "lossy", "left_out", "problems", "seconds"} <= report.keys()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plugin_with_a_wrong_rule_fails_with_exit_code_1(
    form: tuple[str, ...], liar: str, command: Command
) -> None:
    outcome = command(*QUICKLY, "--verifier", "rejection", "--verifier", liar, *form)
    assert outcome.code == 1
    if form:
        report = json.loads(outcome.out)
        wrong = {row["verifier"] for row in report["rows"] if not row["exact"]}
        assert (wrong, report["passed"]) == ({liar}, False)
    else:
        assert "NOT EXACT" in outcome.out
        assert "FAILED: liar on iid chain, vocabulary 3" in outcome.out
        assert outcome.out.splitlines()[-1].startswith("FAILED in ")


def test_a_control_that_is_not_caught_fails_with_exit_code_1(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Control("nothing wrong", lambda case: Rejection(), draft_sampling("iid chain"))
    monkeypatch.setattr(controls, "CONTROLS", (right,))
    outcome = command(*QUICKLY, "--verifier", "rejection")
    assert outcome.code == 1
    assert "FAILED: not caught: nothing wrong" in outcome.out
    report = json.loads(command(*QUICKLY, "--verifier", "rejection", "--json").out)
    assert [each["caught"] for each in report["negative_controls"]] == [False]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("inside", "--verifier", "oracle"), "oracle"),
        (("inside", "--jobs", "0"), "--jobs"),
        (("inside", "--bogus"), "--bogus"),
        (("outside",), "ENGINE"),
        (("outside", "abacus"), "abacus"),
        (("outside", "paceline", "--samples", "3"), "samples"),
        (("outside", "paceline", "--option", "drafter"), "KEY=VALUE"),
        (("sideways",), "sideways"),
        ((), "command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_mistakes_end_in_one_line(arguments: tuple[str, ...], says: str, command: Command) -> None:
    outcome = command("audit", *arguments)
    assert one_line(outcome)
    assert says.lower() in outcome.err.lower()


def honest(ask: SeededRequest) -> list[list[Token]]:
    """Speculation changes nothing."""
    return [[(seed * 7919 + at) % 5 for at in range(ask.tokens)] for seed in ask.seeds]


def biased(ask: SeededRequest) -> list[list[Token]]:
    """Speculation favours one token."""
    rows = honest(ask)
    return [[0] * len(row) for row in rows] if ask.speculation and ask.temperature else rows


@pytest.mark.parametrize(("engine", "code"), [("honest", 0), ("biased", 1)])
def test_an_engine_is_audited_from_outside(engine: str, code: int, command: Command) -> None:
    few = ("--greedy-prompts", "2", "--greedy-tokens", "4", "--samples", "60", "--tokens", "2")
    outcome = command("audit", "outside", f"python:{__name__}:{engine}", *few, "--json")
    report = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (code, "")
    assert report["passed"] == (code == 0)
    assert report["identical"] == 2

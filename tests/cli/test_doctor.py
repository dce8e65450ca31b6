"""`doctor --profile` over a table: every part is there, and the parts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Command, one_line

from paceline.native import library
from paceline.registry.options import Options

library.found()  # compiled, if need be, before there is an empty cache for every test


def test_parts_of_a_plain_and_a_drafted_step(command: Command, loads: list[Options]) -> None:
    report = json.loads(command("doctor", "--profile", "--json").out)
    assert "c_n" not in report
    assert set(report["profile"]) == {"plain", "drafted"}
    for name, rows in (("plain", 1), ("drafted", 8)):
        step = report["profile"][name]
        assert step["rows"] == rows
        assert step["context"] == 256
        assert step["counting_slowdown"] is None, "a table has no nodes"
        assert set(step["parts"]) == {
            *("inference", "keeping the path", "sampling and verification", "drafting"),
            *("draft sizing", "loop and text"),
        }
        total = sum(part["ms"] for part in step["parts"].values())
        assert total == pytest.approx(step["closure"] * step["step_ms"])
        assert 0.5 < step["closure"] < 2
        assert step["parts"]["inference"]["ms"] > 0


def test_what_people_read(command: Command, loads: list[Options]) -> None:
    text = command("doctor", "--profile", "--rows", "4").out
    assert "plain step: " in text
    assert "(4 rows, context 256, faster half of 30 steps)" in text
    assert "sampling and verification" in text
    assert "sum of the parts" in text
    assert "a drafted step costs" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--rows", "1"), "--rows"),
        (("--quick",), "--quick"),
        (("--drafter", "oracle"), "oracle"),
        (("--drafter", "none"), "drafter"),
    ],
)
def test_refuses(
    arguments: tuple[str, ...], named: str, command: Command, loads: list[Options]
) -> None:
    outcome = command("doctor", "--profile", *arguments, "--json")
    assert outcome.code == 2
    assert named in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert one_line(outcome)


def test_a_fingerprint_names_the_instruction_set(command: Command) -> None:
    report = json.loads(command("doctor", "--fingerprint", "--quick", "--json").out)
    golden = Path(__file__).parents[1] / "native/fingerprints.json"
    assert report["fingerprint"]["cases"] == json.loads(golden.read_text())["built_in"]
    assert report["native"]["level"] in report["native"]["levels"]
    text = command("doctor", "--fingerprint", "--quick").out
    assert report["fingerprint"]["built_in"] in text
    assert f"{report['native']['level']} (this processor: " in text
    page = Path(__file__).parents[2] / "docs/exactness.md"
    assert report["fingerprint"]["built_in"] in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [("--profile",), ("--runtime", "torch")])
def test_fingerprints_are_of_the_cpu_runtime_alone(more: tuple[str, ...], command: Command) -> None:
    outcome = command("doctor", "--fingerprint", *more)
    assert outcome.code == 2
    assert "--fingerprint is of runtime cpu" in outcome.err


def test_a_language_costs_tokens_and_forwards(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    text, short = tmp_path / "text.txt", tmp_path / "short.txt"
    text.write_text("ab é " * 60, encoding="utf-8")
    short.write_text("ab e " * 20, encoding="utf-8")
    options = ("--language", str(text), "--reference", str(short))
    report = json.loads(command("doctor", *options, "--json").out)["language"]
    assert report["characters"] == len("ab é " * 60) - 1
    assert report["bytes"] == report["characters"] + 60
    assert report["tokens"] > report["characters"], "é is two tokens of one byte"
    assert 3 < report["premium"] < 5
    for mode, each in report["tokens_per_forward"].items():
        assert each >= 1
        assert report["passes"][mode] == pytest.approx(report["premium"] / each, abs=2e-3)
    text_report = command("doctor", *options).out
    assert "times the tokens of the reference" in text_report
    assert "times the reference's forwards" in text_report


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--language", "none.txt"), "none.txt"),
        (("--language", "/dev/null"), "/dev/null"),
        (("--language", "a", "--profile"), "--language"),
        (("--language", "a", "--quick"), "--language"),
        (("--reference", "a"), "--reference"),
    ],
)
def test_refuses_languages(
    arguments: tuple[str, ...], named: str, command: Command, loads: list[Options]
) -> None:
    outcome = command("doctor", *arguments, "--json")
    assert outcome.code == 2
    assert named in outcome.err
    assert one_line(outcome)
    assert not loads

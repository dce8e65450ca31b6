"""`generate --first-of` over a table."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Command, one_line

pytestmark = pytest.mark.usefixtures("loads")

OPTIONS = ("generate", "fox", "--temperature", "1", "--max-new-tokens", "60", "--stop", "e")


def test_the_winner_is_what_its_seed_generates(command: Command) -> None:
    outcome = command(*OPTIONS, "--first-of", "4", "--json")
    report = json.loads(outcome.out)
    found = report["first_of"]
    assert outcome.code == 0
    assert not report["config"]["lossless"]
    assert len(found["samples"]) == 4
    alone = json.loads(command(*OPTIONS, "--json", "--seed", str(found["seed"])).out)
    assert alone["token_ids"] == report["token_ids"]
    assert alone["config"]["lossless"]
    assert "first_of" not in alone
    assert found["samples"][found["index"]]["finish_reason"] == report["finish_reason"] == "stop"
    assert min(each["tokens"] for each in found["samples"]) == len(report["token_ids"])
    several = [json.loads(command(*OPTIONS, "--json", "--seed", str(n)).out) for n in range(6)]
    assert max(len(each["token_ids"]) for each in several) > len(report["token_ids"])


def test_people_are_told_that_it_is_lossy(command: Command) -> None:
    report = json.loads(command(*OPTIONS, "--first-of", "4", "--json").out)
    outcome = command(*OPTIONS, "--first-of", "4")
    assert outcome.out == report["text"] + "\n"
    assert "of 4 (seed" in outcome.err
    assert "lossy: favours short texts" in outcome.err
    assert "lossy" not in command(*OPTIONS).err
    assert "favours" in command("generate", "--help").out


@pytest.mark.parametrize(
    "options",
    [
        ("--first-of", "0"),
        ("--first-of", "1000000000", "--temperature", "1"),
        ("--first-of", "2", "--temperature", "0"),
        ("--first-of", "2", "--color"),
        ("--first-of", "2", "--regex", "a+"),
        ("--first-of", "2", "--show-steps"),
        ("--first-of", "2", "--ending", "cut"),
        ("--json", "--color"),
        ("--raw", "--system", "be brief"),
        ("--logprobs", "2"),
    ],
)
def test_what_does_not_go_together(command: Command, options: tuple[str, ...]) -> None:
    outcome = command(*OPTIONS, *options)
    assert one_line(outcome)
    assert options[0].lstrip("-") in outcome.err.replace("_", "-")

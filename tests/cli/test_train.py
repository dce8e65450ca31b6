"""`train` over a table: a head that loads, resumption, Ctrl-C, and options out of range."""

from __future__ import annotations

import json
import signal
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, one_line
from tests.verifiers.lossy_runs import HIDDEN, restless

from paceline.methods.heads import grading
from paceline.methods.heads import training as module
from paceline.methods.heads.command import JudgeOptions, PivotOptions
from paceline.methods.heads.verifiers import load_head
from paceline.registry import loading

MARGIN = {"judge": "0.8", "pivot": "0.45"}
TEXTS = ("the quick fox", "12 34", "lazy dog", "x + 1", "over the", "jumps 567")


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake model, with hidden states."""
    made = restless()
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: made)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


def arguments(kind: str, prompts: Path, *more: str) -> tuple[str, ...]:
    out = str(prompts.with_name(f"{kind}.safetensors"))
    options = ("--new-tokens", "24", "--ahead", "4", "--margin", MARGIN[kind], "--held-out", "0.4")
    return ("train", kind, str(prompts), "--out", out, *options, *more)


@pytest.mark.parametrize(("kind", "width"), [("judge", HIDDEN), ("pivot", HIDDEN + 4)])
def test_a_head_is_made_that_tells_where_it_comes_from(
    command: Command, prompts: Path, kind: str, width: int
) -> None:
    done = command(*arguments(kind, prompts, "--json"))
    assert done.code == 0, done.err
    report = json.loads(done.out)
    head = load_head(kind, report["head"])
    assert head.weight.shape == (width,)
    assert report["complete"] is True
    assert report["prompts"] == len(TEXTS)
    assert 0 < report["held_out"]["base_rate"] < 1
    assert head.metadata["command"] == report["command"]
    assert report["command"].startswith(f"paceline train {kind} prompts.jsonl --drafters")
    assert head.metadata["model"] == "0123"
    assert json.loads(head.metadata["held_out"]) == report["held_out"]


def test_the_report_for_people_says_lossy_and_names_the_base_rate(
    command: Command, prompts: Path
) -> None:
    done = command(*arguments("judge", prompts))
    assert done.code == 0, done.err
    assert "verifier judge, lossy" in done.out
    assert "acceptable" in done.out
    assert "AUC" in done.out


def test_ctrl_c_keeps_what_was_labelled_and_the_same_command_goes_on(
    command: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def collect(engine: Any, kind: Any, prompt: str, **options: Any) -> Any:
        seen.append(prompt)
        if len(seen) == 4:
            signal.raise_signal(signal.SIGINT)
        return genuine(engine, kind, prompt, **options)

    genuine = module.collect
    monkeypatch.setattr(module, "collect", collect)
    first = command(*arguments("judge", prompts, "--json"))
    assert first.code == 130, first.err
    assert json.loads(first.out)["prompts"] == 4
    assert json.loads(first.out)["complete"] is False
    second = command(*arguments("judge", prompts, "--json"))
    assert second.code == 0, second.err
    assert seen == list(TEXTS)
    assert json.loads(second.out)["complete"] is True
    assert json.loads(second.out)["prompts"] == len(TEXTS)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ahead", "24"), "--ahead must be less than --new-tokens"),
        (("--ahead", "0"), "--ahead must be 1 or more"),
        (("--limit", "0"), "--limit must be 1 or more"),
        (("--held-out", "1"), "--held-out must be in (0, 1)"),
        (("--penalty", "0"), "--penalty must be more than 0"),
        (("--drafters", "none"), "--drafters must name drafters"),
        (("--drafters", "magic"), "drafter 'magic' is unknown"),
        (("--margin", "99"), "of one class"),
    ],
)
def test_options_out_of_range_are_one_line(
    command: Command, prompts: Path, options: tuple[str, ...], says: str
) -> None:
    done = command(*arguments("judge", prompts, *options))
    assert one_line(done), done.err
    assert says in done.err


def test_missing_prompts_are_one_line(command: Command, tmp_path: Path) -> None:
    done = command("train", "pivot", str(tmp_path / "missing.jsonl"))
    assert one_line(done)
    assert "cannot read prompts" in done.err


def test_graded_answers_go_on_to_their_end_by_default() -> None:
    for options in (JudgeOptions, PivotOptions):
        plain, graded, set_by_hand = (
            options(prompts=[], **given).sized()
            for given in ({}, {"graded": True}, {"graded": True, "new_tokens": 90, "ahead": 7})
        )
        assert (plain.new_tokens, plain.ahead) == (64, 12)
        assert graded.ahead == graded.new_tokens >= 256
        assert (set_by_hand.new_tokens, set_by_hand.ahead) == (90, 7)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Word problems and functions, in one file."""
    path = tmp_path / "problems.jsonl"
    lines = [{"question": text, "tests": [f"assert f() == {n}"]} for n, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with path.open("a") as file:
        file.write(json.dumps({"question": TEXTS[0], "answer": "#### 3"}) + "\n")
    return path


@pytest.mark.parametrize("kind", ["judge", "pivot"])
def test_graded_labels_follow_the_tests_of_functions(
    command: Command, problems: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grader that runs no tests finds nothing wrong, and there is nothing to learn."""
    asked: list[str] = []

    def passes(code: str, tests: Any) -> bool:
        asked.extend(tests)
        return zlib.crc32(code.encode()) % 4 > 0

    monkeypatch.setattr(grading, "passes", passes)
    done = command(*arguments(kind, problems, "--graded", "--json"))
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert 0 < report["held_out"]["base_rate"] < 1
    # Four tokens behind a mismatch reach no end, and that is told.
    assert 0 < report["cut"]["cut"] <= report["cut"]["continuations"]
    told = command(*arguments(kind, problems, "--graded"))
    assert "continuations, cut by --ahead 4: raise these" in told.out
    assert len(set(asked)) == len(TEXTS)
    problems.with_name(f"{kind}.examples.safetensors").unlink()
    monkeypatch.setattr(grading, "passes", lambda code, tests: True)
    blind = command(*arguments(kind, problems, "--graded"))
    assert "of one class" in blind.err

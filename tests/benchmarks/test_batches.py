"""Prompts answered together: what is counted, which prompts go together, identity by text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.peers import __main__ as command
from benchmarks.peers import table
from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.batches import batches, rotations, texts
from benchmarks.peers.timing import Configuration, Turn

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.engine import Timing
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve


class Clock:
    """Stands until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_tokens_are_all_that_are_there_when_the_last_text_begins() -> None:
    clock = Clock()
    arrivals = Arrivals(3, clock)
    steps = [
        *((101, {0: [5]}), (102, {}), (103, {0: [6, 7], 1: [8]}), (104, {2: [1], 0: [9]})),
        *((106, {0: [2], 1: [3, 3], 2: []}), (108, {1: [4], 2: [4, 4, 4]}), (109, {0: []})),
    ]
    for clock.now, step in steps:
        arrivals.take(step)
    found = arrivals.timing()
    assert found == {
        "tokens": [[5, 6, 7, 9, 2], [8, 3, 3, 4], [1, 4, 4, 4]],
        "seconds": 8,  # of the last token; what came later brought none
        "first_seconds": 4,
        "first_tokens": 6,
    }
    flat = [token for row in found.pop("tokens") for token in row]
    assert table.speed(Timing(tuple(flat), **found)) == (13 - 6) / (8 - 4)


def test_a_single_text_is_counted_like_one_that_is_answered_alone() -> None:
    clock = Clock()
    arrivals = Arrivals(1, clock)
    for clock.now in (102, 103, 104):
        arrivals.take({0: [7, 7]})
    found = arrivals.timing()
    assert (found["first_seconds"], found["first_tokens"], found["seconds"]) == (2, 2, 4)


def test_a_text_without_tokens_has_no_times() -> None:
    arrivals = Arrivals(2)
    arrivals.take({0: [7]})
    with pytest.raises(RuntimeError, match="no tokens"):
        arrivals.timing()


@pytest.mark.parametrize("size", range(1, 8))
def test_every_prompt_is_in_a_full_batch_of_different_prompts(size: int) -> None:
    found = batches(range(7), size)
    assert all(len(set(group)) == size for group in found)
    assert {item for group in found for item in group} == set(range(7))
    assert len(found) == -(-7 // size)


def test_a_batch_does_not_hold_a_prompt_twice() -> None:
    with pytest.raises(InvalidOption, match="--batch 4 needs as many prompts, and there are 3"):
        batches(range(3), 4)


def test_prompts_for_warming_up_have_the_same_tokens_and_no_common_beginning() -> None:
    found = rotations((1, 2, 3, 4), 4)
    assert {prompt[0] for prompt in found} == {1, 2, 3, 4}
    assert all(sorted(prompt) == [1, 2, 3, 4] for prompt in found)
    assert rotations((1, 2), 1) == ((1, 2),)
    assert len(rotations((1, 2), 5)) == 5


PLAIN = Configuration("own plain", "own", False, "plain", "own plain")
DRAFTS = Configuration("own drafts", "own", False, "drafts", "own plain")


def test_identity_is_of_texts_and_not_of_whole_batches() -> None:
    plain = Timing((1, 2, 3, 4, 5, 6), 2.0, 1.0, 3)
    drafted = Timing((1, 2, 3, 9, 5, 6), 2.0, 1.0, 3)
    turns = [Turn(0, 0, {"own plain": plain, "own drafts": drafted})]
    assert texts(drafted, 3) == [(1, 2), (3, 9), (5, 6)]
    for batch, identical in ((3, 2 / 3), (2, 1 / 2), (1, 0)):
        row = table.rows(turns, [PLAIN, DRAFTS], batch)[1]
        assert row["identical"] == pytest.approx(identical)
        assert row["tokens_per_second"] == pytest.approx(3), "of all texts together"


ANSWERING = f"""
import sys
sys.path.insert(0, {str(scripts())!r})
from answering import claim_output, serve
lines = claim_output()
def timing(prompt, speculation, tokens):
    return {{"tokens": prompt[:1] * tokens, "seconds": 2.0, "first_seconds": 1.0}}
def batch(prompts, speculation, tokens):
    rows = [prompt[:1] * tokens for prompt in prompts]
    if speculation:
        rows[-1][-1] += 1
    if prompts[0] == [9]:
        rows[0].append(9)
        rows[1].pop()
    said = {{"tokens": rows, "seconds": 2.0, "first_seconds": 1.0, "first_tokens": len(rows)}}
    return said if prompts[0] != [8] else {{"tokens": rows}}
serve(lines, {{"flags": " ".join(sys.argv[1:])}}, None, None, timing, BATCH)
"""
"""An engine that repeats a prompt's first token, and miscounts after the prompt [9]."""


def program(folder: Path, batch: str = "batch") -> list[str]:
    path = folder / f"{batch}.py"
    path.write_text(ANSWERING.replace("BATCH", batch), encoding="utf-8")
    return [sys.executable, str(path)]


def test_an_engine_answers_a_batch(tmp_path: Path) -> None:
    engine = JsonlEngine(program(tmp_path))
    found = engine.time(((4, 1), (5,)), False, 3)
    assert texts(found, 2) == [(4, 4, 4), (5, 5, 5)]
    assert (found.seconds, found.first_seconds, found.first_tokens) == (2, 1, 2)
    assert engine.time(((4, 1),), False, 3).first_tokens == 1, "a prompt alone is a time"
    for wrong in (9, 8):
        with pytest.raises(EngineFailed, match="did not time 2 texts of 3 tokens"):
            engine.time(((wrong,), (5,)), False, 3)
    engine.close()


def test_an_engine_without_batches_says_so(tmp_path: Path) -> None:
    engine = JsonlEngine(program(tmp_path, "None"))
    with pytest.raises(EngineFailed, match=r"no request of this kind: \['batch'\]"):
        engine.time(((4,), (5,)), False, 3)
    assert engine.time(((4,),), False, 3).tokens == (4, 4, 4)
    engine.close()


def test_the_command_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five prompts by two are three batches; who answers one at a time is not started."""
    started: list[str] = []

    def start(name: str, source: object, threads: int, *flags: str, draft: None) -> JsonlEngine:
        started.append(name)
        return JsonlEngine([*program(tmp_path), *flags])

    monkeypatch.setattr(command, "start", start)
    monkeypatch.setattr(command, "resolve", lambda name: Model())
    out = tmp_path / "out"
    line = ["--batch", "2", "--only", "genai", "llama-cpp-python", "transformers"]
    line += ["--limit", "5", "--rounds", "2", "--max-new-tokens", "5", "--out", str(out)]
    assert command.main([*line, "--json"]) == 0
    assert started == ["genai", "transformers"]
    results = json.loads(capsys.readouterr().out)
    rows = {row["configuration"]: row for row in results["rows"]}
    assert list(rows) == ["genai plain", "genai prompt lookup", "transformers plain"]
    assert {row["samples"] for row in rows.values()} == {6}
    assert {row["tokens_per_second"] for row in rows.values()} == {2 * (5 - 1)}
    assert rows["genai prompt lookup"]["identical"] == 0.5
    assert set(results["not_run"]) == {
        *("llama-cpp-python plain", "llama-cpp-python prompt lookup"),
        "transformers prompt lookup",
    }
    assert all(reason.startswith("no batches") for reason in results["not_run"].values())
    assert results["settings"]["batch"] == 2
    longest = 2 + 5 + command.MARGIN
    assert results["about"]["genai"]["flags"] == f"--context {longest} --batch 2"
    assert [len(turn["prompts"]) for turn in results["turns"]] == [2] * 6
    assert results["turns"][2]["prompts"][1] == results["turns"][0]["prompts"][0], "filled up"
    assert "tokens/s of 2 texts together" in (out / "results.md").read_text("utf-8")

    started.clear()
    assert command.main([*line, "--json"]) == 0
    assert started == [], "nothing is left to do"
    capsys.readouterr()
    for change, message in ((("--batch", "1"), "other settings"), (("--batch", "6"), "larger")):
        assert command.main([*line, *change]) == 2
        assert message in capsys.readouterr().err


class Model:
    """Enough of a model for prompts to be encoded, each with another first token."""

    name, fingerprint, path = "tiny", "0", Path("tiny.gguf")

    class Tokenizer:
        chat_template = None

        def prompt(self, text: str, raw: bool) -> list[int]:
            return [20 + len(text), 1]

    def tokenizer(self) -> Model.Tokenizer:
        return self.Tokenizer()


def test_at_least_one_mode_of_every_other_engine_has_batches() -> None:
    able = {
        each.engine
        for each in command.configurations(list(command.ENGINES))
        if command.alone(each) is None
    }
    assert set(command.ENGINES) - able == {
        *("llama-cpp-python", "llama-cpp-python-draft", "transformers-draft"),
    }


@pytest.mark.real
def test_paceline_answers_a_batch_as_it_answers_each_prompt() -> None:
    engine = command.start("paceline", resolve(DEFAULT_MODEL), 2, "--batch", "2")
    prompts = ((1, 4093, 198), (1, 504, 2365, 282))
    alone = [engine.time((prompt,), False, 12).tokens for prompt in prompts]
    together = [engine.time(prompts, drafts, 12) for drafts in (False, True)]
    engine.close()
    assert [texts(found, 2) for found in together] == [alone, alone]
    assert all(found.first_tokens >= 2 for found in together)

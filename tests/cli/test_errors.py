"""Every mistake a user can make: exit code 2, one line that names it, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Command, one_line

from paceline import __version__
from paceline.registry import loading
from paceline.registry.options import Options

GENERATE = {
    ("hi", "--model", "no/such.gguf"): "no/such.gguf",
    ("hi", "--model", "nothing"): "nothing",
    ("hi", "--runtime", "abacus"): "abacus",
    ("hi", "--drafter", "oracle"): "oracle",
    ("hi", "--verifier", "oracle"): "oracle",
    ("hi", "--controller", "oracle"): "oracle",
    ("hi", "--threads", "0"): "--threads",
    ("hi", "--kv-precision", "u4"): "u4",
    ("hi", "--max-context", "-1"): "--max-context",
    ("hi", "--temperature", "-1"): "temperature",
    ("hi", "--temperature", "nan"): "temperature",
    ("hi", "--temperature", "warm"): "--temperature",
    ("hi", "--top-p", "0"): "top_p",
    ("hi", "--top-p", "1.5"): "top_p",
    ("hi", "--min-p", "2"): "min_p",
    ("hi", "--top-k", "-1"): "top_k",
    ("hi", "--seed", "-1"): "seed",
    ("hi", "--stop", ""): "stop",
    ("hi", "--max-new-tokens", "0"): "max_new_tokens",
    ("hi", "--logprobs", "-1"): "logprobs",
    ("hi", "--bogus"): "--bogus",
    ("hi", "there"): "there",
    (): "prompt",
    ("",): "empty",
    ("  \n ",): "empty",
    ("caf\udce9",): "UTF-8",
}


@pytest.mark.parametrize("arguments", GENERATE, ids=lambda a: repr(" ".join(a)))
def test_generate_refuses(arguments: tuple[str, ...], command: Command) -> None:
    outcome = command("generate", *arguments)
    assert one_line(outcome)
    assert outcome.out == ""
    assert GENERATE[arguments] in outcome.err


ODD = (
    "generate hi --temperature inf",
    "serve --port 99999999999999999999",
    "bench --seed -99999999999999999999",
    "bench methods --limit 99999999999999999999",
    "audit outside paceline --near-tie nan",
    "train data --self-written nan",
    "train drafter hydra --rate -inf",
    "train denoiser full --matrix-rate nan",
    "train experts top-k --experts 99999999999999999999",
    "suggest hi --alpha nan",
)


@pytest.mark.parametrize("line", ODD)
def test_numbers_that_nothing_counts_with(line: str, command: Command) -> None:
    outcome = command(*line.split())
    assert one_line(outcome)
    assert " ".join(line.split()[-2:]) in outcome.err


RECIPES = {
    "train drafter hydra --prompt-weight -1": "--prompt-weight must be 0 or more",
    "train drafter hydra --rate 0": "--rate must be more than 0",
    "train drafter hydra --batch-tokens 0": "--batch-tokens must be 1 or more",
    "train denoiser full --layers 0": "layers must be 1 or more",
    "train denoiser full --width 0": "width must be 1 or more",
    "train denoiser full --ffn -1": "ffn must be 1 or more",
    "train denoiser full --corrupt 2": "--corrupt must be in [0, 1]",
    "train denoiser full --matrix-rate -1": "--matrix-rate must be more than 0",
    "train denoiser full --seed -1": "--seed must be 0 or more",
    "train experts top-k --width 0": "width must be 1 or more",
    "train experts top-k --inner 0": "inner must be 1 or more",
    "train experts blockffn --chunk -1": "chunk must be 0 or more",
    "train acceptance-head x --rate -1": "rate must be more than 0",
    "train acceptance-head x --tokens 0": "tokens must be 1 or more",
    "train data --texts 2000000000": "--texts must be from 1 to 100000000",
    "audit inside --jobs 2000000000": "--jobs must be from 1 to",
}


@pytest.mark.parametrize("line", RECIPES)
def test_recipes_out_of_range_are_refused_before_anything_is_loaded(
    line: str, command: Command
) -> None:
    outcome = command(*line.split())
    assert one_line(outcome)
    assert RECIPES[line] in outcome.err


LATE = {
    ("hi", "--nodes", "0"): "nodes",
    ("hi", "--controller", "fixed"): "fixed",
    ("hi", "--verifier", "rejection"): "rejection",
    ("hi", "--verifier", "greedy", "--temperature", "1"): "greedy",
    ("hi", "--drafter", "draft-model"): "--draft-model",
    ("word " * 900,): "context",
}


@pytest.mark.parametrize("arguments", LATE, ids=lambda a: repr(" ".join(a)[:40]))
def test_generate_refuses_what_shows_after_loading(
    arguments: tuple[str, ...], command: Command, loads: list[Options]
) -> None:
    outcome = command("generate", *arguments)
    assert one_line(outcome)
    assert outcome.out == ""
    assert LATE[arguments] in outcome.err


def test_a_file_that_is_no_model(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    outcome = command("generate", "hi", "--model", str(path))
    assert one_line(outcome)
    assert "notes.txt" in outcome.err


BENCH = {
    ("--drafters", "oracle"): "oracle",
    ("--drafters", "recycling,recycling"): "twice",
    ("--drafters", "recycling,,none"): "empty",
    ("--drafters", ""): "empty",
    ("--limit", "0"): "--limit",
    ("--batch", "0"): "--batch",
    ("--turns", "second"): "second",
    ("--max-new-tokens", "0"): "max_new_tokens",
    ("--prompts", "absent.jsonl"): "absent.jsonl",
}


@pytest.mark.parametrize("arguments", BENCH, ids=lambda a: repr(" ".join(a)))
def test_bench_refuses(arguments: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    outcome = command("bench", *arguments, "--out", str(tmp_path / "out"))
    assert one_line(outcome)
    assert BENCH[arguments] in outcome.err
    assert not (tmp_path / "out").exists()


GOOD = '{"question_id": 1, "category": "qa", "turns": ["Why?"]}'
LINES = {
    "{": "line 2",
    "[]": "not an object",
    '{"question_id": 1, "category": "qa"}': "no turns",
    '{"question_id": 1, "category": "qa", "turns": []}': "no turns",
    '{"question_id": 1, "category": "qa", "turns": "Why?"}': "no turns",
    '{"question_id": 1, "category": "qa", "turns": [" "]}': "empty",
    '{"question_id": 1, "category": "qa", "turns": [3]}': "not text",
    '{"question_id": 1, "turns": ["Why?"]}': "category",
    '{"question_id": 1, "category": "all", "turns": ["Why?"]}': "category",
}


@pytest.mark.parametrize("line", LINES)
def test_a_malformed_line_is_named(line: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    outcome = command("bench", "--prompts", str(path))
    assert one_line(outcome)
    assert "line 2" in outcome.err
    assert LINES[line] in outcome.err


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_prompts(content: bytes, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    outcome = command("bench", "--prompts", str(path))
    assert one_line(outcome)
    assert "prompts.jsonl" in outcome.err


def test_out_is_a_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    assert one_line(command("bench", "--out", str(path)))
    assert path.read_text() == "mine"


def test_pull_refuses(command: Command) -> None:
    assert one_line(command("pull", "nothing"))
    assert one_line(command("pull", "some/model", "--force"))


@pytest.mark.parametrize("arguments", [("bogus",), ("--bogus",), ("doctor", "--runtime", "x")])
def test_usage_errors(arguments: tuple[str, ...], command: Command) -> None:
    assert one_line(command(*arguments))


def test_from_the_outside(tmp_path: Path) -> None:
    """The process itself: exit code, one line, no traceback; and help is quick to import."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "generate", "hi", "--top-p", "0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    code = "import sys, paceline.cli.app as a; code = a.run([]); print(sorted(sys.modules)); "
    helped = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(code)"], capture_output=True, text=True
    )
    assert helped.returncode == 0, helped.stderr
    assert "Commands" in helped.stdout
    for package in ("torch", "transformers", "gguf"):
        assert f"'{package}'" not in helped.stdout


def test_version(command: Command) -> None:
    outcome = command("--version")
    assert outcome.code == 0
    assert outcome.out == f"paceline {__version__}\n"


def test_methods_in_every_form(command: Command) -> None:
    entries = json.loads(command("methods", "--json").out)
    table = command("methods").out
    page = command("methods", "--markdown").out
    assert {"coupled", "recycling", "cpu"} <= {entry["method"] for entry in entries}
    assert set(entries[0]) == {"method", "kind", "guarantee", "needs", "paper"}
    for entry in entries:
        assert entry["method"] in table
        assert f"`{entry['method']}`" in page


def test_doctor_reports_although_the_model_is_missing(command: Command) -> None:
    outcome = command("doctor", "--model", "nothing", "--json")
    assert one_line(outcome)
    assert "numpy" in json.loads(outcome.out)["versions"]


def test_doctor_in_full(command: Command, loads: list[Options]) -> None:
    report = json.loads(command("doctor", "--json").out)
    assert report["noise_floor"] == {"chain": 0, "tree": 0}
    assert report["c_n"]["1"] == 1
    text = command("doctor").out
    assert "0 (bit-exact)" in text
    assert "c(n)" in text


def test_doctor_quick(command: Command) -> None:
    report = json.loads(command("doctor", "--quick", "--json").out)
    assert report["versions"]["paceline"] == __version__
    assert report["machine"]["cores"] >= 1
    assert "c_n" not in report
    assert "cache" in command("doctor", "--quick").out


def test_ctrl_c_while_loading(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load_model", load_model)
    outcome = command("generate", "hi")
    assert (outcome.code, outcome.out) == (130, "")
    assert "Traceback" not in outcome.err

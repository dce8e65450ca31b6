"""A request that ends in an error ends its command: one line, exit code 2, and never a hang."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import fakes
from tests.cli.conftest import Command, press_in_step

from paceline.lab.audit import named
from paceline.registry import loading
from paceline.registry.options import Options

SMALL = ("--limit", "2", "--max-new-tokens", "12")
COMMANDS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "hi"),
    "generate, one object": ("generate", "hi", "--json"),
    "generate, in colour": ("generate", "hi", "--color"),
    "generate, drafts": ("generate", "hi", "--drafter", "recycling", "--temperature", "1"),
    "generate, several": ("generate", "hi", "--first-of", "3", "--temperature", "1"),
    "chat": ("chat",),
    "bench": ("bench", *SMALL, "--drafters", "recycling"),
    "bench, batches": ("bench", *SMALL, "--drafters", "recycling", "--batch", "2"),
    "bench, agents": ("bench", "--workload", "agentic", *SMALL, "--drafters", "recycling"),
    "doctor": ("doctor", "--profile"),
    "tune": ("tune", "--time-limit", "5s"),
    "train data": ("train", "data", "PROMPTS", "--texts", "2", "--new-tokens", "8", "--out", "OUT"),
    "audit": ("audit", "outside", "paceline"),
    "bounds": ("bounds", "--limit", "1", "--draft", "precision:int4"),
}


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A model whose logits are no numbers behind the first steps."""

    def load_model(asked: Options | str, **_: Any) -> loading.Loaded:
        found = fakes.loaded(Options.of(asked).max_context or 600)
        target: Any = found.target
        rows = target._logits
        target._logits = lambda c: rows(c) * (np.nan if len(c) > 30 else 1)
        return found

    def install(whole: bool) -> None:
        made = load_model if not whole else lambda *_, **__: fakes.loaded()
        monkeypatch.setattr(loading, "load_model", made)
        monkeypatch.setattr(named, "load_model", made)

    install(whole=False)
    return install


@pytest.fixture
def files(tmp_path: Path) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "the quick fox"}) + "\n")
    names = {"PROMPTS": str(prompts), "OUT": str(tmp_path / "out")}
    return lambda line: tuple(names.get(each, each) for each in line)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_error_ends_the_command(
    name: str,
    command: Command,
    files: Any,
    monkeypatch: pytest.MonkeyPatch,
    survived: list[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello there\nand again\n"))
    outcome = command(*files(COMMANDS[name]))
    survived.clear()  # a draft model that is broken as well
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err
    last = outcome.err.splitlines()[-1]
    assert last.startswith("paceline: error: "), outcome.err
    assert outcome.err.count("paceline: error: ") == 1


def test_a_conversation_at_a_terminal_goes_on(
    command: Command, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn that failed is forgotten, and said in one line."""
    typed = io.StringIO("hello there\n/quit\n")
    typed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", typed)
    outcome = command("chat")
    assert outcome.code == 0
    assert outcome.err.count("paceline: error: ") == 1


_LONG = ("audit", "bounds", "bench, agents")  # without a place to stop, or too long a prompt
INTERRUPTED = {name: line for name, line in COMMANDS.items() if name not in _LONG}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_ends_the_command(
    name: str, command: Command, files: Any, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(True)
    press_in_step(monkeypatch, 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello there\n"))
    outcome = command(*files(COMMANDS[name]))
    assert outcome.code == (0 if name == "chat" else 130), outcome  # there it stops the answer
    assert "Traceback" not in outcome.err


BYTES = {
    ("generate", "hi", "--system", "caf\udce9"): "--system",
    ("generate", "hi", "--stop", "caf\udce9"): "stop",
    ("generate", "hi", "--regex", "caf\udce9"): "--regex",
    ("generate", "hi", "--json-schema", '{"const": "caf\udce9"}'): "--json-schema",
    ("generate", "hi", "--grammar", "caf\udce9.gbnf"): "gbnf",
    ("generate", "hi", "--drafter", "caf\udce9"): "drafter",
    ("chat", "--system", "caf\udce9"): "--system",
    ("chat",): "the prompt is no UTF-8",
    ("bench", "--prompts", "caf\udce9"): "cannot read",
}


@pytest.mark.parametrize("line", BYTES, ids=lambda line: repr(" ".join(line)))
def test_bytes_that_are_no_text(
    line: tuple[str, ...], command: Command, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(True)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\xff\n"), "utf-8"))
    outcome = command(*line)
    assert outcome.code == 2
    assert outcome.err.count("paceline: error: ") == 1
    assert BYTES[line] in outcome.err.splitlines()[-1]


OUTPUTS = {
    "methods > /dev/full": (2, "No space left"),
    "methods >&-": (2, "standard output is closed"),
    "generate hi --top-p 0 2>&-": (2, None),
    "generate hi --top-p 0 2>/dev/full": (2, None),
    "generate - <&-": (2, "the prompt is empty"),
    "methods | true": (141, None),
    "methods 2>&- > /dev/null": (0, None),
}


@pytest.mark.parametrize("line", OUTPUTS)
def test_outputs_that_take_nothing(line: str) -> None:
    script = f"set -o pipefail; {sys.executable} -m paceline {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    code, said = OUTPUTS[line]
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (said is not None)
    assert (said or "") in done.stderr

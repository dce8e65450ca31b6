"""`generate` and `chat` over a table: what is printed where."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli import fakes
from tests.cli.conftest import Command, one_line, press_in_step
from tests.helpers.endless import endless_target

from paceline.cli import chat as chats
from paceline.cli.output import SourceColours
from paceline.engine.engine import Engine
from paceline.registry import loading
from paceline.registry.assembly import DEFAULT_DRAFTER
from paceline.registry.options import Options

pytestmark = pytest.mark.usefixtures("loads")

ANSI = re.compile("\x1b\\[[0-9;]*m")


def stats_keys() -> set[str]:
    return {
        "target_forwards",
        "committed_tokens",
        "block_efficiency",
        "acceptance_by_depth",
        "draft_seconds",
        "verify_seconds",
        "prefill_seconds",
        "tokens_per_second",
    }


def test_text_on_stdout_and_figures_on_stderr(command: Command) -> None:
    outcome = command("generate", "the fox", "--max-new-tokens", "40", "--nodes", "4")
    report = json.loads(command("generate", "the fox", "--max-new-tokens", "40", "--json").out)
    assert outcome.code == 0
    assert outcome.out == report["text"] + "\n"
    assert "40 tokens at" in outcome.err
    assert "tokens per forward" in outcome.err


def test_json_is_one_object_with_the_documented_keys(command: Command) -> None:
    outcome = command("generate", "fox", "--max-new-tokens", "9", "--json", "--logprobs", "2")
    report = json.loads(outcome.out)
    assert all(each.startswith("measuring ") for each in outcome.err.splitlines())
    assert set(report) == {
        "text",
        "token_ids",
        "prompt_tokens",
        "finish_reason",
        "drafting",
        "config",
        "stats",
        "logprobs",
    }
    assert stats_keys() <= set(report["stats"])
    assert len(report["token_ids"]) == len(report["logprobs"]) == 9
    assert [len(entry["top"]) for entry in report["logprobs"]] == [2] * 9
    assert report["finish_reason"] == "length"
    assert report["config"]["drafter"] == DEFAULT_DRAFTER
    assert report["config"]["max_new_tokens"] == 9


def test_options_reach_the_engine(command: Command, loads: list[Options]) -> None:
    arguments = "--temperature 1 --seed 3 --top-k 9 --top-p 0.9 --min-p 0.01 --ignore-eos"
    more = "--drafter recycling --verifier sample-match --nodes 5 --depth 3 --max-context 300"
    outcome = command("generate", "fox", "--json", *arguments.split(), *more.split())
    config = json.loads(outcome.out)["config"]
    assert loads[-1].max_context == 300
    assert config["drafter"] == "recycling"
    assert config["verifier"] == "sample-match"
    assert (config["nodes"], config["depth"], config["controller"]) == (5, 3, "fixed")
    assert (config["temperature"], config["seed"], config["top_k"]) == (1.0, 3, 9)


def test_a_context_too_short_to_measure_costs_in(command: Command) -> None:
    outcome = command("generate", "fox", "--max-context", "100", "--max-new-tokens", "5")
    assert outcome.code == 0


@pytest.mark.parametrize("drafter", ["prompt-lookup", "recycling"])
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_drafters_change_nothing(command: Command, drafter: str, temperature: str) -> None:
    options = ("--max-new-tokens", "60", "--temperature", temperature, "--json")
    plain = json.loads(command("generate", "fox", *options, "--drafter", "none").out)
    drafted = json.loads(command("generate", "fox", *options, "--drafter", drafter).out)
    assert drafted["token_ids"] == plain["token_ids"]


def test_a_loop_ends_the_text_if_asked(command: Command) -> None:
    options = ("--max-new-tokens", "400", "--json")
    endless = json.loads(command("generate", "fox", *options).out)
    ended = json.loads(command("generate", "fox", *options, "--stop-loops").out)
    assert (endless["finish_reason"], ended["finish_reason"]) == ("length", "loop")
    count = len(ended["token_ids"])
    assert 24 <= count < 400
    assert ended["token_ids"] == endless["token_ids"][:count]


def test_prompt_from_stdin(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(buffer=io.BytesIO(b"the fox"))
    monkeypatch.setattr(sys, "stdin", fake)
    piped = command("generate", "-", "--json", "--max-new-tokens", "5")
    assert (
        json.loads(piped.out)["token_ids"]
        == (
            json.loads(command("generate", "the fox", "--json", "--max-new-tokens", "5").out)[
                "token_ids"
            ]
        )
    )


def test_raw_leaves_the_chat_template_out(command: Command) -> None:
    options = ("fox", "--json", "--max-new-tokens", "2")
    counts = [
        json.loads(command("generate", *options, *more).out)["prompt_tokens"]
        for more in (("--raw",), (), ("--system", "Be brief."))
    ]
    assert counts == sorted(set(counts))


def test_colour_changes_nothing_but_colour(command: Command) -> None:
    options = ("generate", "fox", "--max-new-tokens", "80", "--nodes", "4")
    plain = command(*options)
    coloured = command(*options, "--color")
    assert ANSI.sub("", coloured.out) == plain.out
    assert coloured.out != plain.out
    assert DEFAULT_DRAFTER in coloured.err


def test_the_painter_follows_text_that_is_held_back() -> None:
    tokenizer = fakes.loaded().tokenizer
    tokens = tokenizer.encode("the fox")
    painter = SourceColours(tokenizer)
    sources = ["a", *([None] * (len(tokens) - 1))]
    assert painter.paint("", tokens, sources) == ""  # all of it held back
    text = painter.paint("the fox", [], [])
    assert ANSI.sub("", text) == "the fox"
    first = tokenizer.decode(tokens[:1])
    assert text.startswith(f"\x1b[32m{first}\x1b[0m")


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_what_there_is(
    command: Command, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    options = ("generate", "fox", "--max-new-tokens", "50", "--drafter", "none")
    whole = json.loads(command(*options, "--json").out)
    press_in_step(monkeypatch, 5)
    outcome = command(*options, *(["--json"] if as_json else []))
    assert outcome.code == 130
    if as_json:
        report = json.loads(outcome.out)
        assert report["finish_reason"] == "cancelled"
        assert report["token_ids"] == whole["token_ids"][:5]
    else:
        assert whole["text"].startswith(outcome.out[:-1])
        assert "5 tokens at" in outcome.err


def chat(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    *options: str,
    terminal: bool = False,
) -> list[str]:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stdin)
    outcome = command("chat", "--max-new-tokens", "6", *options)
    assert outcome.code == 0
    return [outcome.out, outcome.err]


def test_chat_keeps_the_conversation(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    genuine = Engine.add

    def add(self: Engine, prompt: list[dict[str, str]], *rest: Any, **options: Any) -> int:
        seen.append([message["role"] for message in prompt])
        return genuine(self, prompt, *rest, **options)

    monkeypatch.setattr(Engine, "add", add)
    text = "fox\n\ndog\n/reset\nfox\n/what\n/quit\nnever\n"
    out, err = chat(command, monkeypatch, text, "--system", "Be brief.")
    turn = ["system", "user"]
    assert seen == [turn, [*turn, "assistant", "user"], turn]
    assert len(out.strip()) > 0
    assert "anew" in err
    assert "/what is unknown" in err


def test_chat_says_that_the_context_is_full(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "fox\n" + "word " * 200 + "\nfox\n"
    monkeypatch.setattr("builtins.input", lambda _: sys.stdin.readline() or "/quit")
    options = ("--max-context", "400", "--nodes", "2")
    _, err = chat(command, monkeypatch, text, *options, terminal=True)  # a script would end
    assert "shorten the prompt (/reset starts anew)" in err
    assert err.count("6 tokens at") == 2  # the turn that failed left the others alone


def test_chat_says_that_an_answer_was_cut(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = len(fakes.loaded().tokenizer.chat([{"role": "user", "content": "fox"}]))
    _, err = chat(command, monkeypatch, "fox\n", "--max-context", str(length + 3), "--nodes", "2")
    assert "the context is full" in err


LOOKUP = ("--drafter", "prompt-lookup", "--nodes", "2")


def test_a_chat_without_an_end_never_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the prompt has beyond the context is forgotten, and turns go on from what is there."""
    target, cached = endless_target(), []
    shown = replace(fakes.loaded(), target=target)
    monkeypatch.setattr(loading, "load_model", lambda asked, **_: shown)
    genuine = chats._turn

    def turn(engine: Engine, *rest: Any) -> None:
        genuine(engine, *rest)
        cached.append(target.memory.blocks - target.memory.free)

    monkeypatch.setattr(chats, "_turn", turn)
    text = "fox\n" + "word " * 200 + "\n" + "dog " * 200 + "\nfox\n"
    _, err = chat(command, monkeypatch, text, "--endless", *LOOKUP)
    assert "context" not in err
    assert err.count("6 tokens at") == 4
    assert cached == [0, 0, 0, 0]  # what is kept for later turns is free


@pytest.mark.parametrize("name", [("chat",), ("generate", "the fox")])
def test_a_runtime_that_keeps_all_is_refused(name: tuple[str, ...], command: Command) -> None:
    outcome = command(*name, "--endless", "--nodes", "2")
    assert outcome.code == 2
    assert "lets no tokens leave texts of this model" in outcome.err


def test_a_text_without_an_end_is_as_long_as_it_is_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = replace(fakes.loaded(), target=endless_target())
    monkeypatch.setattr(loading, "load_model", lambda asked, **_: shown)
    options = ("--max-new-tokens", "800", "--ignore-eos", *LOOKUP, "--json")
    found = [
        json.loads(command("generate", "the fox", *options, *more).out)
        for more in ((), ("--endless",))
    ]
    assert [len(each["token_ids"]) for each in found] == [700 - found[0]["prompt_tokens"], 800]
    assert [each["config"]["endless"] for each in found] == [False, True]


def test_chat_says_that_an_answer_went_in_circles(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--max-new-tokens", "400", "--stop-loops", "--nodes", "2")
    _, err = chat(command, monkeypatch, "fox\n", *options)
    assert "the answer repeated itself" in err


@pytest.mark.real
def test_the_real_model_from_the_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the user's own cache
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paceline", "generate", "Count from one to ten."),
            *("--max-new-tokens", "24", "--json"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert 0 < len(report["token_ids"]) <= 24
    assert stats_keys() <= set(report["stats"])
    assert report["config"]["runtime"] == "cpu"
    assert report["config"]["precision"] == "file"
    assert report["text"].strip()


@pytest.fixture
def with_end(loads: list[Options], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's tokenizer names an end token, which constraints need."""
    made = fakes.loaded()
    made.tokenizer.eos_token_ids = (2,)
    monkeypatch.setattr(loading, "load_model", lambda *a, **k: made)


@pytest.mark.usefixtures("with_end")
def test_constrained_texts(command: Command, tmp_path: Path) -> None:
    schema = tmp_path / "answer.json"
    schema.write_text('{"enum": ["ok"]}')
    (tmp_path / "a.lark").write_text('start: "ab"')
    (tmp_path / "a.gbnf").write_text('root ::= "cd"')
    for options, text in (
        (("--json-schema", '{"const": 12}'), "12"),
        (("--json-schema", str(schema)), '"ok"'),
        (("--regex", "fox"), "fox"),
        (("--grammar", str(tmp_path / "a.lark")), "ab"),
        (("--grammar", str(tmp_path / "a.gbnf")), "cd"),
    ):
        assert command("generate", "the fox", *options).out == f"{text}\n"


@pytest.mark.usefixtures("with_end")
def test_wrong_constraints_are_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.lark").write_bytes(b"\xff")
    for options, named in (
        (("--regex", "a", "--json-schema", "{}"), "one of"),
        (("--json-schema", "nowhere.json"), "nowhere.json"),
        (("--json-schema", "false"), "allows no value"),
        (("--json-schema", "[]"), "must be an object"),
        (("--grammar", "a.txt"), "a.txt"),
        (("--grammar", str(tmp_path / "a.lark")), "a.lark"),
        (("--regex", "a", "--first-of", "2", "--temperature", "1"), "--first-of"),
    ):
        outcome = command("generate", "the fox", *options)
        assert one_line(outcome)
        assert named in outcome.err

"""`tune` over a table: what is saved, what is said, Ctrl-C, and options out of range."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from tests.cli import fakes
from tests.cli.conftest import Command, one_line

from paceline.cli import tune as module
from paceline.engine.engine import Engine
from paceline.lab.tuning.space import DEFAULT, Space
from paceline.lab.tuning.tuner import Tuner, tune_kinds
from paceline.registry import tuned_choice as tuned
from paceline.registry.tuned_choice import TEMPERATURE_KINDS, Configuration, TunedChoice

pytestmark = pytest.mark.usefixtures("loads")

TEXTS = ("the quick fox", "12 34", "lazy dog", "x + 1")
ROW = {
    *("drafter", "prompts", "speedup", "speedup_low", "speedup_high", "block_efficiency"),
    *("forward_cost", "rows_per_forward", "draft_share"),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second, however slow this machine is."""
    ticks = itertools.count()
    monkeypatch.setitem(tune_kinds.__kwdefaults__, "clock", lambda: float(next(ticks)))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps({"category": "qa", "turns": [text]}) for text in TEXTS]
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(prompts: Path, *more: str) -> tuple[str, ...]:
    options = ("--prompts", str(prompts), "--max-new-tokens", "6", "--time-limit", "100")
    return ("tune", *options, *more)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finals with an outcome that does not depend on this machine."""
    rows = [
        {
            **dict.fromkeys(ROW, 1.0),
            **{"drafter": name, "prompts": 2, "block_efficiency": tokens, "forward_cost": 1.2},
            **{"speedup": tokens / 1.2, "speedup_low": 1.1, "speedup_high": 2.0},
        }
        for name, tokens in (("recycling, fixed 7x4", 1.8), ("prompt-lookup, cost-model", 1.5))
    ]
    monkeypatch.setattr(Tuner, "finals", lambda self: rows)
    monkeypatch.setattr(Tuner, "decision", lambda self: Space().everything["recycling, fixed 7x4"])


def test_the_choice_is_saved_printed_and_explained(
    command: Command, prompts: Path, decided: None
) -> None:
    done = command(*arguments(prompts))
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "greedy:"
    assert done.out.splitlines()[1].startswith("configuration")
    assert "\nsampled:\n" in done.out
    assert done.out.count("drafter auto is now recycling, fixed 7x4, saved in") == 2
    choices = tuned.read(fakes.loaded().place)
    for kind in TEMPERATURE_KINDS:
        assert choices[kind].configuration == Configuration("recycling", "fixed", 7, 4)

    told = command("tune", "--explain")
    assert told.code == 0, told.err
    for kind in TEMPERATURE_KINDS:
        head = f"drafter auto is recycling, fixed 7x4 where decoding is {kind}, for table on"
        assert sum(line.startswith(head) for line in told.out.splitlines()) == 1
    assert "mine.jsonl, 6 tokens each, temperature 0\n" in told.out
    assert "mine.jsonl, 6 tokens each, temperature 1\n" in told.out
    assert "c(1) = 1.00" in told.out
    assert (
        "why: recycling, fixed 7x4 makes 1.80 tokens per forward, which costs 1.20 times a plain "
        "one: 1.50 times the speed of plain decoding. The next, prompt-lookup, cost-model, makes "
        "1.50 tokens per forward, which costs 1.20 times a plain one: 1.25 times the speed. So "
        "the winner has 20% more tokens per forward for 0% more cost per forward"
    ) in told.out
    assert told.out.count("\nprompt-lookup, cost-model  ") >= 1

    text = command("generate", "dog", "--json", "--max-new-tokens", "4")
    assert text.code == 0, text.err


def test_json_has_the_choice_and_its_evidence(
    command: Command, prompts: Path, decided: None
) -> None:
    done = json.loads(command(*arguments(prompts, "--json")).out)
    assert done["saved"] == str(tuned.path_of(fakes.loaded().place))
    assert set(done) == {*TEMPERATURE_KINDS, "saved"}
    assert done["sampled"]["configuration"]["drafter"] == "recycling"
    assert done["sampled"]["evidence"]["settings"]["temperature"] == 1
    evidence: dict[str, Any] = done["greedy"]["evidence"]
    assert evidence["settings"]["prompts"] == "mine.jsonl"
    assert evidence["settings"]["temperature"] == 0
    assert {row["drafter"] for row in evidence["search"]} > {DEFAULT.name}
    assert all(set(row) == ROW for row in evidence["search"] + evidence["finals"])
    again = json.loads(command("tune", "--explain", "--json").out)
    assert again == {**done, "saved": None}


@pytest.mark.parametrize("decoding", ["sampled", "both"])
def test_whatever_wins_here_is_a_configuration_that_runs(
    command: Command, prompts: Path, decoding: str
) -> None:
    asked = ("--decoding", decoding, "--temperature", "0.7", "--time-limit", "160")
    done = command(*arguments(prompts, "--json", *asked))
    assert done.code == 0, done.err
    result = json.loads(done.out)
    kinds = [kind for kind in TEMPERATURE_KINDS if decoding in (kind, "both")]
    assert [key for key in result if key != "saved"] == kinds
    choices = tuned.read(fakes.loaded().place)
    assert list(choices) == kinds
    for kind, choice in choices.items():
        found = result[kind]
        assert choice == TunedChoice(Configuration(**found["configuration"]), found["evidence"])
        assert all(row["prompts"] == 2 for row in found["evidence"]["finals"])
        temperature = 0.7 if kind == "sampled" else 0
        assert found["evidence"]["settings"]["temperature"] == temperature
    assert command("generate", "dog", "--max-new-tokens", "4", "--temperature", "1").code == 0


def test_tuning_one_kind_leaves_the_other_s_choice_alone(
    command: Command, prompts: Path, decided: None
) -> None:
    kept = TunedChoice(Configuration("prompt-lookup", "fixed", 5, 3), {})
    tuned.write(fakes.loaded().place, "greedy", kept)
    assert command(*arguments(prompts, "--decoding", "sampled", "--time-limit", "20")).code == 0
    choices = tuned.read(fakes.loaded().place)
    assert choices["greedy"] == kept
    assert choices["sampled"].configuration.drafter == "recycling"


def test_too_little_time_saves_nothing(command: Command, prompts: Path) -> None:
    done = command(*arguments(prompts, "--time-limit", "0.001"))
    assert done.code == 0
    assert "nothing was saved" in done.out
    assert tuned.read(fakes.loaded().place) == {}
    as_json = json.loads(command(*arguments(prompts, "--time-limit", "0.001", "--json")).out)
    nothing = {"configuration": None, "search": []}
    assert as_json == {**dict.fromkeys(TEMPERATURE_KINDS, nothing), "saved": None}


def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(
    command: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Engine.step
    seen = 0

    def step(self: Engine) -> Any:
        nonlocal seen
        seen += 1
        if seen == 300:
            signal.raise_signal(signal.SIGINT)
        return genuine(self)

    call = arguments(prompts, "--json", "--time-limit", "1h")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", step)
        first = command(*call)
    assert first.code == 130
    told = json.loads(first.out)
    assert set(told) == {"greedy", "saved"}  # the other kind had not begun
    search = {row["drafter"]: row["prompts"] for row in told["greedy"]["search"]}
    assert search
    assert told["saved"] is None

    second = json.loads(command(*arguments(prompts, "--json", "--time-limit", "0.001")).out)
    assert {row["drafter"]: row["prompts"] for row in second["greedy"]["search"]} == search
    other = command(*arguments(prompts, "--json", "--time-limit", "0.001", "--seed", "3"))
    assert json.loads(other.out)["greedy"]["search"] == []


def test_a_choice_once_saved_outlives_a_run_that_decides_nothing(
    command: Command, prompts: Path
) -> None:
    choice = TunedChoice(Configuration("recycling", "fixed", 5, 3), {})
    tuned.write(fakes.loaded().place, "greedy", choice)
    command(*arguments(prompts, "--time-limit", "0.001"))
    assert tuned.read(fakes.loaded().place) == {"greedy": choice}


def test_forgetting(command: Command, prompts: Path, decided: None, cache: Path) -> None:
    assert "nothing to forget" in command("tune", "--forget").out
    command(*arguments(prompts, "--time-limit", "20"))
    assert len(list((cache / "tuned").iterdir())) == 2
    assert command("tune", "--forget").out == "forgotten\n"
    assert list((cache / "tuned").iterdir()) == []


def test_there_is_nothing_to_explain_before_tuning(command: Command) -> None:
    done = command("tune", "--explain")
    assert one_line(done)
    assert "nothing is tuned for table at fp32 on this machine: run paceline tune" in done.err


def test_a_damaged_choice_is_named_and_set_aside(command: Command) -> None:
    path = tuned.write(fakes.loaded().place, "greedy", TunedChoice(Configuration("none"), {}))
    path.write_text("{")
    done = command("tune", "--explain")
    assert done.code == 2
    warning, error = done.err.splitlines()
    assert "set aside" in warning
    assert error.startswith("paceline: error: nothing is tuned")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--time-limit", "0"), "--time-limit '0' is no time"),
        (("--time-limit", "-3"), "--time-limit '-3' is no time"),
        (("--time-limit", "soon"), "--time-limit 'soon' is no time"),
        (("--time-limit", "5 m"), "is no time: write it as in 90, 90s, 5m, 1h"),
        (("--time-limit", "9" * 400), "is no time"),
        (("--explain", "--forget"), "do not go together"),
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "0"), "--temperature is of sampled decoding"),
        (("--decoding", "beam"), "--decoding 'beam' is unknown: use greedy, sampled or both"),
        (("--max-new-tokens", "0"), "max_new_tokens"),
        (("--runtime", "magic"), "runtime 'magic' is unknown"),
        (("--prompts", "nowhere.jsonl"), "cannot read prompts from nowhere.jsonl"),
    ],
)
def test_bad_options_are_one_line(command: Command, more: tuple[str, ...], says: str) -> None:
    done = command("tune", *more)
    assert one_line(done), done.err
    assert says in done.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5m", 90), ("2h", 7200)]
)
def test_time_limits(text: str, seconds: float) -> None:
    assert module._seconds(text) == seconds


def test_too_few_prompts(command: Command, prompts: Path) -> None:
    prompts.write_text(prompts.read_text().split("\n")[0] + "\n")
    done = command(*arguments(prompts))
    assert one_line(done)
    assert "tuning needs 4 prompts or more" in done.err


def test_a_prompt_that_does_not_fit(command: Command, prompts: Path) -> None:
    entry = {"question_id": 77, "category": "qa", "turns": ["word " * 900]}
    prompts.write_text(prompts.read_text() + json.dumps(entry) + "\n")
    done = command(*arguments(prompts))
    assert one_line(done)
    assert "question 77" in done.err


@pytest.fixture
def no_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "paceline.lab.tuning.search", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)


def test_without_optuna_one_line_says_what_to_install(
    command: Command, prompts: Path, no_optuna: None
) -> None:
    done = command(*arguments(prompts))
    assert one_line(done)
    assert done.err.endswith("pip install 'paceline[tune]'\n")
    tuned.write(fakes.loaded().place, "greedy", TunedChoice(Configuration("none"), {}))
    assert command("tune", "--forget").code == 0  # needs none

"""Engines by turns: order, figures, failures and resumption, with engines that are scripts."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.peers import __main__ as command
from benchmarks.peers import engines, table
from benchmarks.peers.timing import Batch, Configuration, Race, Samples, Turn

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.engine import Timing
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine
from paceline.lab.measure import results as records
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve

PLAIN = Configuration("own plain", "own", False, "plain", "own plain")
DRAFTS = Configuration("own drafts", "own", False, "drafts", "own plain")
SLOW = Configuration("slow plain", "slow", True, "plain", "slow plain")
FAST = Configuration("fast plain", "fast", True, "plain", "fast plain")
LOOKUP = Configuration("slow lookup", "slow", True, "lookup", "slow plain")


class Fake:
    """An engine that notes its requests, and dies at one of them."""

    def __init__(self, name: str, log: list[tuple[str, bool, int]], dies_at: int | None = None):
        self._name, self._log, self._dies_at = name, log, dies_at
        self._asked = 0

    def time(self, prompts: Batch, speculation: bool, tokens: int) -> Timing:
        self._asked += 1
        if self._asked == self._dies_at:
            raise EngineFailed("it is gone")
        self._log.append((self._name, speculation, prompts[0][0]))
        return Timing((7,) * tokens, 1.0, 0.5)


def timing(speed: float, tokens: Sequence[int] = (1, 2, 3, 4, 5), first: int = 1) -> Timing:
    """A timing of that many tokens per second."""
    return Timing(tuple(tokens), 0.25 + (len(tokens) - first) / speed, 0.25, first)


def test_every_configuration_answers_a_prompt_before_the_next_prompt() -> None:
    log: list[tuple[str, bool, int]] = []
    race = Race({"own": Fake("own", log), "fast": Fake("fast", log)}, [PLAIN, DRAFTS, FAST])
    turns = list(race.run([((10,),), ((20,),)], 2, 4))
    assert [(turn.round, turn.prompt) for turn in turns] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [prompt for _, _, prompt in log] == [10] * 3 + [20] * 3 + [10] * 3 + [20] * 3
    for start in range(0, 12, 3):
        assert {entry[:2] for entry in log[start : start + 3]} == {
            *(("own", False), ("own", True), ("fast", False))
        }
    assert [log[start][:2] for start in (0, 3, 6)] == [
        *(("own", False), ("own", True), ("fast", False))
    ], "another one begins each time"


def test_finished_turns_are_left_out() -> None:
    log: list[tuple[str, bool, int]] = []
    race = Race({"own": Fake("own", log)}, [PLAIN])
    done = frozenset({(0, 0), (1, 1)})
    turns = list(race.run([((10,),), ((20,),)], 2, 4, done))
    assert [(turn.round, turn.prompt) for turn in turns] == [(0, 1), (1, 0)]


def test_an_engine_that_fails_does_not_stop_the_others() -> None:
    log: list[tuple[str, bool, int]] = []
    race = Race({"own": Fake("own", log), "fast": Fake("fast", log, 2)}, [PLAIN, FAST])
    turns = list(race.run([((10,),)], 4, 4))
    assert [sorted(turn.timings) for turn in turns] == [
        ["fast plain", "own plain"],
        *[["own plain"]] * 3,
    ]
    assert race.failed == {"fast plain": "it is gone"}


def test_a_race_without_engines_ends() -> None:
    race = Race({"fast": Fake("fast", [], 1)}, [FAST])
    race.warm_up(((1,),))
    assert list(race.run([((10,),)], 3, 4)) == []


def test_speed_leaves_out_the_first_tokens_and_their_time() -> None:
    assert table.speed(Timing((1,) * 11, 3.0, 1.0)) == 5
    assert table.speed(Timing((1,) * 11, 3.0, 1.0, first_tokens=5)) == 3
    assert table.speed(Timing((1,), 1.0, 1.0)) == 0, "nothing came after the first"


def test_medians_ranges_and_ratios() -> None:
    everyone = [PLAIN, DRAFTS, SLOW, FAST, LOOKUP]
    # The machine runs at half speed in the last turns: ratios within a turn do not see that.
    turns = [
        Turn(
            0,
            prompt,
            {
                "own plain": timing(20 * pace),
                "own drafts": timing(60 * pace),
                "slow plain": timing(10 * pace),
                "fast plain": timing(40 * pace),
                "slow lookup": timing(50 * pace),
            },
        )
        for prompt, pace in enumerate((1, 1, 1, 0.5, 0.5))
    ]
    rows = {row["configuration"]: row for row in table.rows(turns, everyone)}
    own = rows["own drafts"]
    assert own["tokens_per_second"] == pytest.approx(60)
    assert (own["low"], own["high"]) == (pytest.approx(30), pytest.approx(60))
    assert (own["best_plain"], own["best"]) == ("fast plain", "slow lookup")
    assert own["to_best_plain"] == pytest.approx(1.5)
    assert own["to_best"] == pytest.approx(1.2)
    assert rows["own plain"]["to_best"] == pytest.approx(0.4)
    assert own["to_best_range"] == pytest.approx([1.2, 1.2])
    assert rows["slow lookup"]["to_best"] == pytest.approx(1)
    first = table.rows(turns, everyone, measured=lambda each: 1 / each.first_seconds)
    assert {row["tokens_per_second"] for row in first} == {4}
    assert own["samples"] == 5


def test_ratios_take_the_turns_that_both_have() -> None:
    turns = [
        Turn(0, 0, {"own plain": timing(20), "fast plain": timing(40)}),
        Turn(0, 1, {"own plain": timing(200)}),
    ]
    row = table.rows(turns, [PLAIN, FAST])[0]
    assert row["to_best"] == pytest.approx(0.5)


def test_without_peers_there_are_no_ratios() -> None:
    row = table.rows([Turn(0, 0, {"own plain": timing(20)})], [PLAIN, FAST])[0]
    assert (row["best"], row["to_best"], row["to_best_plain"]) == (None, None, None)
    assert row["to_best_range"] is None


def test_ratios_have_the_range_of_their_turns() -> None:
    turns = [
        Turn(0, n, {"own plain": timing(10 * n + 10), "fast plain": timing(10)}) for n in range(11)
    ]
    row = table.rows(turns, [PLAIN, FAST])[0]
    assert row["to_best"] == pytest.approx(6)
    assert row["to_best_range"] == pytest.approx([2, 10])


def test_identity_compares_texts_of_the_same_turn() -> None:
    texts = [(1, 2, 3), (1, 2, 4), (5, 6, 7), (5, 6, 7)]
    turns = [
        Turn(0, 0, {"own plain": timing(9, texts[0]), "own drafts": timing(9, texts[0])}),
        Turn(0, 1, {"own plain": timing(9, texts[0]), "own drafts": timing(9, texts[1])}),
        Turn(1, 0, {"own plain": timing(9, texts[2]), "own drafts": timing(9, texts[3])}),
        Turn(1, 1, {"own drafts": timing(9, texts[3])}),
    ]
    plain, drafts = table.rows(turns, [PLAIN, DRAFTS])
    assert plain["identical"] is None
    assert drafts["identical"] == pytest.approx(2 / 3)


def test_categories_are_compared_with_the_best_peer_of_all_prompts() -> None:
    turns = [
        Turn(0, 0, {"own plain": timing(20), "slow plain": timing(40), "fast plain": timing(10)}),
        Turn(0, 1, {"own plain": timing(20), "slow plain": timing(10), "fast plain": timing(80)}),
    ]
    rows = table.rows(turns, [PLAIN, SLOW, FAST])
    assert rows[0]["best"] == "fast plain"
    found = table.by_category(turns, rows, ["writing", "code"])
    own = {each["category"]: each for each in found if each["configuration"] == "own plain"}
    assert own["writing"]["to_best"] == pytest.approx(2)
    assert own["code"]["to_best"] == pytest.approx(0.25)


def test_samples_are_read_back_and_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    turns = [Turn(0, n, {"own plain": timing(20 + n, first=2)}) for n in range(3)]
    with Samples(tmp_path, {"tokens": 5}) as samples:
        for turn in turns:
            samples.add_turn(turn)
        samples.add_about("own", {"version": "1"})
    path = tmp_path / "samples.jsonl"
    path.write_text(path.read_text("utf-8") + '{"round": 1, "pro', "utf-8")
    with Samples(tmp_path, {"tokens": 5}) as again:
        assert again.turns == turns
        assert again.about == {"own": {"version": "1"}}
        again.add_turn(Turn(1, 0, {}))
    with Samples(tmp_path, {"tokens": 5}) as last:
        assert len(last.turns) == 4


def test_other_settings_are_refused(tmp_path: Path) -> None:
    with Samples(tmp_path, {"tokens": 5}):
        pass
    with pytest.raises(InvalidOption, match="other settings"):
        Samples(tmp_path, {"tokens": 6})


ANSWERING = f"""
import sys, time
sys.path.insert(0, {str(scripts())!r})
from answering import claim_output, serve
lines = claim_output()
def continuations(prompt, speculation, temperature, tokens, seeds):
    if len(prompt) > 4000:
        raise OSError("too long")
    time.sleep(0.002 * tokens)
    return [[5] * (tokens - (prompt == [9]))], None
serve(lines, {{"engine": "fake", "weights": "none"}}, continuations, lambda prompt, t: None)
"""
"""An engine that has no clock of its own, and cannot count after the prompt [9]."""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "engine.py"
    path.write_text(ANSWERING, encoding="utf-8")
    return [sys.executable, str(path)]


def test_an_engine_without_a_clock_is_timed_from_outside(program: list[str]) -> None:
    engine = JsonlEngine(program)
    found = engine.time(((1, 2),), True, 4)
    assert found.tokens == (5, 5, 5, 5)
    assert found.timed == "difference"
    assert found.first_seconds > 0
    with pytest.raises(EngineFailed, match="did not time 4 tokens"):
        engine.time(((9,),), False, 4)
    with pytest.raises(EngineFailed, match="too long"):
        engine.time(((1,) * 5000,), False, 4)
    engine.close()


def test_the_command(
    tmp_path: Path,
    program: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two engines of which one has no environment; the second run finds nothing left to do."""
    started: list[str] = []

    def start(name: str, source: object, threads: int, *flags: str, draft: None) -> JsonlEngine:
        started.append(name)
        if name == "genai":
            raise InvalidOption("engine 'genai' has no environment: make it")
        return JsonlEngine(program)

    monkeypatch.setattr(command, "start", start)
    monkeypatch.setattr(command, "resolve", lambda name: Model())
    monkeypatch.setattr(table, "speed", lambda timing: 10.0)
    out = tmp_path / "out"
    line = ["--only", "paceline", "genai", "llama-cpp", "paceline-draft", "--limit", "2"]
    line += ["--rounds", "2", "--max-new-tokens", "5", "--out", str(out), "--json"]
    assert command.main(line) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["not_run"] == {
        "genai": "engine 'genai' has no environment: make it",
        "paceline-draft draft model": "no draft model was given: --draft-model FILE",
    }
    assert {row["configuration"]: row["samples"] for row in results["rows"]} == {
        "paceline plain": 4,
        "paceline auto": 4,
        "llama-cpp plain": 4,
        "llama-cpp prompt lookup": 4,
    }
    assert results["about"]["llama-cpp"]["weights"] == "none"
    assert len(results["turns"]) == 4
    assert "| llama-cpp | plain | none | 10.0 |" in (out / "results.md").read_text("utf-8")
    assert "| writing | 1.00 | 1.00 |" in (out / "results.md").read_text("utf-8")
    assert "not run: genai" in (out / "results.md").read_text("utf-8")
    assert json.loads((out / "results.json").read_text("utf-8")) == results

    started.clear()
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "docs" / "results" / "data"
    data.mkdir(parents=True)
    assert command.main([*line, "--record", "peers-tiny"]) == 0
    assert started == []
    assert json.loads(capsys.readouterr().out)["rows"] == results["rows"]
    kept = records.load(data)["peers-tiny"]
    assert {tuple(row[:2]) for row in kept["rows"]} == {
        (row["engine"], row["mode"]) for row in results["rows"]
    }
    assert "Not run: genai" in kept["note"]

    assert command.main([*line[:-3], "--max-new-tokens", "6", "--out", str(out)]) == 2
    assert "other settings" in capsys.readouterr().err


class Model:
    """Enough of a model for prompts to be encoded."""

    name, fingerprint, path = "tiny", "0", Path("tiny.gguf")

    class Tokenizer:
        chat_template = None

        def prompt(self, text: str, raw: bool) -> list[int]:
            return [len(text) % 100, 1]

    def tokenizer(self) -> Model.Tokenizer:
        return self.Tokenizer()


def test_what_was_there_is_kept_when_a_run_is_interrupted(
    tmp_path: Path, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(JsonlEngine):
        asked = 0

        def time(self, prompt: object, speculation: bool, tokens: int) -> Timing:
            self.asked += 1
            if self.asked == 5:  # after warming up and a turn, in the middle of the next
                raise KeyboardInterrupt
            return super().time(prompt, speculation, tokens)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "start", lambda *_, **__: Interrupted(program))
    monkeypatch.setattr(command, "resolve", lambda name: Model())
    line = ["--only", "genai", "--limit", "3", "--rounds", "1", "--out", str(tmp_path / "out")]
    assert command.main(line) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert [row["samples"] for row in results["rows"]] == [1, 1]

    monkeypatch.setattr(command, "start", lambda *_, **__: JsonlEngine(program))
    assert command.main(line) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert [row["samples"] for row in results["rows"]] == [3, 3]


SAYS = """
import sys
sys.path.insert(0, SCRIPTS)
from answering import claim_output, serve
serve(claim_output(), {"flags": " ".join(sys.argv[1:])}, None, None)
"""


def test_what_engines_are_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "says.py"
    path.write_text(SAYS.replace("SCRIPTS", repr(str(scripts()))), encoding="utf-8")
    monkeypatch.setattr(
        engines.peers, "command", lambda engine, *given: [sys.executable, str(path), engine, *given]
    )
    model = tmp_path / "large.gguf"
    model.touch()
    source: Any = SimpleNamespace(path=model, fingerprint="f00d")
    started = engines.start("llama-cpp-draft", source, 2, "--context", "99", draft=Path("s.gguf"))
    flags = started.about()["flags"]
    started.close()
    assert flags.startswith(f"llama-cpp --draft model --model {model} --files ")
    assert "f00d --threads 2 --draft-model s.gguf --context 99 --drafts" in flags
    started = engines.start("llama-cpp", source, 2, draft=Path("s.gguf"))
    assert "draft" not in started.about()["flags"], "plain decoding has no use for it"
    started.close()
    with pytest.raises(InvalidOption, match="needs a draft model: give --draft-model"):
        engines.start("genai-draft", source, 2)
    source.path = tmp_path
    with pytest.raises(InvalidOption, match="reads GGUF files"):
        engines.start("llama-cpp", source, 2)


def test_a_draft_model_of_another_family_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(name: str) -> Model:
        model = Model()
        model.Tokenizer = type("Other", (Model.Tokenizer,), {"fingerprint": name})  # type: ignore[misc]
        return model

    monkeypatch.setattr(command, "resolve", found)
    line = ["--model", "a", "--draft-model", "b", "--only", "llama-cpp", "--limit", "1"]
    assert command.main(line) == 2
    assert "--draft-model b has another vocabulary than tiny" in capsys.readouterr().err


class Counting:
    """A model whose next token is the sum of all so far, or is wrong where that divides `wrong`."""

    def __init__(self, wrong: int = 10**9) -> None:
        self.tokens: list[int] = []
        self.length = self.passes = 0
        self._wrong = wrong

    def clear(self) -> None:
        self.truncate(0)

    def truncate(self, length: int) -> None:
        assert length <= self.length
        del self.tokens[length:]
        self.length = length

    def read(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        self.passes += 1
        rows = []
        for token in tokens:
            self.tokens.append(token)
            total = sum(self.tokens)
            rows.append(np.eye(50)[(total + (total % self._wrong == 0)) % 50])
        self.length = len(self.tokens)
        return np.array(rows if every else rows[-1:])

    prefill = read


@pytest.mark.parametrize("wrong", [1, 3, 10**9])
def test_llama_cpp_drafts_without_changing_the_text(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(scripts())
    peer = importlib.import_module("llama_cpp_python_peer")
    target = Counting()
    plain = peer.decode(target, [3, 4], 21)
    assert target.passes == 21
    target = Counting()
    drafted = peer.decode_drafted(target, Counting(wrong), [3, 4], 21, 4)
    assert drafted["tokens"] == plain["tokens"]
    assert target.passes == {1: 21, 10**9: 1 + 20 // 5}.get(wrong, target.passes)
    assert 5 <= target.passes <= 21
    assert 0 < drafted["first_seconds"] < drafted["seconds"]


def test_every_configuration_has_a_plain_one_and_a_script() -> None:
    known = {each.name: each for each in command.configurations(list(command.ENGINES))}
    for each in known.values():
        assert known[each.plain].mode == "plain"
        engine = command.ENGINES[each.engine][0]
        assert (scripts() / f"{engine.replace('-', '_')}_peer.py").exists()


@pytest.mark.real
def test_paceline_itself_answers_over_the_same_lines() -> None:
    """And does not know its answer from the round before."""
    engine = command.start("paceline", resolve(DEFAULT_MODEL), 2)
    plain = engine.time(((1, 4093, 198),), False, 12)
    drafted = engine.time(((1, 4093, 198),), True, 12)
    engine.close()
    assert plain.tokens == drafted.tokens
    assert plain.timed == "own"

"""`bench methods`: a line for every method, rows over a table, Ctrl-C, resumption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Command, one_line, press_in_step

from paceline.drafters.recycling import Recycling
from paceline.lab.measure import methods, results
from paceline.networks.weights import write_tensors
from paceline.registry import table
from paceline.registry.options import Options

SHORT = ("bench", "methods", "--limit", "2", "--max-new-tokens", "12", "--batch", "2")
FEW = (*SHORT, "--only", "recycling,gumbel,medusa")


def test_every_method_has_a_line() -> None:
    used = {method for line in methods.lines() for method in line.methods()}
    kinds: tuple[table.Kind, ...] = ("drafter", "growth", "verifier", "controller")
    # Baselines, and what a line has where it says nothing.
    silent = {("drafter", "none"), ("controller", "fixed")}
    registered = {(kind, name) for kind in kinds for name in table.names(kind)}
    assert {each for each in registered - silent - used if "test" not in each[1]} == set()
    systems = [line.system for line in methods.lines()]
    assert len(systems) == len(set(systems))


@pytest.mark.parametrize("line", methods.lines(), ids=lambda line: line.system)
def test_lines_name_what_there_is(line: methods.Claim) -> None:
    assert line.claim
    assert line.why
    assert line.guarantee.startswith(("lossless", "lossy"))
    assert methods.prompts(line, 3)
    for draft in (True, False):
        Options().check(line.named(draft))
    for kind, name in line.methods():
        table.find(kind, name)


def test_rows_are_measured_beside_plain_decoding(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    out, record = tmp_path / "out", tmp_path / "methods-table.json"
    done = command(*FEW, "--out", str(out), "--record", str(record), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["complete"]
    assert found["differing"] == []
    cells = {(each["system"], each["sizes"], each["batch"]): each for each in found["cells"]}
    recycling = cells["Token Recycling", "paper", 1]
    assert recycling["identical"] == 1
    assert recycling["rows_per_forward"] > 2
    assert cells["Token Recycling", "here", 2]["prompts"] == 2
    # No draft model, and no weights for a table: said, and the others are measured all the same.
    assert "eagle3" in cells["Gumbel coupling", "here", 1]["error"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Token Recycling" in page
    assert "not run: " in page
    result = json.loads(record.read_text(encoding="utf-8"))
    results.validate("methods-table", result)
    assert [row[0] for row in result["rows"]][:1] == ["Token Recycling"]
    told = dict(zip(result["columns"], result["rows"][0], strict=True))
    assert "[" in told["speed-up"]
    assert told["in a batch"].endswith(", batch 2")
    assert "[" not in told["in a batch"], "prompts of a batch share their time"
    assert told["other temperature"].endswith("], T = 1")
    assert told["identical"] == "100%"


def test_options_of_a_lines_method(command: Command, loads: list[Options], tmp_path: Path) -> None:
    given = ("--with", "lookahead:length=2", "--with", "judge:head=folder/head.safetensors")
    record = tmp_path / "methods-table.json"
    words = (*SHORT, "--only", "lookahead,judge", "--json")
    found = json.loads(command(*words, *given, "--record", str(record)).out)
    assert found["about"]["with"] == list(given[1::2])
    lookahead = next(each for each in found["cells"] if each["system"] == "Lookahead Decoding")
    bare = json.loads(command(*words).out)["cells"][0]
    assert lookahead["rows_per_forward"] != bare["rows_per_forward"]
    result = json.loads(record.read_text(encoding="utf-8"))
    shown = [row[1] for row in result["rows"]]
    assert "`lookahead:length=2 --nodes 32`" in shown
    assert any("judge:head=head.safetensors" in each for each in shown), "files without folders"
    assert "--with lookahead:length=2" in result["command"]
    [alone] = methods.chosen(["length="], [], ["lookahead:length=2"])
    assert alone.system == "Lookahead Decoding"
    for wrong in ("lookahead", "none-such:a=1"):
        answer = command(*words, "--with", wrong)
        assert one_line(answer)
        assert wrong in answer.err


def test_lines_say_how_long_weights_were_trained(tmp_path: Path) -> None:
    tensors = {"any": np.zeros(1, dtype=np.float32)}
    write_tensors(tmp_path / "new.safetensors", tensors, {"tokens": "12345"}, "")
    name = f"falcon:growth=dynamic,weights={tmp_path / 'new.safetensors'}"
    assert methods.trained_on(name, "") == 12345
    assert methods.trained_on("falcon:growth=dynamic", "2807449613cbb055") is None
    assert methods.trained_on("suffix-automaton>eagle3", "2807449613cbb055") == 778249
    [falcon] = methods.chosen(["falcon"], [])
    cell = methods.Measurement(falcon.system, methods.HERE, 1)
    figures = {
        "acceptance_by_depth": [0.5],
        "block_efficiency": 1.5,
        "rows_per_forward": 2.0,
        "cost": 1.1,
        "identical": 1.0,
        "speedup": None,
        "trained": 12345,
    }
    [row] = methods.rows([falcon], {cell: figures}, draft=False)
    assert row[-1] == f"trained on 12,345 tokens; {falcon.why}"


def test_both_temperatures_but_for_a_rule_that_is_greedy(
    command: Command, loads: list[Options]
) -> None:
    done = command(*SHORT, "--only", "jacobi,greedy rule", "--json")
    found = json.loads(done.out)
    assert {(each["system"], each["turned"]) for each in found["cells"]} == {
        ("Speculative Jacobi Decoding", False),
        ("Speculative Jacobi Decoding", True),
        ("Greedy rule", False),
    }
    jacobi, greedy = methods.chosen(["jacobi", "greedy rule"], [])
    own, turned = (
        methods.Measurement(jacobi.system, methods.HERE, 1, each) for each in (False, True)
    )
    assert not methods.exact(jacobi, own), "p/q keeps the distribution, not the text"
    assert methods.exact(jacobi, turned)
    assert methods.exact(greedy, own)


def test_ctrl_c_and_the_same_command_again(
    command: Command,
    loads: list[Options],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    words = (*SHORT, "--only", "recycling,lookup", "--out", str(tmp_path), "--json")
    with monkeypatch.context() as patch:
        press_in_step(patch, 80)
        stopped = command(*words)
    assert stopped.code == 130
    first = json.loads(stopped.out)
    kept = (tmp_path / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    assert not first["complete"]
    assert 0 < len(first["cells"]) == len(kept) - 1
    again = json.loads(command(*words).out)
    assert again["complete"]
    assert again["cells"][: len(first["cells"])] == first["cells"]
    assert one_line(command(*words, "--limit", "3"))


def test_a_text_that_differs_is_told(
    command: Command, loads: list[Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = methods.measure

    def spoilt(*given: object, **named: object) -> object:
        found = genuine(*given, **named)  # type: ignore[arg-type]
        return found and {**found, "identical": 0.5}

    monkeypatch.setattr(methods, "measure", spoilt)
    done = command(*SHORT, "--only", "cacheback")
    assert done.code == 1
    assert "Cacheback: a text differs" in done.err


def test_words_that_no_line_has(command: Command, loads: list[Options]) -> None:
    done = command(*SHORT, "--only", "nonsense")
    assert one_line(done)
    assert "nonsense" in done.err
    assert "EAGLE-3" in done.err


def test_a_method_that_breaks_down_leaves_the_others_theirs(
    command: Command,
    loads: list[Options],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    survived: list[str],
) -> None:
    words = (*SHORT, "--only", "recycling,lookup", "--out", str(tmp_path), "--json")
    with monkeypatch.context() as patch:
        # The engine survives it, and decodes plainly: no figure of the method.
        patch.setattr(Recycling, "propose", _broken)
        done = command(*words)
    assert "no draft" in str(survived)
    survived.clear()
    assert done.code == 1
    found = json.loads(done.out)
    assert list(found["failed"]) == ["Token Recycling"]
    assert "drafter failed" in found["failed"]["Token Recycling"]
    assert any("identical" in each for each in found["cells"])
    with monkeypatch.context() as patch:
        patch.setattr(methods, "warm_up", _broken)
        done = command(*words)
        assert done.code == 1
        assert json.loads(done.out)["failed"] == {"Token Recycling": "ValueError: no draft"}
    again = command(*words)
    assert again.code == 0, "what failed is tried again"
    assert json.loads(again.out)["complete"]


def _broken(*given: object, **named: object) -> None:
    raise ValueError("no draft")


def test_every_configuration_is_taken_by_a_model_or_says_what_it_needs(
    command: Command, loads: list[Options]
) -> None:
    """Options, sizes and rules of each line go together: with a draft model, most of them run."""
    words = ("--limit", "1", "--max-new-tokens", "4", "--batch", "1", "--draft-model", "table")
    done = command("bench", "methods", *words, "--json")
    found = json.loads(done.out)
    assert found["failed"] == {}
    assert done.code == 0
    errors = {each["system"]: each["error"] for each in found["cells"] if "error" in each}
    wanting = ("trained network", "needs", "layer", "fp32")
    assert {name: e for name, e in errors.items() if not any(w in e for w in wanting)} == {}
    assert len(found["cells"]) - len(errors) > 60

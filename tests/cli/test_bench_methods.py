"""`bench methods`: a line for every method, rows over a table, Ctrl-C, what is old."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Command, one_line

from paceline.drafters.recycling import Recycling
from paceline.lab.measure import claims, lines, methods, results
from paceline.lab.measure.claims import Claim
from paceline.lab.measure.machine import Others
from paceline.networks.weights import write_tensors
from paceline.registry import table
from paceline.registry.options import Options

SHORT = ("bench", "methods", "--limit", "2", "--max-new-tokens", "12", "--batch", "2")
FEW = (*SHORT, "--only", "recycling,gumbel,medusa")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else uses the machine."""
    monkeypatch.setattr(Others, "busy", False)


def test_every_method_has_a_line() -> None:
    used = {method for line in claims.every_line() for method in line.methods()}
    kinds: tuple[table.Kind, ...] = ("drafter", "growth", "verifier", "controller")
    # Baselines, and what a line has where it says nothing.
    silent = {("drafter", "none"), ("controller", "fixed")}
    registered = {(kind, name) for kind in kinds for name in table.names(kind)}
    assert {each for each in registered - silent - used if "test" not in each[1]} == set()
    systems = [line.system for line in claims.lines()]
    assert len(systems) == len(set(systems))


@pytest.mark.parametrize("line", claims.lines(), ids=lambda line: line.system)
def test_lines_name_what_there_is(line: Claim) -> None:
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
    done = command(*FEW, "--out", str(tmp_path), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["differing"] == []
    cells = {(each["system"], each["sizes"], each["batch"]): each for each in found["cells"]}
    recycling = cells["Token Recycling", "paper", 1]
    assert recycling["identical"] == 1
    assert recycling["rows_per_forward"] > 2
    assert cells["Token Recycling", "here", 2]["prompts"] == 2
    # No draft model, and no weights for a table: said, and the others are measured all the same.
    assert "eagle3" in cells["Gumbel coupling", "paper", 1]["error"]
    result = json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))
    results.validate("methods", result)
    assert [row[0] for row in result["rows"]][:1] == ["Token Recycling"]
    told = dict(zip(result["columns"], result["rows"][0], strict=True))
    assert "[" in told["speed-up"]
    assert told["in a batch"].endswith(", batch 2")
    assert "[" not in told["in a batch"], "prompts of a batch share their time"
    assert told["other temperature"].endswith("], T = 1")
    assert told["identical"] == "100%"
    assert told["measured"].startswith(told["timed"])
    assert told["seconds"] > 0


def test_options_of_a_lines_method(command: Command, loads: list[Options], tmp_path: Path) -> None:
    given = ("--with", "lookahead:length=2", "--with", "judge:head=folder/head.safetensors")
    words = (*SHORT, "--only", "lookahead,judge", "--json")
    found = json.loads(command(*words, *given, "--out", str(tmp_path)).out)
    lookahead = next(each for each in found["cells"] if each["system"] == "Lookahead Decoding")
    bare = json.loads(command(*words).out)["cells"][0]
    assert lookahead["rows_per_forward"] != bare["rows_per_forward"]
    result = json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))
    shown = [row[1] for row in result["rows"]]
    assert "`lookahead:length=2 --nodes 32`" in shown
    assert any("judge:head=head.safetensors" in each for each in shown), "files without folders"
    assert "--with lookahead:length=2" in result["command"]
    several = "fuse+eagle3:growth=iid-2+datastore:index=/of/it --nodes 8"
    assert methods.folders(several) == several.replace("/of/", "")
    of = methods.with_options(claims.lines(), ["lookahead:length=2"])
    [alone] = claims.chosen(of, ["length="], [])
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
    [falcon] = claims.chosen(claims.lines(), ["falcon"], ["tree"])
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
    assert row[-1] == "trained on 12,345 tokens"


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
    jacobi, greedy = claims.chosen(claims.lines(), ["jacobi", "greedy rule"], [])
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
    words = (*SHORT, "--only", "token recycling,prompt lookup", "--out", str(tmp_path), "--json")
    genuine = methods.measure

    def pressed(loaded: object, line: Claim, *given: object, **named: object) -> object:
        if line.system == "Token Recycling":
            signal.raise_signal(signal.SIGINT)
        return genuine(loaded, line, *given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(methods, "measure", pressed)
        stopped = command(*words)
    assert stopped.code == 130
    assert not json.loads(stopped.out)["complete"]
    rows = json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))["rows"]
    assert [row[0] for row in rows] == ["Prompt Lookup Decoding"]
    again = json.loads(command(*words).out)
    assert again["complete"]
    assert {each["system"] for each in again["cells"]} == {"Token Recycling"}
    assert json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))["rows"][0] == rows[0]
    nothing = json.loads(command(*words).out)
    assert nothing["cells"] == nothing["left"] == []
    other = command(*words, "--limit", "3")
    assert one_line(other)
    assert "2 prompts" in other.err
    assert "3 prompts" in other.err


def test_what_is_old_is_measured_again_and_the_quickest_first(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    words = (
        *SHORT,
        "--only",
        "token recycling,prompt lookup,stand",
        "--out",
        str(tmp_path),
        "--json",
    )
    assert command(*words).code == 0
    path = tmp_path / "methods.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    columns = result["columns"]
    for row in result["rows"]:
        row[columns.index("seconds")] = {"STAND": 1.0, "Token Recycling": 2.0}.get(row[0], 3.0)
        if row[0] == "Prompt Lookup Decoding":
            row[columns.index("digest")] = "of other code"
        if row[0] == "STAND":
            row[1] = "`stand --nodes 8`"
    path.write_text(results.dump(result), encoding="utf-8")
    left = json.loads(command(*words, "--list").out)["left"]
    assert left == [
        ["STAND", "before the last change", 1],
        ["Prompt Lookup Decoding", "before the last change", 3],
    ]
    short = json.loads(command(*words, "--minutes", "0.02").out)
    assert [row[0] for row in short["left"]] == ["Prompt Lookup Decoding"], "3 s are over 1.2"
    assert json.loads(command(*words).out)["left"] == []


def test_a_busy_machine_has_no_speed_and_leaves_the_last_one(
    command: Command, loads: list[Options], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = (*SHORT, "--only", "recycling", "--out", str(tmp_path), "--json")
    path = tmp_path / "methods.json"

    def row() -> dict[str, object]:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(zip(found["columns"], found["rows"][0], strict=True))

    monkeypatch.setattr(Others, "busy", True)
    command(*words)
    assert (row()["speed-up"], row()["c(n)"], row()["timed"]) == ("", "", "")
    assert row()["identical"] == "100%"
    path.unlink()
    monkeypatch.setattr(Others, "busy", False)
    command(*words)
    before = row()
    text = path.read_text(encoding="utf-8").replace(str(before["digest"]), "of other code")
    path.write_text(text.replace(str(before["timed"]), "2026-01-02"), encoding="utf-8")
    monkeypatch.setattr(Others, "busy", True)
    command(*words)
    assert row()["speed-up"] == before["speed-up"]
    assert row()["timed"] == "2026-01-02"
    assert row()["measured"] != row()["timed"]
    assert row()["digest"] == before["digest"]
    text = path.read_text(encoding="utf-8").replace("greedy, mix", "greedy, mix, 99 tokens")
    path.write_text(text, encoding="utf-8")
    (tmp_path / "methods.json").write_text(
        text.replace(str(before["digest"]), "of other code"), encoding="utf-8"
    )
    command(*words)
    assert row()["mode"] == before["mode"]
    assert row()["speed-up"] == "", "the last speeds were of another mode"


def test_a_line_that_another_file_has_of_the_same_model_is_not_missing(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    words = (*SHORT, "--only", "token recycling,prompt lookup", "--out", str(tmp_path), "--json")
    command(*words, "--skip", "lookup")
    listed = (*words, "--name", "others", "--list")
    missing = ["Prompt Lookup Decoding", "never", 60]
    assert json.loads(command(*listed).out)["left"] == [missing]
    path = tmp_path / "methods.json"
    text = path.read_text(encoding="utf-8")
    for other in (text.replace('"with": "table', '"with": "chair'), text.replace("12", "13")):
        path.write_text(other, encoding="utf-8")
        assert len(json.loads(command(*listed).out)["left"]) == 2, "another model, or old"


def test_a_file_with_a_title_of_its_own_keeps_what_it_says(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    words = (*SHORT, "--only", "token recycling", "--out", str(tmp_path))
    path, told = tmp_path / "methods.json", ("title", "command", "note")

    def of_file() -> dict[str, object]:
        return dict(json.loads(path.read_text(encoding="utf-8")))

    assert command(*words).code == 0
    fresh = of_file()
    old = path.read_text(encoding="utf-8").replace(str(fresh["rows"][0][-1]), "of other code")  # type: ignore[index]
    path.write_text(old.replace('"command": "', '"command": "then '), encoding="utf-8")
    assert command(*words).code == 0
    assert of_file() == {**fresh, "rows": of_file()["rows"]}
    own = {"title": "Networks of ten minutes", "command": "train; bench", "note": "None ships."}
    changed = {**json.loads(old), **own}
    path.write_text(results.dump(changed), encoding="utf-8")
    assert command(*words).code == 0
    assert {key: of_file()[key] for key in told} == own
    assert of_file()["rows"] != changed["rows"], "measured again"
    path.write_text(results.dump({k: v for k, v in changed.items() if k != "note"}), "utf-8")
    assert command(*words).code == 0
    assert "note" not in of_file()


def test_several_texts_of_a_prompt_stand_together() -> None:
    line = replace(claims.lines()[0], work="reasoning", samples=3)
    found = methods.prompts(line, 5)
    assert [each.sample for each in found] == [0, 1, 2, 0, 1]
    assert found[0].turns == found[2].turns != found[3].turns
    assert line.mode.endswith("reasoning, 3 texts of each")


def test_a_canvas_is_measured_beside_another_sampler(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lines, "TASKS", {"copy": lines.TASKS["copy"]})
    words = (*SHORT, "--only", "freedave,threshold and prefix", "--out", str(tmp_path), "--json")
    found = json.loads(command(*words).out)
    assert found["complete"]
    result = json.loads((tmp_path / "methods-canvas.json").read_text(encoding="utf-8"))
    fast, exact = (dict(zip(result["columns"], row, strict=True)) for row in result["rows"])
    assert exact["system"] == "FreeDave"
    assert exact["identical"] == "100%"
    assert exact["right"] == exact["right beside"]
    assert 1.2 < float(exact["fewer forwards"].split(" ")[0]) < 3
    assert float(exact["fewer rows"].split(" ")[0]) < 1, "drafts are rows, too"
    assert "[" in exact["speed-up"]
    assert float(fast["fewer rows"].split(" ")[0]) > float(fast["fewer forwards"].split(" ")[0])
    assert fast["mode"] == "lists-mdm, beside counts, block 8, cache none"


def test_a_model_that_fills_no_canvas_says_so(
    command: Command, loads: list[Options], tmp_path: Path
) -> None:
    words = (*SHORT, "--only", "freedave", "--out", str(tmp_path), "--json")
    assert json.loads(command(*words).out)["cells"] == []
    result = json.loads((tmp_path / "methods-canvas.json").read_text(encoding="utf-8"))
    [row] = result["rows"]
    assert row[result["columns"].index("note")].startswith("not run: ")


def test_a_line_of_one_prompt_is_not_kept(command: Command, tmp_path: Path) -> None:
    answer = command(*SHORT, "--limit", "1", "--out", str(tmp_path))
    assert one_line(answer)
    assert "interval needs two prompts" in answer.err


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

"""The table has a line for every claim, and a line knows if it is older than its code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.core.expressions import parse
from paceline.errors import InvalidOption
from paceline.lab.measure import claims, digests, machine, results, systems
from paceline.lab.measure.claims import CanvasClaim, Claim, OtherClaim, every_line
from paceline.registry import table
from paceline.registry.samplers import make_plan, make_sampler

ROOT = Path(__file__).parents[3]
FOUND = results.load(ROOT / "docs" / "results" / "data")
WITH = "table 0123, 2 prompts"


def line_of(**changes: Any) -> Claim:
    given = {"system": "S", "claim": "2x", "why": "-", "drafter": "recycling", "nodes": 8}
    return Claim(**{**given, **changes})


def row_of(line: claims.TableLine, **changes: Any) -> dict[str, Any]:
    configuration = line.shown(False)
    row = {"configuration": f"`{configuration}`", "note": "", "identical": "100%"}
    row |= {"digest": systems.made_from(line, configuration, WITH)}
    return row | changes


def test_every_claim_has_one_line_and_every_row_a_claim() -> None:
    names = [line.system for line in every_line()]
    assert len(names) == len(set(names))
    shown = [row[0] for rows in systems.table(FOUND).values() for row in rows]
    assert sorted(shown) == sorted(names)
    rows = {system for result in FOUND.values() for system in systems.rows_of(result)}
    assert rows - set(names) == set()
    assert len(rows) > 90
    assert {line.result for line in every_line()} - {None} - set(FOUND) <= {"endless-135m"}


def test_a_row_of_today_has_the_configuration_of_its_claim() -> None:
    known = {line.system: line for line in every_line()}
    seen = 0
    for result in FOUND.values():
        for system, row in systems.rows_of(result).items():
            line = known[system]
            if not systems.state(line, row, result["with"]):
                assert systems._is_todays(line, row["configuration"].strip("`"))
                assert row["mode"] == line.mode
                seen += 1
    assert seen


@pytest.mark.parametrize("line", claims.canvases(), ids=lambda line: line.system)
def test_lines_of_canvases_name_what_there_is(line: CanvasClaim) -> None:
    for setting in line.settings:
        if setting.sampler != "autoregressive":
            make_sampler(setting.sampler)
        if setting.cache is not None:
            make_plan(setting.cache)
    assert line.claim


def test_every_sampler_and_plan_has_a_line() -> None:
    used = {method for line in every_line() for method in line.methods()}
    for line in claims.canvases():
        used |= {("sampler", each.name) for each in parse(line.beside, "sampler").methods()}
    kinds: tuple[table.Kind, ...] = ("sampler", "cache", "decoder", "stream")
    registered = {(kind, name) for kind in kinds for name in table.names(kind)}
    silent = {("cache", "none"), ("cache", "exact"), ("decoder", "autoregressive")}
    assert {each for each in registered - used - silent if "test" not in each[1]} == set()


def test_a_claim_needs_a_source() -> None:
    assert line_of().source.endswith("arXiv:2408.08696")
    assert line_of(paper="P").source == "P"
    bare = OtherClaim(system="S", claim="2x", why="-")
    with pytest.raises(InvalidOption, match="S claims '2x' and names no paper"):
        _ = bare.source
    for claim in ("no paper: an idea", "no figure at hand"):
        assert OtherClaim(system="S", claim=claim, why="-").source == ""
    for line in every_line():
        assert line.source or claims.NO_CLAIM.match(line.claim)


def test_a_draft_models_line_is_of_its_rule() -> None:
    assert "arXiv:2403.10444" in line_of(drafter="{draft}", verifier="block").source
    assert "2405.19715" in line_of(drafter="{draft}", controller="confidence").source
    assert "2506.04708" in line_of(drafter="stand", verifier="recursive-distinct").source


def test_a_row_is_old_after_another_configuration_code_or_prompts() -> None:
    line = line_of()
    assert systems.state(line, row_of(line), WITH) == ""
    assert systems.state(line, None, WITH) == "never"
    assert systems.state(line, row_of(line, note="not run: no"), WITH) == "not run"
    for other in (
        row_of(line, configuration="`recycling --nodes 9`"),
        row_of(line, digest="0123456789ab"),
        row_of(line, digest=""),
    ):
        assert systems.state(line, other, WITH) == "before the last change"
    assert systems.is_old(line, row_of(line), WITH + ", batch 2")
    assert systems.is_old(line_of(nodes=9), row_of(line), WITH)
    assert systems.is_old(line_of(temperature=1.0), row_of(line), WITH)
    assert systems.is_old(line_of(work="edits"), row_of(line), WITH)
    assert not systems.is_old(line_of(claim="3x", why="other words"), row_of(line), WITH)


def test_weights_are_compared_where_they_are_there() -> None:
    line = line_of(drafter="eagle3", nodes=None)
    known = systems.made_from(line, "eagle3", "smollm2-135m 3d06c58ec61e9445, x")
    code, _, weights = known.partition(" ")
    assert len(weights) == 6
    unknown = systems.made_from(line, "eagle3", "smollm2-135m 0, x")
    assert " " not in unknown
    row = row_of(line)
    given = "smollm2-135m 3d06c58ec61e9445, x"
    assert not systems.is_old(line, row | {"digest": known}, given)
    assert systems.is_old(line, row | {"digest": f"{code} abcdef"}, given)
    assert not systems.is_old(line, row | {"digest": code}, given), "not installed then"
    ran = row | {"configuration": "`eagle3:weights=mine.safetensors`"}
    ran["digest"] = systems.made_from(line, "eagle3:weights=mine.safetensors", given)
    assert not systems.is_old(line, ran, given)


def test_a_digest_is_of_what_a_method_imports_and_not_of_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src" / "paceline"
    source = ROOT / "src" / "paceline"
    for name in ("methods", "drafters"):
        shutil.copytree(source / name, package / name)
    monkeypatch.setattr(digests, "_ROOTS", (package.parent, tmp_path))
    monkeypatch.setattr(digests, "_PACKAGE", package)
    digests._with_imports.cache_clear()
    digests._shape.cache_clear()

    def digest(name: str) -> str:
        digests._shape.cache_clear()
        return digests.code([("drafter", name)], [])

    stand, swift, automaton = digest("stand"), digest("swift"), digest("suffix-automaton")
    file = package / "methods" / "statistics" / "stand.py"
    file.write_text(file.read_text().replace('"""', '"""Other words. ', 1) + "\n# A comment.\n")
    assert digest("stand") == stand, "docstrings and comments are no code"
    file.write_text(file.read_text() + "\nMORE = 1\n")
    assert digest("stand") != stand
    shared = package / "methods" / "layers" / "search.py"
    shared.write_text(shared.read_text() + "\nMORE = 1\n")
    assert digest("swift") != swift, "a module that it imports of its own house"
    assert digest("suffix-automaton") == automaton
    script = tmp_path / "benchmarks" / "some.py"
    script.parent.mkdir()
    text = "import os\n\ndef measure():\n    return 1\n\ndef main():\n    return 2\n"

    def script_digest(words: str) -> str:
        script.write_text(words)
        digests._shape.cache_clear()
        return digests.code([], ["benchmarks.some"])

    written = script_digest(text)
    told = text.replace("import os", "import sys\n\nCOLUMNS = 1").replace("return 2", "return 3")
    assert script_digest(told) == written, "how figures are told is not what they were made from"
    assert script_digest(text.replace("return 1", "return 3")) != written
    digests._with_imports.cache_clear()
    digests._shape.cache_clear()


def test_the_table_says_what_is_old_what_ran_once_and_what_was_not_timed(tmp_path: Path) -> None:
    line = next(each for each in claims.lines() if each.system == "Token Recycling")
    columns = (*systems.COMMON, "mode", "tokens/forward", *systems.SPEEDS[:2], "identical")
    columns = (*columns, "note", *systems.STATE)
    digest = systems.made_from(line, line.shown(False), WITH)
    shown = f"`{line.shown(False)}`"
    state = ("2026-01-02 abc", "2026-01-02", 3.0, digest)
    cells = (line.system, shown, "greedy, mix", "2.10", "0.80 [0.70, 0.90]", "1.20", "100%", "")

    def here(*changed: Any) -> list[str]:
        row = dict(zip(columns, (*cells, *state), strict=True)) | dict(changed)
        result = {"columns": list(columns), "rows": [list(row.values())], "with": WITH}
        rows = [row for rows in systems.table({"one": result}).values() for row in rows]
        return next(row for row in rows if row[0] == line.system)

    told = here()
    assert told[2] == (
        "2.10 tokens/forward; on table; 0.80 [0.70, 0.90] times plain; "
        "sized here 1.20 (one run); identical 100%"
    )
    assert told[4] == "arXiv:2408.08696"
    assert told[-1] == "2026-01-02"
    assert here(("digest", "x"))[-1] == "2026-01-02, before the last change"
    assert here(("timed", "2025-12-31"))[-1] == "2026-01-02, timed 2025-12-31"
    assert here(("timed", ""))[-1] == "2026-01-02, not timed: a busy machine"
    assert "(one run)" in here(("speed-up", "0.80 [0.80, 0.80]"))[2]
    idle = here(("note", "not run: needs this"))
    assert (idle[2], idle[-1]) == ("", "not run")
    assert "needs this" in idle[5]


def test_a_result_that_a_line_names_keeps_what_it_was_made_from(tmp_path: Path) -> None:
    line = next(each for each in every_line() if each.result == "tokens-premiums")
    path = tmp_path / "tokens-premiums.json"
    results.record(path, "T", "tokens", "x", ["a"], [["b"]], figures={"most": 2})
    result = json.loads(path.read_text())
    found = systems.find(line, {"tokens-premiums": result})
    assert found.state == ""
    result["digest"] = "0123456789ab"
    assert systems.find(line, {"tokens-premiums": result}).state == "before the last change"
    assert systems.find(line, {}).state == "never"
    rows = systems.table({"tokens-premiums": result})[line.group]
    assert "most 2; [tokens-premiums](tokens.md)" in [row[2] for row in rows]


def test_every_line_of_a_result_keeps_what_it_was_made_from(tmp_path: Path) -> None:
    one, other = (each for each in every_line() if each.result == "streams-memories")
    path = tmp_path / "streams-memories.json"
    results.record(path, "T", "methods", "x", ["a"], [["b"]], figures={"most": 2})
    found = {path.stem: json.loads(path.read_text())}
    assert (systems.find(one, found).state, systems.find(other, found).state) == ("", "")
    found[path.stem]["digest"] = found[path.stem]["digest"].split()[1]
    assert systems.find(one, found).state == "before the last change"
    assert systems.find(other, found).state == ""


def test_details_leave_out_what_the_table_says() -> None:
    result = FOUND["methods-135m-minutes"]
    columns, rows = systems.details(result)
    assert not {"mode", "guarantee", *systems.STATE} & set(columns)
    assert len(rows) == len(result["rows"])
    assert all("weights=" in row[1] for row in rows if row[0] != "S2D")
    plain = FOUND["tokens-premiums"]
    assert systems.details(plain) == (plain["columns"], plain["rows"])


@pytest.mark.parametrize(("used", "busy"), [(10.0, False), (12.0, False), (13.0, True)])
def test_a_machine_is_busy_where_others_take_a_quarter_of_a_processor(
    used: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = [(0.0, 0.0, 0.0), (10.0, used, 10.0)]
    monkeypatch.setattr(machine, "_clocks", lambda: clocks.pop(0))
    assert machine.Others().busy is busy


def test_clocks_count_this_process() -> None:
    before = machine._clocks()
    sum(range(10**6))
    wall, used, own = (now - then for now, then in zip(machine._clocks(), before, strict=True))
    assert wall > 0
    assert own >= 0
    assert used >= 0

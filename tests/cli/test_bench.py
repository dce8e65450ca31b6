"""`bench` over a table: results, files, Ctrl-C, resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, one_line, press_in_step

from paceline.lab.measure import doctor, page, report
from paceline.lab.measure.run import Record
from paceline.registry.options import Options

pytestmark = pytest.mark.usefixtures("loads")

ROW = {
    "drafter",
    "category",
    "prompts",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "block_efficiency",
    "rows_per_forward",
    "acceptance_by_depth",
    "draft_share",
    "overhead_share",
    "identical",
    "lossless",
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "dev.jsonl"
    texts = [("qa", "the quick fox"), ("math", "12 34"), ("qa", "lazy dog"), ("qa", "x + 1")]
    lines = [
        json.dumps({"question_id": n, "category": category, "turns": [text, "and then?"]})
        for n, (category, text) in enumerate(texts, 1)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def strict(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    result: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return result


def arguments(prompts: Path, *more: str) -> tuple[str, ...]:
    return ("bench", "--prompts", str(prompts), "--max-new-tokens", "30", "--json", *more)


def test_rows_for_every_drafter_and_category(command: Command, prompts: Path) -> None:
    # A fixed size: what the cost model chooses depends on how fast the fake model happens to run.
    outcome = command(*arguments(prompts, "--nodes", "4"))
    assert outcome.code == 0
    results = strict(outcome.out)
    assert results["complete"]
    assert results["c_n"]["1"] == 1
    assert results["noise_floor"] == {"chain": 0, "tree": 0}
    assert {(row["drafter"], row["category"]) for row in results["rows"]} == {
        (drafter, category)
        for drafter in ("none", "suffix-automaton", "prompt-lookup", "recycling")
        for category in ("all", "qa", "math")
    }
    for row in results["rows"]:
        assert set(row) == ROW
        assert row["prompts"] == {"all": 4, "qa": 3, "math": 1}[row["category"]]
        assert row["identical"] == 1
        assert row["speedup_low"] <= row["speedup"] * 1.000001
        assert row["speedup"] <= row["speedup_high"] * 1.000001
        if row["drafter"] == "none":
            assert row["speedup"] == row["block_efficiency"] == 1
        elif row["category"] == "all":
            assert row["block_efficiency"] > 1


@pytest.mark.parametrize(
    "more",
    [
        ("--batch", "3"),
        ("--turns", "all"),
        ("--turns", "all", "--batch", "2", "--cold"),
        ("--temperature", "1", "--seed", "4"),
        ("--drafters", "recycling", "--limit", "2"),
    ],
    ids=" ".join,
)
def test_ways_to_run_it(command: Command, prompts: Path, more: tuple[str, ...]) -> None:
    results = strict(command(*arguments(prompts, *more)).out)
    wanted = 2 if "--limit" in more else 4
    for row in results["rows"]:
        assert row["identical"] == 1
        if row["category"] == "all":
            assert row["prompts"] == wanted


def test_drafters_with_and_without_the_draft_model(command: Command, prompts: Path) -> None:
    """`none` and copies need no draft model, and do not lose it to those that do."""
    names = "draft-model,recycling,recycling>draft-model"
    more = ("--drafters", names, "--limit", "1", "--nodes", "4")
    results = strict(command(*arguments(prompts, *more, "--draft-model", "small")).out)
    rows = {row["drafter"]: row for row in results["rows"] if row["category"] == "all"}
    assert list(rows) == ["none", "draft-model", "recycling", "recycling>draft-model"]
    assert all(row["identical"] == 1 for row in rows.values())
    # The table drafts for itself, so that what it drafts is accepted.
    assert rows["draft-model"]["block_efficiency"] > rows["recycling"]["block_efficiency"]
    assert results["settings"]["draft_model"] == "small"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--draft-model", "small"), "none of none, suffix-automaton, prompt-lookup, recycling"),
        (("--draft-model", "small", "--drafters", "recycling"), "add draft-model to --drafters"),
        (("--drafters", "recycling,draft-model"), "name one with --draft-model"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_draft_model_that_no_drafter_uses_or_that_is_missing(
    command: Command, prompts: Path, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    outcome = command(*arguments(prompts, *more, "--out", str(tmp_path / "out")))
    assert one_line(outcome)
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_the_built_in_mix_and_the_table(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    outcome = command("bench", "--max-new-tokens", "4", "--max-context", "2000", "--out", str(out))
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].startswith("drafter")
    page = (out / "results.md").read_text()
    assert "| recycling | summarization | 2 |" in page
    results = strict((out / "results.json").read_text())
    assert [r["prompts"] for r in results["rows"] if r["category"] == "all"] == [12] * 4
    assert sorted(path.name for path in out.iterdir()) == [
        "prompts.jsonl",
        "report.html",
        "results.json",
        "results.md",
    ]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    command: Command, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    call = arguments(prompts, "--out", str(out), "--drafters", "recycling")
    whole = strict(command(*arguments(prompts, "--drafters", "recycling")).out)
    with monkeypatch.context() as patch:
        press_in_step(patch, 170)
        outcome = command(*call)
    assert outcome.code == 130
    partial = strict(outcome.out)
    assert not partial["complete"]
    assert "interrupted after" in (out / "report.html").read_text()
    assert strict((out / "results.json").read_text()) == partial
    finished = partial["rows"][0]["prompts"]
    assert 0 < finished < 4
    assert f"after {finished} of 4 prompts" in partial["remarks"][0]
    before = (out / "prompts.jsonl").read_text()
    assert len(before.splitlines()) == 1 + finished

    outcome = command(*call)
    assert outcome.code == 0
    results = strict(outcome.out)
    assert results["complete"]
    assert (out / "prompts.jsonl").read_text().startswith(before)
    assert [(r["drafter"], r["prompts"]) for r in results["rows"]] == [
        (r["drafter"], r["prompts"]) for r in whole["rows"]
    ]
    again = strict(command(*call).out)  # nothing is left to do
    assert again["rows"] == results["rows"]
    assert results["resumed_after"] == again["resumed_after"] == [finished]
    assert any("began anew" in remark for remark in again["remarks"])


def test_ctrl_c_before_anything_is_done(
    command: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_in_step(monkeypatch, 1)
    outcome = command(*arguments(prompts))
    assert outcome.code == 130
    assert strict(outcome.out)["rows"] == []


def test_other_settings_do_not_resume(command: Command, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command(*arguments(prompts, "--out", str(out), "--limit", "1"))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    outcome = command(*arguments(prompts, "--out", str(out), "--limit", "1", "--seed", "7"))
    assert one_line(outcome)
    assert "other settings (seed)" in outcome.err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("content", ["", "mine\n", "[]\n", '{"settings": 3}\n'])
def test_foreign_files_are_left_alone(
    command: Command, prompts: Path, tmp_path: Path, content: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text(content)
    assert one_line(command(*arguments(prompts, "--out", str(tmp_path))))
    assert (tmp_path / "prompts.jsonl").read_text() == content


def test_a_line_cut_short_by_a_crash_is_decoded_again(
    command: Command, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    call = arguments(prompts, "--out", str(out), "--limit", "2")
    command(*call)
    raw = out / "prompts.jsonl"
    raw.write_text(raw.read_text()[:-40])
    results = strict(command(*call).out)
    assert results["complete"]
    first, resumed, second = raw.read_text().splitlines()[1:]
    assert [Record.from_dict(json.loads(line)).index for line in (first, second)] == [0, 1]
    assert json.loads(resumed) == {"resumed_after": 1}


def test_a_prompt_that_does_not_fit_is_found_first(
    command: Command, tmp_path: Path, loads: list[Options]
) -> None:
    path = tmp_path / "long.jsonl"
    turn = json.dumps(["word " * 900])
    path.write_text(f'{{"question_id": 77, "category": "qa", "turns": {turn}}}\n')
    outcome = command("bench", "--prompts", str(path), "--out", str(tmp_path / "out"))
    assert one_line(outcome)
    assert "question 77" in outcome.err
    assert not (tmp_path / "out").exists()


def test_fidelity_is_measured_when_asked(
    command: Command, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strict(command(*arguments(prompts, "--limit", "1")).out)["fidelity"] is None
    # The table says it is fp32, and then there is nothing to compare.
    options = arguments(prompts, "--limit", "1", "--fidelity")
    assert strict(command(*options).out)["fidelity"] is None
    monkeypatch.setattr(doctor, "fidelity_to_fp32", lambda *_: {"kl": float("nan"), "tokens": 3})
    assert strict(command(*options).out)["fidelity"] == {"kl": None, "tokens": 3}


def test_texts_that_go_in_circles_are_ended_if_asked(command: Command, prompts: Path) -> None:
    options = ("bench", "--prompts", str(prompts), "--nodes", "2", "--json")
    endless = strict(command(*options).out)
    ended = strict(command(*options, "--stop-loops", "--max-new-tokens", "300").out)
    assert endless["settings"]["max_new_tokens"] == 128
    assert not any("repeated" in remark for remark in endless["remarks"])
    assert "4 of 4 texts of none repeated themselves and were ended" in ended["remarks"]
    assert all(row["identical"] == 1 for row in ended["rows"])


def test_the_agentic_workload_from_the_outside(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ("bench", "--workload", "agentic", "--limit", "1", "--max-context", "9000", "--json")
    outcome = command(*call, "--max-new-tokens", "6", "--out", str(out), "--nodes", "2")
    assert outcome.code == 0, outcome.err
    results = strict(outcome.out)
    counts = {r["category"]: r["prompts"] for r in results["rows"] if r["drafter"] == "recycling"}
    assert counts == {"all": 6, "plan": 1, "work": 3, "refine": 2}
    assert results["settings"]["workload"] == "agentic"
    assert results["settings"]["stop_loops"]
    assert all(row["identical"] == 1 for row in results["rows"])
    lines = (out / "prompts.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines[1:]] == list(range(6))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--workload", "prose"), "use prompts or agentic"),
        (("--workload", "agentic", "--prompts", "x.jsonl"), "leave out --prompts"),
        (("--workload", "agentic", "--turns", "all"), "leave out --prompts, --turns"),
        (("--workload", "agentic", "--limit", "0"), "--limit must be 1 or more"),
    ],
)
def test_workloads_that_make_no_sense(
    command: Command, more: tuple[str, ...], message: str
) -> None:
    outcome = command("bench", *more)
    assert one_line(outcome)
    assert message in outcome.err


def test_without_matplotlib_one_line_says_how_to_get_plots(
    command: Command, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (page, report):
        monkeypatch.setattr(module, "can_plot", lambda: False)
    out = tmp_path / "out"
    outcome = command(*arguments(prompts, "--limit", "1", "--out", str(out)))
    assert outcome.code == 0
    assert outcome.err.splitlines() == [page.HINT]
    assert page.HINT in (out / "report.html").read_text().replace("&#39;", "'")

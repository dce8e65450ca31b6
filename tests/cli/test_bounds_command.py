"""`bounds` over two tables: figures, orderings, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import fakes
from tests.cli.conftest import Command, one_line

from paceline.drafters.resources import Loaded
from paceline.lab.measure import acceptance as verifier_acceptance
from paceline.lab.measure.bounds import RULES
from paceline.proof.tabular import TabularTarget
from paceline.registry import loading
from paceline.registry.options import Options


@pytest.fixture
def drafts(loads: list[Options], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the draft model by a table that is another everywhere; collects how it was named."""
    seen: list[dict[str, Any]] = []

    def load_draft(loaded: Loaded, model: str, **options: Any) -> Loaded:
        seen.append({"model": model, **options})
        table = fakes.loaded().target
        noise = np.random.default_rng(3).normal(size=fakes.VOCABULARY).astype(np.float32)
        assert isinstance(table, TabularTarget)
        other: Any = TabularTarget(lambda c: table._logits(c) + noise, fakes.VOCABULARY, 600)
        return replace(loaded, target=other)

    monkeypatch.setattr(loading, "load_draft", load_draft)
    return seen


def report(command: Command, *arguments: str) -> dict[str, Any]:
    outcome = command("bounds", "--json", "--limit", "3", "--max-new-tokens", "8", *arguments)
    assert outcome.code == 0, outcome.err
    result: dict[str, Any] = json.loads(outcome.out)
    return result


def test_every_rule_has_a_row_and_none_exceeds_its_bound(
    command: Command, drafts: list[dict[str, Any]]
) -> None:
    result = report(command, "--temperatures", "0.7,1", "--top-p", "1,0.8", "--drafts", "1,3")
    assert [(s["temperature"], s["top_p"]) for s in result["settings"]] == [
        *((0.7, 1.0), (0.7, 0.8)),
        *((1.0, 1.0), (1.0, 0.8)),
    ]
    for setting in result["settings"]:
        assert setting["rounds"] >= 3
        found = {(row["verifier"], row["drafts"]) for row in setting["rows"]}
        assert found == {(r.verifier, n) for r in RULES for n in (1, 3) if r.takes(n)}
        for row in setting["rows"]:
            assert 0 <= row["acceptance_low"] <= row["acceptance"] <= row["acceptance_high"] <= 1
            assert row["node_low"] <= row["node_high"]
            assert row["gap"] == pytest.approx(row["bound"] - row["acceptance"])
            if (row["verifier"], row["drafts"]) != ("coupled", 3):  # an estimate
                assert row["gap"] > -1e-12
        assert all(entry["holds"] for entry in setting["orderings"])
        assert len(setting["orderings"]) == 4


def test_chains_are_told_by_their_number_of_paths(
    command: Command, drafts: list[dict[str, Any]]
) -> None:
    [setting] = report(command, "--temperatures", "1", "--depth", "3", "--drafts", "1")["settings"]
    chains = {(row["verifier"], row["paths"]): row for row in setting["chains"]}
    assert set(chains) == {
        ("rejection", 1),
        ("block", 1),
        *(("multipath-block", count) for count in verifier_acceptance.PATHS),
    }
    assert chains["block", 1]["accepted"] >= chains["rejection", 1]["accepted"]
    assert chains["multipath-block", 2]["nodes"] == 6
    assert all(row["speed"] > 0 for row in chains.values())
    for row in chains.values():
        assert 0 <= row["accepted_low"] <= row["accepted"] <= row["accepted_high"] <= 3
    assert len(setting["orderings"]) == 2  # with one draft there is nothing to replace


def test_a_perfect_drafter_is_accepted_whole(command: Command, loads: list[Options]) -> None:
    [setting] = report(command, "--temperatures", "1", "--drafts", "1,2")["settings"]
    for row in setting["rows"]:
        if row["draft_law"] in ("independent", "without replacement", "shared noise"):
            assert row["acceptance"] == pytest.approx(1)
    assert [row["accepted"] for row in setting["chains"][:2]] == pytest.approx([4, 4])


@pytest.mark.parametrize(
    ("draft", "named"),
    [
        ("layers:3", {"model": "m", "precision": "fp32", "layers": 3}),
        ("precision:int4", {"model": "m", "precision": "int4"}),
        ("other/model", {"model": "other/model"}),
    ],
)
def test_ways_to_name_the_draft_model(
    draft: str, named: dict[str, Any], command: Command, drafts: list[dict[str, Any]]
) -> None:
    report(
        command,
        "--draft",
        draft,
        "--model",
        "m",
        "--precision",
        "fp32",
        "--temperatures",
        "0",
        "--drafts",
        "1",
    )
    assert drafts == [named]


def test_the_table_for_people(command: Command, drafts: list[dict[str, Any]]) -> None:
    outcome = command(
        "bounds", "--limit", "2", "--max-new-tokens", "6", "--temperatures", "1", "--drafts", "2"
    )
    assert outcome.code == 0
    for word in ("recursive-distinct", "share of bound", "multipath-block", "holds in"):
        assert word in outcome.out
    assert "FAILS" not in outcome.out


REFUSED = {
    ("--drafts", "0"): "--drafts",
    ("--drafts", "9"): "--drafts",
    ("--drafts", "two"): "--drafts",
    ("--drafts", "1,,2"): "--drafts",
    ("--temperatures", "warm"): "--temperatures",
    ("--temperatures", "-1"): "temperature",
    ("--top-p", "0"): "top_p",
    ("--depth", "0"): "--depth",
    ("--limit", "0"): "--limit",
    ("--depth", "9", "--max-new-tokens", "9"): "--max-new-tokens",
    ("--draft", "layers:few"): "layers:few",
    ("--prompts", "absent.jsonl"): "absent.jsonl",
    ("--runtime", "abacus"): "abacus",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda a: repr(" ".join(a)))
def test_bounds_refuses_before_loading(
    arguments: tuple[str, ...], command: Command, loads: list[Options]
) -> None:
    outcome = command("bounds", *arguments)
    assert one_line(outcome)
    assert REFUSED[arguments] in outcome.err
    assert not loads


def test_prompts_that_fill_the_context(
    command: Command, drafts: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "long.jsonl"
    turn = "q" * (590 - len(fakes.loaded().tokenizer.chat([{"role": "user", "content": ""}])))
    path.write_text(json.dumps({"question_id": 1, "category": "qa", "turns": [turn]}))
    outcome = command(
        "bounds",
        "--prompts",
        str(path),
        "--depth",
        "20",
        "--max-new-tokens",
        "30",
        "--temperatures",
        "1",
        "--json",
    )
    assert one_line(outcome)
    assert "20 tokens" in outcome.err

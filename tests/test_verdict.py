"""The example of Speculative Verdict: scores, consensus, and answers of models that are tables."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import verdict
from tests.cli import fakes

from paceline.engine.engine import Engine
from paceline.lab.measure import results
from paceline.registry.loading import make_engine
from paceline.registry.options import Options


def engine(drafter: str = "none") -> Engine:
    return make_engine(fakes.loaded(max_context=2000), Options(), drafter=drafter, max_batch=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12 - 5 = 7 clips.", "7"),
        ("It costs $1,250.50", "1250.5"),
        ("The answer is 40.", "40"),
        ("The answer is 40.00", "40"),
        ("about -3", "-3"),
        ("none", ""),
    ],
)
def test_the_last_number_is_the_answer(text: str, expected: str) -> None:
    assert verdict.last_number(text) == expected


def test_scores_do_not_depend_on_the_order_of_experts() -> None:
    surprise = np.random.default_rng(3).random((4, 4))
    base = verdict.distances(surprise.tolist())
    for order in map(list, itertools.permutations(range(4))):
        found = verdict.distances(surprise[np.ix_(order, order)].tolist())
        np.testing.assert_allclose(found, np.array(base)[order])
        kept = verdict.consensus(surprise[np.ix_(order, order)].tolist(), 2)
        assert {order[at] for at in kept} == set(verdict.consensus(surprise.tolist(), 2))
    assert verdict.consensus(surprise.tolist(), 4) == [0, 1, 2, 3]


def test_equal_answers_score_alike_and_the_odd_one_goes() -> None:
    surprise = [[0.5, 0.5, 3.0], [0.7, 0.7, 2.0], [0.9, 0.9, 1.5]]
    one, two, odd = verdict.distances(surprise)
    assert one == two < odd
    assert verdict.consensus(surprise, 2) == [0, 1]


def test_who_answers_nothing_is_last_and_has_no_say() -> None:
    surprise = [[inf, 1.0, 2.0], [inf, 1.0, 1.5], [inf, 1.2, 1.0]]
    assert verdict.distances(surprise)[0] == inf
    assert np.isfinite(verdict.distances(surprise)[1:]).all()
    assert verdict.consensus(surprise, 2) == [1, 2]


def test_a_vote_without_majority_is_the_largest_experts() -> None:
    drafts = [verdict.Draft("", each) for each in ("1", "2", "", "2", "1")]
    assert verdict.vote(drafts) == "1"
    assert verdict.vote(drafts[:4]) == "2"
    assert verdict.vote(drafts[2:3]) == ""


def test_an_answer_is_scored_in_one_pass() -> None:
    model = engine()
    found = verdict.log_perplexity(model, "how many?", "42")
    asked = model.tokenizer.prompt("Question: how many?\nAnswer:", raw=True)
    said = model.tokenizer.plain(" 42")
    table: Any = model.decoder.target
    logits = [table._logits((*asked, *said[:at])) for at in range(len(said))]
    nats = [np.log(np.exp(row).sum()) - row[token] for row, token in zip(logits, said, strict=True)]
    assert found == pytest.approx(float(np.mean(nats)), rel=1e-4)


def test_all_ways_are_answered_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)
    monkeypatch.setattr(verdict.paceline, "load", lambda name, threads: engine("suffix-automaton"))
    problems = tmp_path / "problems.jsonl"
    some = [{"question": f"What is {i} + 1?", "answer": f"so\n#### {i + 1}"} for i in range(5)]
    problems.write_text("\n".join(map(json.dumps, some)))
    line = ["verdict", "problems.jsonl", "--expert", "a", "--expert", "b", "--verdict", "c"]
    monkeypatch.setattr("sys.argv", [*line, "--tokens", "20", "--record", "some"])
    verdict.main()
    found = [json.loads(each) for each in Path("verdict.jsonl").read_text().splitlines()]
    assert len(found) == 5
    assert all(set(each) == {"a", "b", "vote", "alone", "verdict"} for each in found)
    # One model; how often it runs also depends on what passes took.
    assert all(each["a"][0] == each["b"][0] for each in found)
    assert all(each[name][1] > 0 for each in found for name in "ab")
    written = json.loads(Path("docs/results/data/some.json").read_text())
    results.validate("some", written)
    assert [row[0] for row in written["rows"]] == ["a", "b", "vote", "alone", "verdict"]
    # What is answered is kept.
    monkeypatch.setattr(verdict.paceline, "load", None)
    found[0]["verdict"] = [True, 7]
    Path("verdict.jsonl").write_text("\n".join(map(json.dumps, found)))
    capsys.readouterr()
    verdict.show(Namespace(expert=["a", "b"], record=None), found)
    assert "verdict\t1" in capsys.readouterr().out
    verdict.main()

"""The whole audit on tables: right engines pass, wrong ones are caught, differences are placed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.proof.tables import VOCABULARY, P, Q, engine, law_at

from paceline.errors import EngineFailed, InvalidOption, PromptError
from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.engine import CallableEngine, SeededRequest
from paceline.lab.audit.outside import run
from paceline.lab.audit.report import plain_report
from paceline.lab.measure.machine import dumps
from paceline.proof.cases import Propose, likely_chain, random_tree, sampled_chain
from paceline.proof.negative import (
    AcceptsByTargetMass,
    AlwaysAccepts,
    CorrectsFromTarget,
    MatchesOrRetries,
    RepeatsNoise,
    drops_unlikely,
    top_one_as_sampled,
)
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.rejection import Rejection

LAWS = AuditExtent(greedy_prompts=0, check_prompts=("a",), samples=250, tokens=3)
GREEDY = AuditExtent(greedy_prompts=3, greedy_tokens=12, samples=0)
Q_LAW = law_at(Q, 1.0)
TREE = random_tree(VOCABULARY, 6, seed=1)


@pytest.mark.parametrize("knows_law", [True, False], ids=["own-law", "two-sample"])
@pytest.mark.parametrize(
    ("verifier", "propose"),
    [
        (Rejection(), sampled_chain(Q_LAW)),
        (SampleMatch(), TREE),
        (Coupled(), likely_chain(Q_LAW)),
    ],
    ids=["rejection", "sample-match", "coupled"],
)
def test_lossless_engines_pass(verifier: Verifier, propose: Propose, knows_law: bool) -> None:
    report = run(engine(verifier, propose, knows_law), LAWS)
    assert report.passed
    assert [each.test for each in report.distributions] == ["first token"] * knows_law + [
        "sequences"
    ]
    assert min(each.p_value for each in report.distributions) > 0.01
    for each in report.distributions:
        eighty, ninety = each.detectable["80%"], each.detectable["90%"]
        assert eighty is not None
        assert ninety is not None
        assert 0.05 < eighty < ninety < 0.5


@pytest.mark.parametrize(
    ("verifier", "propose"),
    [
        (CorrectsFromTarget(), sampled_chain(Q_LAW)),
        (AlwaysAccepts(), sampled_chain(Q_LAW)),
        (AcceptsByTargetMass(), sampled_chain(Q_LAW)),
        (MatchesOrRetries(), TREE),
        (RepeatsNoise(), TREE),
        (Rejection(), top_one_as_sampled(Q_LAW)),
        (Rejection(), drops_unlikely(Q_LAW, 0.45)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_wrong_rules_are_caught(verifier: Verifier, propose: Propose) -> None:
    plan = AuditExtent(greedy_prompts=0, check_prompts=("a",), samples=400, tokens=3)
    report = run(engine(verifier, propose), plan)
    assert not report.passed
    assert report.rejected


def test_sequences_alone_catch_what_the_first_token_cannot_show() -> None:
    """Noise repeated over a round leaves every single first token as it should be."""
    report = run(engine(RepeatsNoise(), TREE), LAWS)
    assert [each.test for each in report.rejected] == ["sequences"]


def test_a_bias_of_the_stated_size_is_found_as_often_as_stated() -> None:
    """Known mass is moved inside a table, at the second token, and the whole audit is run."""
    distribution = law_at(P, 1.0)

    def biased(bias: float) -> CallableEngine:
        def answer(ask: SeededRequest) -> Sequence[Sequence[int]]:
            generator = np.random.default_rng(ask.seeds[0])
            rows = []
            for _ in ask.seeds:
                first, second = (
                    int(generator.choice(VOCABULARY, p=distribution((0, 1)).probs))
                    for _ in range(2)
                )
                order = np.argsort(-distribution((0, 1)).probs)
                if ask.speculation and second == order[0] and generator.random() < bias / top:
                    second = int(order[1])
                rows.append((first, second))
            return rows

        return CallableEngine(answer)

    top = float(distribution((0, 1)).probs.max())
    stated = run(
        biased(0.0), AuditExtent(greedy_prompts=0, check_prompts=("a",), samples=300, tokens=2)
    )
    bias = stated.distributions[0].detectable["80%"]
    assert bias is not None
    assert bias < top
    found = sum(
        not run(
            biased(bias),
            AuditExtent(greedy_prompts=0, check_prompts=("a",), samples=300, tokens=2, seed=seed),
        ).passed
        for seed in range(1, 13)
    )
    assert found / 12 > 0.5


def test_level_holds_over_all_prompts_together() -> None:
    probs = law_at(P, 1.0)((0, 1)).probs

    def answer(ask: SeededRequest) -> Sequence[Sequence[int]]:
        generator = np.random.default_rng(ask.seeds[0])
        rows: list[list[int]] = generator.choice(VOCABULARY, (len(ask.seeds), 2), p=probs).tolist()
        return rows

    plan = AuditExtent(greedy_prompts=0, check_prompts=("a", "b"), samples=50, tokens=2, level=0.2)
    fair = CallableEngine(
        answer, distribution=lambda prompt, temperature: dict(enumerate(probs.tolist()))
    )
    runs = 12
    wrong = sum(bool(run(fair, replace(plan, seed=seed)).rejected) for seed in range(runs))
    assert wrong <= 0.2 * runs + 3.3 * (0.16 * runs) ** 0.5


def test_greedy_identity_on_a_table() -> None:
    report = run(engine(Greedy(), TREE), GREEDY)
    assert report.identical == len(report.greedy) == 3
    assert all(each.tokens == 12 and each.repeatable for each in report.greedy)
    assert report.passed


def scripted(on: tuple[int, ...], *offs: tuple[int, ...]) -> CallableEngine:
    """An engine with given greedy texts and a law in which 5 is ahead of 6 by 0.4, 7 by 3."""
    turns = iter(offs * 99)
    distribution = {5: 0.5, 6: 0.5 * np.exp(-0.4), 7: 0.5 * np.exp(-3.0)}
    seen: list[object] = []

    def first(prompt: object, temperature: float) -> dict[int | str, float]:
        seen.append(prompt)
        return dict(distribution)

    made = CallableEngine(
        lambda ask: [on if ask.speculation else next(turns)], "scripted", first, lambda t: (1, 2)
    )
    made.contexts = seen  # type: ignore[attr-defined]
    return made


ONE = AuditExtent(greedy_prompts=1, greedy_tokens=4, samples=0)


def test_a_near_tie_is_placed_and_counted() -> None:
    engine = scripted((3, 3, 6, 9), (3, 3, 5, 9))
    report = run(engine, ONE)
    found = report.greedy[0]
    assert (found.difference, found.on, found.off) == (2, 6, 5)
    assert found.gap == pytest.approx(0.4)
    assert found.gap_by == "engine"
    assert engine.contexts == [(1, 2, 3, 3)]  # type: ignore[attr-defined]
    assert (report.identical, report.near_ties, report.passed) == (0, 1, True)


def test_a_difference_that_is_no_near_tie_fails() -> None:
    report = run(scripted((7, 9, 9, 9), (5, 9, 9, 9)), ONE)
    assert report.greedy[0].gap == pytest.approx(3)
    assert (report.near_ties, report.passed) == (0, False)
    assert "gap 3.000 (engine)" in plain_report(report)


def test_a_continuation_cut_short_is_a_difference_without_a_gap() -> None:
    report = run(scripted((5, 5), (5, 5, 5, 5)), ONE)
    found = report.greedy[0]
    assert (found.difference, found.on, found.off, found.gap) == (2, None, 5, None)
    assert not report.passed


def test_an_engine_that_does_not_repeat_itself_is_told() -> None:
    report = run(scripted((5, 5, 5, 5), (5, 5, 5, 5), (5, 6, 5, 5)), ONE)
    assert not report.greedy[0].repeatable
    assert "1 prompts differ between two runs without speculation" in plain_report(report)


def test_the_report_is_json_and_text() -> None:
    report = run(engine(AlwaysAccepts(), sampled_chain(Q_LAW)), LAWS)
    data = json.loads(dumps(report.as_dict()))
    assert data["passed"] is False
    assert data["rejected"] == len(report.rejected) > 0
    assert {"p_value", "adjusted", "distance", "detectable"} <= data["laws"][0].keys()
    assert data["settings"]["samples"] == 250
    assert "tests reject equality" in plain_report(report)


def test_samples_with_and_without_speculation_share_no_seed() -> None:
    seeds: dict[bool, set[int]] = {True: set(), False: set()}

    def answer(ask: SeededRequest) -> Sequence[Sequence[int]]:
        assert not seeds[ask.speculation] & set(ask.seeds)
        seeds[ask.speculation] |= set(ask.seeds)
        return [(seed % 3, 0) for seed in ask.seeds]

    run(
        CallableEngine(answer),
        AuditExtent(greedy_prompts=0, check_prompts=("a", "b"), samples=120, tokens=2),
    )
    assert {len(each) for each in seeds.values()} == {240}
    assert not seeds[True] & seeds[False]


def test_wrong_numbers_of_continuations_are_an_error() -> None:
    with pytest.raises(EngineFailed, match="gave 1 continuations for 50 seeds"):
        run(CallableEngine(lambda ask: [(1, 2)]), LAWS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 5),
        ("tokens", 1),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("level", 0.7),
        ("greedy_prompts", -1),
        ("greedy_tokens", 0),
        ("near_tie", -1.0),
        ("near_tie", float("inf")),
        ("seed", -1),
    ],
)
def test_plans_out_of_range_are_errors(name: str, value: float) -> None:
    with pytest.raises(InvalidOption, match=name):
        AuditExtent(**{name: value})  # type: ignore[arg-type]


def test_a_plan_that_audits_nothing_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="samples must be 20 or more without greedy_prompts"):
        AuditExtent(greedy_prompts=0, samples=0)


def test_a_missing_prompt_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot read prompts"):
        run(engine(Greedy(), TREE), AuditExtent(prompts=tmp_path / "absent.jsonl"))

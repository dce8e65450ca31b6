"""The audit from inside: what is right passes, and whatever is wrong makes it fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import Any, ClassVar, get_args

import pytest

from paceline import trees as growth
from paceline.core.tree import depths, is_chain, validate
from paceline.core.types import SamplingScheme, TokenTree, Verdict
from paceline.proof import cases as draft_schemes
from paceline.proof import controls
from paceline.proof import inside as limits
from paceline.proof.cases import (
    FULL,
    PROMPT,
    QUICK,
    SETTINGS,
    TRIMMED,
    Case,
    Control,
    Draftable,
    Grid,
    Limit,
    Proof,
    draft_laws,
    draft_sampling,
)
from paceline.proof.compare import EXACT, LEAST_P, Finding, examine
from paceline.proof.controls import CONTROLS, check
from paceline.proof.inside import InsideReport, Lossy, audit, lossy, refusal
from paceline.proof.negative import AlwaysAccepts, CorrectsFromTarget, RepeatsNoise, WrongChainRule
from paceline.proof.tabular import processed
from paceline.registry import table as registry
from paceline.registry.table import Index, Method
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.trees.base import TreeExpansion
from paceline.verifiers.base import Shape, TargetDistributions, Verifier, walk
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection

TINY = Grid(
    vocabularies=(3,),
    depths=(1, 2),
    widths=(2,),
    samplings=((0.0, 1.0), (1.5, 0.85)),
    loops=(3, 1, 2),
    max_runs=120,
    noise_sizes=((3, 1, 2),),
    noise_samplings=((1.5, 0.85),),
    seeds=60,
)
SMALL = replace(
    TINY,
    depths=(2,),
    samplings=((1.5, 0.85),),
    loops=(0, 0, 0),
    max_runs=100,
    noise_sizes=((3, 2, 2),),
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_changes_a_distribution(setting: str) -> None:
    """Or its cases would be those without it once more."""
    plain = Case(3, 2, 2, 1.0, 1.0)
    case = replace(plain, setting=setting)

    def distribution(each: Case) -> list[float]:
        which = int(setting == TRIMMED)  # the draft model's
        context = (*PROMPT, 1, 1)
        return list(processed(each.models()[which], each.params, PROMPT)(context).dense())

    assert distribution(case) != distribution(plain)
    assert setting in str(case)


class Silent(AlwaysAccepts):
    """Emits whatever is drafted and calls that lossless."""

    name: ClassVar[str] = "silent"
    lossless: ClassVar[bool] = True


class Careless(WrongChainRule):
    """A right rule that checks nothing it is given."""

    name: ClassVar[str] = "careless"
    lossless: ClassVar[bool] = True
    shape: ClassVar[Shape] = "chain"

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        rule = super() if len(draft) else SampleMatch()
        return rule.verify(draft, target, randomness)


class Crashing(Rejection):
    """Raises what no rule may raise."""

    name: ClassVar[str] = "crashing"

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        raise KeyError("seven")


class ForgetfulNoise(RepeatsNoise):
    """Ties the tokens of a round to each other, and promises the tokens of plain decoding."""

    name: ClassVar[str] = "forgetful-noise"
    lossless: ClassVar[bool] = True


class Unseeded(Verifier):
    """Right in law, but what is drafted changes which noise is used."""

    name: ClassVar[str] = "unseeded"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        def pick(node: int, depth: int) -> int:
            distribution = target.distribution(node)
            draw = Draw(target.position + depth, Purpose.NOISE, sibling=len(draft))
            return distribution.token(
                int(
                    (
                        randomness.uniform(len(distribution.probs), draw)
                        ** (1 / distribution.probs)
                    ).argmax()
                )
            )

        return walk(draft, pick)


class Needy(Rejection):
    """Cannot be built from nothing."""

    name: ClassVar[str] = "needy"

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Adds a rule to the registry as a plugin does."""
    added: dict[str, str] = {}

    class Point:
        value = "plugin:METHOD"

        def load(self) -> Index:
            return {"verifier": added}

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    registry.methods.cache_clear()

    def add(rule: type[Verifier], guarantee: str = "lossless") -> str:
        monkeypatch.setattr(rule, "guarantee", guarantee)
        added[rule.name] = f"{__name__}:{rule.__name__}"
        registry.methods.cache_clear()
        return rule.name

    yield add
    monkeypatch.undo()
    registry.methods.cache_clear()


@pytest.fixture(autouse=True)
def few_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One control per audit; all of them have a test of their own."""
    monkeypatch.setattr(controls, "CONTROLS", CONTROLS[:1])


def run(*names: str, grid: Grid = SMALL) -> InsideReport:
    return audit(names, grid, jobs=1)


def test_every_registered_rule_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Limits have a test of their own.
    monkeypatch.setattr(limits, "lossy", lambda method: Lossy(method.name, method.guarantee))
    seen: list[tuple[int, int]] = []
    report = audit(grid=TINY, jobs=1, progress=lambda done, total: seen.append((done, total)))
    assert report.passed, report
    assert all(row.finding.exact for row in report.rows)
    assert seen[-1] == (len(seen), len(seen))
    left = sum(each.cases for each in report.left_out)
    assert len(report.rows) + left == len(seen)
    lossless = {m.name for m in registry.methods() if m.guarantee.startswith("lossless")}
    assert {row.verifier for row in report.rows} == lossless & set(registry.names("verifier"))
    assert {each.verifier for each in report.lossy}.isdisjoint(lossless)
    assert {row.draft_sampling for row in report.rows} == {drafts.name for drafts in draft_laws()}
    errors = [r.finding.max_abs_error for r in report.rows if r.finding.method == "enumeration"]
    assert max(error for error in errors if error is not None) <= EXACT


def test_the_report_is_plain_data() -> None:
    report = run("rejection", "relaxed").as_dict()
    for row in report["rows"]:
        assert {"verifier", "draft_law", "vocabulary", "depth", "width"} <= row.keys()
        assert {"temperature", "top_p", "max_abs_error", "exact"} <= row.keys()
        assert (row["verifier"], row["exact"], row["problem"]) == ("rejection", True, None)
    assert {each["draft_law"] for each in report["refused"]} >= {"iid tree", "likely chain"}
    assert all(each["refused"] and "rejection" in each["message"] for each in report["refused"])
    assert all(each["raised"] and each["place"] in each["message"] for each in report["bad_input"])
    assert [each["name"] for each in report["negative_controls"]] == [CONTROLS[0].name]
    [entry] = report["lossy"]
    assert (entry["verifier"], entry["lossless"], entry["limit"]) == ("relaxed", False, "ratio=1.0")
    assert report["passed"]


def test_more_processes_find_the_same() -> None:
    one, two = audit(["rejection"], SMALL, jobs=1), audit(["rejection"], SMALL, jobs=2)
    assert one.rows == two.rows
    assert (one.refused, one.bad_input, one.passed) == (two.refused, two.bad_input, two.passed)


def test_a_wrong_rule_fails(register: Any) -> None:
    report = run(register(Silent))
    assert not report.passed
    assert max(row.finding.max_abs_error or 0 for row in report.rows) > 1e-2


def test_a_rule_that_refuses_nothing_fails(register: Any) -> None:
    report = run(register(Careless))
    assert all(row.finding.exact for row in report.rows)
    assert not report.passed
    assert not any(each.refused for each in report.refused)
    wrong = {each.fault for each in report.bad_input if not each.raised}
    assert {"deterministic draft", "q is 0 for a drafted token", "row is missing"} <= wrong


def test_a_rule_that_crashes_fails_and_says_how(register: Any) -> None:
    report = run(register(Crashing))
    assert not report.passed
    assert {row.finding.problem for row in report.rows} == {"KeyError: 'seven'"}
    assert not any(each.refused for each in report.refused)
    assert "KeyError" in report.refused[0].message


def test_a_rule_that_cannot_be_built_fails(register: Any) -> None:
    report = run(register(Needy))
    assert (report.passed, report.rows) == (False, [])
    assert "'needy' cannot be built" in report.problems[0]


@pytest.mark.parametrize(
    ("rule", "guarantee"), [(Careless, "lossy: so it says"), (CorrectsFromTarget, "lossless")]
)
def test_registry_and_class_must_agree(rule: type[Verifier], guarantee: str, register: Any) -> None:
    report = run(register(rule, guarantee))
    assert not report.passed
    assert any("says lossless=" in problem for problem in report.problems)


def test_tied_noise_fails_by_chi_square(register: Any) -> None:
    report = run(register(ForgetfulNoise), grid=replace(SMALL, seeds=600))
    sampled = [row.finding for row in report.rows if row.finding.method == "chi-square"]
    assert min(1.0 if f.p_value is None else f.p_value for f in sampled) < LEAST_P
    assert not report.passed


def test_a_false_claim_of_equal_tokens_fails() -> None:
    grid = replace(SMALL, seeds=800)
    case = Case(3, 2, 2, 1.5, 0.85, loop=True)
    honest = examine(Unseeded(), draft_sampling("any tree"), case, grid)
    claimed = examine(Unseeded(), draft_sampling("any tree"), case, grid, seed_exact=True)
    assert isinstance(honest, Finding)
    assert isinstance(claimed, Finding)
    assert (honest.exact, honest.max_abs_error) == (True, None)
    assert not claimed.exact
    assert (claimed.max_abs_error or 0) > 0.1
    right = examine(Coupled(), draft_sampling("any tree"), case, grid, seed_exact=True)
    assert isinstance(right, Finding)
    assert (right.exact, right.max_abs_error) == (True, 0.0)


def test_there_are_controls_for_chains_trees_noise_and_drafters() -> None:
    assert len(CONTROLS) == len({control.name for control in CONTROLS}) >= 15


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_every_control_is_caught(control: Control) -> None:
    assert check(control).caught


@pytest.mark.parametrize(
    ("rule", "distribution"),
    [(WrongChainRule, "iid chain"), (Recursive, "iid tree"), (SampleMatch, "any tree")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_control_that_is_right_is_not_caught_and_fails_the_audit(
    rule: type[Verifier], distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Control("right", lambda case: rule(), draft_sampling(distribution))
    assert not check(right).caught
    monkeypatch.setattr(controls, "CONTROLS", (right,))
    report = run("rejection")
    assert (report.passed, all(row.finding.exact for row in report.rows)) == (False, True)


def test_a_control_that_cannot_run_is_not_caught() -> None:
    broken = Control("broken", lambda case: Crashing(), draft_sampling("iid chain"))
    assert not check(broken).caught
    refusing = replace(broken, rule=lambda case: Rejection(), drafts=draft_sampling("paths"))
    assert not check(refusing).caught


def test_no_control_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "CONTROLS", ())
    assert not run("rejection").passed


def has_limit(method: Method) -> bool:
    proof = method.load_proof()
    return proof is not None and proof.limit is not None


@pytest.mark.parametrize("name", [m.name for m in registry.methods() if has_limit(m)])
def test_lossy_rules_lose_nothing_at_their_limit(name: str) -> None:
    entry = lossy(registry.find("verifier", name))
    assert (entry.exact, entry.lossless, entry.problem) == (True, False, None)
    assert entry.cases > 5


def test_a_limit_that_is_none_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("relaxed", Limit({"ratio": 2.0}, False)), ("top_gap", Limit({"beta": 3}))):
        monkeypatch.setattr(f"paceline.methods.proof.{name.upper()}", Proof(limit=limit))
        assert lossy(registry.find("verifier", name.replace("_", "-"))).exact is False
    assert not run("relaxed").passed


def test_rules_that_accept_more_than_they_declare_are_seen() -> None:
    assert refusal(Rejection(), draft_sampling("iid tree")).refused
    found = refusal(Careless(), draft_sampling("iid tree"))
    assert not found.refused
    assert "no error" in found.message or "KeyError" in found.message


def test_every_kind_of_law_and_every_growth_is_drafted_with() -> None:
    assert {drafts.kind for drafts in draft_laws()} == {None, *get_args(SamplingScheme)}
    for module in iter_modules(growth.__path__):
        import_module(f"paceline.trees.{module.name}")
    shipped, found = [TreeExpansion], set[type[TreeExpansion]]()
    while shipped:
        below = shipped.pop().__subclasses__()
        shipped += below
        found |= {each for each in below if each.__module__.startswith("paceline.trees.")}
    names = {each.__name__ for each in found if not isabstract(each)}
    assert len(names) >= 8
    assert names <= vars(draft_schemes).keys()


@pytest.mark.parametrize(
    "drafts", [d for d in draft_laws() if d.build is not None], ids=lambda drafts: drafts.name
)
def test_drafters_do_as_declared(drafts: Draftable) -> None:
    """Kind, budget and shape, over sizes and seeds; and what is no chain does branch somewhere."""
    branched = False
    for case in QUICK.cases(SampleMatch(), drafts):
        assert drafts.build is not None
        q = processed(case.models()[1], case.draft_params, PROMPT)
        propose = drafts.build(q, case.vocabulary, case.width)
        budget = drafts.budget(case.width, case.depth)
        for seed in range(10):
            draft = propose(PROMPT, KeyedRandomness(seed), budget)
            validate(draft)
            assert len(draft) <= budget.nodes
            assert len(draft) == 0 or depths(draft).max() <= budget.depth
            assert draft.sampling is None or draft.sampling.kind == drafts.kind
            assert (draft.sampling is None) == (drafts.kind is None) or not len(draft)
            branched |= not is_chain(draft)
    assert branched == (drafts.shape != "chain")


@pytest.mark.parametrize(
    "verifier", [SampleMatch(), Rejection(), Recursive()], ids=lambda v: v.name
)
def test_grids_cover_what_an_audit_must(verifier: Verifier) -> None:
    for drafts in draft_laws():
        cases = list(FULL.cases(verifier, drafts))
        assert len(cases) == len(set(cases))
        assert {case.vocabulary for case in cases} == {2, 3, 4}
        assert {case.depth for case in cases} == {1, 2, 3}
        assert {case.width for case in cases} == ({1} if drafts.shape == "chain" else {1, 2, 3})
        assert {case.temperature == 1 for case in cases} == {True, False}
        assert {case.top_p == 1 for case in cases} == {True, False}
        assert {case.loop for case in cases} == {True, drafts.build is None}

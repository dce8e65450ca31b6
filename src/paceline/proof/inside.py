"""Exactness audit: every registered verifier on every drafting method, by running shipped code.

Pairs that a verifier accepts must give the target's distribution (`pairs`), others be refused
(`refusal`). `bad_input`, `limits` and `controls` add faults, lossy verifiers, negative controls.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.target import Output
from paceline.core.tree import is_chain, path_to
from paceline.core.types import ROOT, Budget, Distribution, TokenTree
from paceline.errors import BadLogits, IncompatibleDraft, PacelineError
from paceline.proof import controls
from paceline.proof.cases import (
    FULL,
    PROMPT,
    Case,
    Draftable,
    Grid,
    Proof,
    draft_laws,
    draft_sampling,
    proofs,
)
from paceline.proof.compare import Finding, LeftOut, examine
from paceline.proof.controls import Caught
from paceline.proof.oracle import ContinuousNoise, enumerate_distribution
from paceline.proof.tabular import TabularDistributions, processed
from paceline.registry import table as registry
from paceline.registry.table import Method
from paceline.sampling.distributions import without
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.sampling.sampler import Sampler, TreeDistributions
from paceline.verifiers.base import TargetDistributions, Verifier

# Cases of these checks.
GRID = Grid(
    vocabularies=(3,),
    depths=(2,),
    widths=(2,),
    samplings=((1.0, 1.0), (1.5, 0.85), (0.0, 1.0)),
    loops=(3, 2, 2),
    max_runs=2000,
    noise_sizes=((3, 2, 2),),
    noise_samplings=((1.5, 0.85),),
    seeds=400,
)

# Drafting methods, as far as the verifier accepts them.
_DRAFT_LAWS = ("likely chain", "any tree", "iid chain")


def _published(record: Any) -> dict[str, Any]:
    # The published key of a draft's sampling scheme is `draft_law`.
    return {"draft_law" if k == "draft_sampling" else k: v for k, v in asdict(record).items()}


@dataclass(frozen=True, slots=True)
class Lossy:
    """A lossy verifier, not counted as exact by an audit; `exact` is of its limit, or None."""

    verifier: str
    guarantee: str
    limit: str | None = None
    cases: int = 0
    max_abs_error: float | None = None
    exact: bool | None = None
    problem: str | None = None
    lossless: bool = False


def lossy(method: Method) -> Lossy:
    """Check one lossy verifier at its limit, if a table can show it."""
    proof: Proof | None = method.load_proof()
    if proof is None or proof.limit is None:
        return Lossy(method.name, method.guarantee)
    limit = proof.limit
    rule = method.load()(**limit.arguments)
    found: list[Finding] = []
    for name in _DRAFT_LAWS:
        drafts = draft_sampling(name)
        if drafts.fits(rule):
            each = (
                examine(rule, drafts, case, GRID, limit.seed_exact)
                for case in GRID.cases(rule, drafts)
            )
            found += [finding for finding in each if isinstance(finding, Finding)]
    wrong = [finding for finding in found if not finding.exact]
    return Lossy(
        method.name,
        method.guarantee,
        ", ".join(f"{key}={value}" for key, value in limit.arguments.items()),
        len(found),
        max((finding.max_abs_error or 0.0 for finding in found), default=None),
        bool(found) and not wrong,
        next(map(str, wrong), None),
    )


_CASE = Case(vocabulary=3, depth=2, width=2, temperature=1.0, top_p=1.0)
# Samples in place of all outcomes where noise is continuous.
_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Result for one incompatible pair: refused if all drafts raised IncompatibleDraft."""

    verifier: str
    draft_sampling: str
    refused: bool
    message: str


def refusal(verifier: Verifier, drafts: Draftable) -> Refusal:
    """Verify all drafts of a method that `verifier` does not accept.

    Where it accepts the kind and not the shape, drafts that happen to be chains are left out.
    """
    distribution = processed(_CASE.models()[0], _CASE.params, PROMPT)
    first = None
    for draft in _all_drafts(drafts.name):
        if len(draft) and (drafts.kind not in verifier.accepts or _branches(draft)):
            good, message = always_raises(
                partial(verifier.verify, draft, TabularDistributions(distribution, PROMPT, draft)),
                IncompatibleDraft,
                verifier.name,
            )
            if not good:
                return Refusal(verifier.name, drafts.name, False, message)
            first = first or message
    message = first or "there was no draft to refuse"
    return Refusal(verifier.name, drafts.name, first is not None, message)


def always_raises(
    attempt: Callable[[Randomness], object], due: type[PacelineError], *named: str
) -> tuple[bool, str]:
    """Return whether every outcome of `attempt` raises error `due` with all `named` in its message.

    Also returns the first wrong message, or else the first of all.
    """
    seen: dict[str, bool] = {}

    def run(randomness: Randomness) -> tuple[int, ...]:
        try:
            message, good = f"no error: {attempt(randomness)}", False
        except ContinuousNoise:
            raise
        except Exception as error:  # a wrong kind of error is what is looked for
            text = str(error)
            message = f"{type(error).__name__}: {text}"
            good = isinstance(error, due) and "\n" not in text and all(n in text for n in named)
        seen[message] = good
        return ()

    _every_outcome(run)
    return all(seen.values()), min(seen, key=lambda message: seen[message])


def _branches(draft: TokenTree) -> bool:
    distribution = draft.sampling
    repeated = distribution is not None and (
        len(distribution.paths) > 1 or any(len(drawn) > 1 for drawn in distribution.draws.values())
    )
    return repeated or not is_chain(draft)


@cache
def _all_drafts(name: str) -> tuple[TokenTree, ...]:
    drafts = draft_sampling(name)
    q = processed(_CASE.models()[1], _CASE.draft_params, PROMPT)
    if drafts.build is None:
        raise ValueError(f"drafts of '{name}' depend on earlier rounds")
    propose = drafts.build(q, _CASE.vocabulary, _CASE.width)
    budget = drafts.budget(_CASE.width, _CASE.depth)
    found: list[TokenTree] = []

    def run(randomness: Randomness) -> tuple[int, ...]:
        found.append(propose(PROMPT, randomness, budget))
        return ()

    _every_outcome(run)
    return tuple(found)


def _every_outcome(run: Callable[[Randomness], tuple[int, ...]]) -> None:
    try:
        enumerate_distribution(run)
    except ContinuousNoise:
        for seed in range(_SEEDS):
            run(KeyedRandomness(seed))


_BAD_INPUT_CASE = Case(vocabulary=3, depth=2, width=1, temperature=1.0, top_p=1.0)


@dataclass(frozen=True, slots=True)
class BadInput:
    """Outcome of one fault; `raised` if all outcomes of its draws end in an error at `place`."""

    verifier: str
    draft_sampling: str
    fault: str
    place: str
    raised: bool
    message: str


# From a sound chain of two drawn nodes to a broken draft.
Break = Callable[[TokenTree], TokenTree]


def _row(change: Callable[[Distribution], Distribution | None]) -> Break:
    def broken(draft: TokenTree) -> TokenTree:
        assert draft.sampling is not None
        rows = dict(draft.sampling.rows)
        row = change(rows.pop(ROOT))
        if row is not None:
            rows[ROOT] = row
        return replace(draft, sampling=replace(draft.sampling, rows=rows))

    return broken


def _scaled(factors: tuple[float, ...]) -> Break:
    return _row(
        lambda distribution: replace(
            distribution, probs=distribution.dense() * np.array(factors), ids=None
        )
    )


def _impossible(draft: TokenTree) -> TokenTree:
    return _row(lambda distribution: without(distribution, int(draft.tokens[0])))(draft)


def _pruned(draft: TokenTree) -> TokenTree:
    return replace(draft, tokens=draft.tokens[:-1], parents=draft.parents[:-1])


# Faults of a drawn draft, and what the error must name.
_FAULTS: tuple[tuple[str, Break, str], ...] = (
    ("deterministic draft", lambda draft: replace(draft, sampling=None), "deterministic"),
    ("sampled draft pruned", _pruned, "node 0"),
    ("q is 0 for a drafted token", _impossible, "node 0"),
    ("row sums to one half", _scaled((0.5, 0.5, 0.5)), "the root"),
    ("row holds a negative entry", _row(lambda distribution: _negative(distribution)), "the root"),
    ("row holds NaN", _scaled((1.0, np.nan, 1.0)), "the root"),
    ("row is missing", _row(lambda distribution: None), "the root"),
)


def _negative(distribution: Distribution) -> Distribution:
    # Still sums to one.
    probs = distribution.dense().copy()
    most = int(probs.argmax())
    probs[most - 1] -= 1
    probs[most] += 1
    return replace(distribution, probs=probs, ids=None)


def bad_inputs(verifier: Verifier) -> list[BadInput]:
    """Inject every applicable fault into one draft of each kind that `verifier` accepts."""
    target, drafter = _BAD_INPUT_CASE.models()
    distribution = processed(target, _BAD_INPUT_CASE.params, PROMPT)
    q = processed(drafter, _BAD_INPUT_CASE.draft_params, PROMPT)
    found: list[BadInput] = []
    # One entry per kind, the first: faults concern what a draft declares, not how it was grown.
    by_kind = {
        each.kind: (each.name, each.build(q, _BAD_INPUT_CASE.vocabulary, _BAD_INPUT_CASE.width))
        for each in reversed([*draft_laws()])
        if each.build is not None and each.fits(verifier)
    }
    for scheme_name, propose in by_kind.values():
        draft = propose(
            PROMPT, KeyedRandomness(0), Budget(_BAD_INPUT_CASE.depth, _BAD_INPUT_CASE.depth)
        )

        def check(
            fault: str,
            broken: TokenTree,
            distributions: TargetDistributions,
            due: type[IncompatibleDraft] | type[BadLogits],
            place: str,
            name: str = scheme_name,
        ) -> None:
            raised, message = always_raises(
                partial(verifier.verify, broken, distributions), due, verifier.name, place
            )
            found.append(BadInput(verifier.name, name, fault, place, raised, message))

        check("NaN logits", draft, _nan_distributions(verifier, draft), BadLogits, "the root")
        if None not in verifier.accepts:  # a rule that needs no distribution reads no rows
            for fault, breaks, place in _FAULTS:
                broken = breaks(draft)
                distributions = TabularDistributions(distribution, PROMPT, broken)
                check(fault, broken, distributions, IncompatibleDraft, place)
    return found


def _nan_distributions(verifier: Verifier, draft: TokenTree) -> TargetDistributions:
    target = _BAD_INPUT_CASE.models()[0]
    paths = [draft.tokens[list(path_to(draft, node))].tolist() for node in range(len(draft))]
    logits = np.stack([target((*PROMPT, *path)) for path in ([], *paths)])
    logits[0] = np.nan
    sampler = Sampler(_BAD_INPUT_CASE.params, PROMPT)
    return TreeDistributions(sampler, draft, Output(logits), len(PROMPT), verifier.name)


# Called with the number of cases done, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One case of one compatible pair."""

    verifier: str
    draft_sampling: str
    case: Case
    finding: Finding

    def as_dict(self) -> dict[str, Any]:
        names = {"verifier": self.verifier, "draft_law": self.draft_sampling}
        return names | asdict(self.case) | asdict(self.finding) | {"exact": self.finding.exact}


@dataclass(frozen=True, slots=True)
class Missing:
    """Number of cases of one pair that were not run, and the reason."""

    verifier: str
    draft_sampling: str
    why: LeftOut
    cases: int


@dataclass(frozen=True, slots=True)
class InsideReport:
    """Results of an audit: cases, cases left out, refusals, faults, lossy verifiers and controls.

    `problems` has one line per verifier that is wrong as a whole.
    """

    rows: list[AuditRow]
    left_out: list[Missing]
    refused: list[Refusal]
    bad_input: list[BadInput]
    lossy: list[Lossy]
    negative_controls: list[Caught]
    problems: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.problems and all(
            (
                bool(self.negative_controls),
                all(row.finding.exact for row in self.rows),
                all(each.refused for each in self.refused),
                all(each.raised for each in self.bad_input),
                all(each.exact is not False for each in self.lossy),
                all(each.caught for each in self.negative_controls),
            )
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": [row.as_dict() for row in self.rows],
            "left_out": [_published(each) for each in self.left_out],
            "refused": [_published(each) for each in self.refused],
            "bad_input": [asdict(each) for each in self.bad_input],
            "lossy": [asdict(each) for each in self.lossy],
            "negative_controls": [asdict(each) for each in self.negative_controls],
            "problems": self.problems,
            "seconds": self.seconds,
            "passed": self.passed,
        }


@dataclass(frozen=True, slots=True)
class _Task:
    verifier: str
    draft_sampling: str
    case: Case


def audit(
    names: Sequence[str] = (),
    grid: Grid = FULL,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> InsideReport:
    """Audit the registered verifiers, all if `names` is empty; raises InvalidOption if unknown.

    `jobs` None takes one process per core. Above 1, a calling script needs a main guard.
    """
    begin = perf_counter()
    methods = [registry.find("verifier", name) for name in names or registry.names("verifier")]
    rules: dict[str, Verifier] = {}
    lossy_rules: list[Lossy] = []
    problems: list[str] = []
    for method in methods:
        try:
            if method.load().lossless:
                rules[method.name] = _build(method)
            else:
                lossy_rules.append(lossy(method))
        except Exception as error:  # a plugin's rule may fail in any way
            problems.append(f"verifier '{method.name}' cannot be built: {error}")
            continue
        if method.guarantee.startswith("lossless") != (method.name in rules):
            problems.append(
                f"verifier '{method.name}' is registered as '{method.guarantee}', but its class "
                f"says lossless={method.name in rules}"
            )
    tasks = [
        _Task(name, drafts.name, case)
        for name, rule in rules.items()
        for drafts in draft_laws()
        if drafts.fits(rule)
        for case in grid.cases(rule, drafts)
    ]
    rows: list[AuditRow] = []
    skipped: Counter[tuple[str, str, LeftOut]] = Counter()
    for done, (task, found) in enumerate(zip(tasks, _run(tasks, grid, jobs), strict=True), 1):
        if isinstance(found, Finding):
            rows.append(AuditRow(task.verifier, task.draft_sampling, task.case, found))
        else:
            skipped[task.verifier, task.draft_sampling, found] += 1
        progress(done, len(tasks))
    unseen = {(t.verifier, t.draft_sampling) for t in tasks} - {
        (r.verifier, r.draft_sampling) for r in rows
    }
    problems += [
        f"verifier '{v}' on draft distribution '{d}': no case was run" for v, d in sorted(unseen)
    ]
    return InsideReport(
        rows=rows,
        left_out=[Missing(*pair, count) for pair, count in skipped.items()],
        refused=[
            refusal(rule, drafts)
            for rule in rules.values()
            for drafts in draft_laws()
            if drafts.build is not None and not drafts.fits(rule)
        ],
        bad_input=[found for rule in rules.values() for found in bad_inputs(rule)],
        lossy=lossy_rules,
        negative_controls=[
            controls.check(control)
            for control in (
                *controls.CONTROLS,
                *(each for proof in proofs() for each in proof.controls),
            )
        ],
        problems=problems,
        seconds=perf_counter() - begin,
    )


def _build(method: Method) -> Verifier:
    rule: Verifier = method.load()()
    return rule


def _run(tasks: Sequence[_Task], grid: Grid, jobs: int | None) -> Iterator[Finding | LeftOut]:
    work = partial(_examine, grid=grid)
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(work, tasks)
        return
    # A fresh interpreter per process: forking one that runs threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield from pool.map(work, tasks, chunksize=8)


def _examine(task: _Task, grid: Grid) -> Finding | LeftOut:
    method = registry.find("verifier", task.verifier)
    seed_exact = "seed-exact" in method.guarantee
    return examine(_build(method), draft_sampling(task.draft_sampling), task.case, grid, seed_exact)

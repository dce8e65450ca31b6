"""Exactness audit: every registered verifier on every drafting method, by running shipped code.

Pairs that a verifier accepts must give the target's distribution (`pairs`), others be refused
(`refusals`). `bad_input`, `limits` and `controls` add faults, lossy verifiers, negative controls.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

from paceline import registry
from paceline.exactness import controls
from paceline.exactness.bad_input import BadInput, bad_inputs
from paceline.exactness.cases import FULL, Case, Grid
from paceline.exactness.controls import Caught
from paceline.exactness.draft_laws import DRAFT_LAWS, draft_law
from paceline.exactness.limits import Lossy, lossy
from paceline.exactness.pairs import Finding, LeftOut, examine
from paceline.exactness.refusals import Refusal, refusal
from paceline.registry import Method
from paceline.verifiers.base import Verifier

# Called with the number of cases done, and of all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One case of one compatible pair."""

    verifier: str
    draft_law: str
    case: Case
    finding: Finding

    def as_dict(self) -> dict[str, Any]:
        names = {"verifier": self.verifier, "draft_law": self.draft_law}
        return names | asdict(self.case) | asdict(self.finding) | {"exact": self.finding.exact}


@dataclass(frozen=True, slots=True)
class Missing:
    """Number of cases of one pair that were not run, and the reason."""

    verifier: str
    draft_law: str
    why: LeftOut
    cases: int


@dataclass(frozen=True, slots=True)
class Report:
    """Results of an audit: cases, cases left out, refusals, faults, lossy verifiers and controls.

    `problems` has one line per verifier that is wrong as a whole.
    """

    rows: list[Row]
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
            "left_out": [asdict(each) for each in self.left_out],
            "refused": [asdict(each) for each in self.refused],
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
    draft_law: str
    case: Case


def audit(
    names: Sequence[str] = (),
    grid: Grid = FULL,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
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
        for drafts in DRAFT_LAWS
        if drafts.fits(rule)
        for case in grid.cases(rule, drafts)
    ]
    rows: list[Row] = []
    skipped: Counter[tuple[str, str, LeftOut]] = Counter()
    for done, (task, found) in enumerate(zip(tasks, _run(tasks, grid, jobs), strict=True), 1):
        if isinstance(found, Finding):
            rows.append(Row(task.verifier, task.draft_law, task.case, found))
        else:
            skipped[task.verifier, task.draft_law, found] += 1
        progress(done, len(tasks))
    unseen = {(t.verifier, t.draft_law) for t in tasks} - {(r.verifier, r.draft_law) for r in rows}
    problems += [f"verifier '{v}' on draft law '{d}': no case was run" for v, d in sorted(unseen)]
    return Report(
        rows=rows,
        left_out=[Missing(*pair, count) for pair, count in skipped.items()],
        refused=[
            refusal(rule, drafts)
            for rule in rules.values()
            for drafts in DRAFT_LAWS
            if drafts.build is not None and not drafts.fits(rule)
        ],
        bad_input=[found for rule in rules.values() for found in bad_inputs(rule)],
        lossy=lossy_rules,
        negative_controls=[controls.check(control) for control in controls.CONTROLS],
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
    return examine(_build(method), draft_law(task.draft_law), task.case, grid, seed_exact)

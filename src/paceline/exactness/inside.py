"""The audit from inside: every lossless rule on every way of drafting, by running shipped code.

Ways of drafting (`draft_laws`) are crossed with the rules of the registry, plugins included. Where
a rule declares that it holds (`Verifier.accepts`, `shape`, `greedy_only`), its output law is
compared with the target's (`pairs`); elsewhere it must refuse (`refusals`). Broken input must be
named (`bad_input`), lossy rules are checked where they say that they lose nothing (`limits`), and
rules that are wrong on purpose must be caught (`controls`).
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

Progress = Callable[[int, int], None]
"""Told how many cases are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case of one compatible pair."""

    verifier: str
    draft_law: str
    case: Case
    finding: Finding

    def as_dict(self) -> dict[str, Any]:
        """Flat, for JSON."""
        names = {"verifier": self.verifier, "draft_law": self.draft_law}
        return names | asdict(self.case) | asdict(self.finding) | {"exact": self.finding.exact}


@dataclass(frozen=True, slots=True)
class Missing:
    """Cases of one pair that were not run.

    Attributes:
        verifier: registry name of the rule.
        draft_law: name of the way of drafting.
        why: the reason.
        cases: how many.
    """

    verifier: str
    draft_law: str
    why: LeftOut
    cases: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that an audit found.

    Attributes:
        rows: one per case of a compatible pair.
        left_out: cases that were not run, counted by pair and reason.
        refused: one per incompatible pair.
        bad_input: one per rule, kind of draft and fault.
        lossy: one per lossy rule.
        negative_controls: one per control.
        problems: what is wrong with a rule as a whole, one line each.
        seconds: how long it took.
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
        """Whether nothing at all is wrong."""
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
        """Everything, for JSON."""
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
    """One case of one pair by name, so that another process can run it."""

    verifier: str
    draft_law: str
    case: Case


def audit(
    names: Sequence[str] = (),
    grid: Grid = FULL,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Audit the registered verifiers.

    Args:
        names: audit these alone; all if empty.
        grid: which cases are run.
        jobs: processes; None takes one per core. With 1 everything runs in this process; with
            more, a script that calls this needs the usual guard of its main module.
        progress: called as cases finish.

    Raises:
        InvalidOption: a name is unknown.
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
    """The rule with its defaults."""
    rule: Verifier = method.load()()
    return rule


def _run(tasks: Sequence[_Task], grid: Grid, jobs: int | None) -> Iterator[Finding | LeftOut]:
    """What each task found, in order."""
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

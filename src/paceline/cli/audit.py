"""`paceline audit`: exactness by enumeration, and of any engine as a black box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, progress_bar
from paceline.cli.output import report as tell
from paceline.core.options import within
from paceline.core.processor import cores
from paceline.errors import InvalidOption
from paceline.lab.audit.checks import AuditExtent

if TYPE_CHECKING:
    from rich.table import Table

    from paceline.proof.inside import AuditRow, InsideReport

_GREEDY = ("prompts", "greedy_prompts", "greedy_tokens")
_SAMPLED = ("samples", "tokens", "temperature", "level", "near_tie", "seed")

FAILED = 1
"""Exit code of an audit that found something wrong."""


def inside(
    quick: Annotated[bool, "Fewer and smaller cases."] = False,
    verifier: Annotated[list[str] | None, "Audit this one alone; repeatable."] = None,
    jobs: Annotated[int | None, "Processes; default: one per core."] = None,
    as_json: o.AsJson = False,
) -> None:
    """Enumerate the shipped rules on every way of drafting; exit code 1 if anything is wrong.

    All verifiers of `paceline methods` are audited, plugins included. A full audit takes some ten
    minutes, --quick less than one.
    """
    o.check_at_least_one(jobs=jobs)
    if jobs is not None:
        within("--jobs", jobs, 1, 8 * cores(), "eight for each core")

    from paceline.proof.cases import FULL, QUICK
    from paceline.proof.inside import audit as audit_inside

    with _bar(shown=not as_json) as bar:
        report = audit_inside(verifier or (), QUICK if quick else FULL, jobs, bar)
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(FAILED)


def outside(
    engine: Annotated[
        str,
        typer.Argument(
            help="paceline, the name of a peer, a URL, python:MODULE:FUNCTION, or command:PROGRAM."
        ),
    ],
    option: Annotated[list[str] | None, "KEY=VALUE for the engine; repeatable."] = None,
    *,
    plan: Annotated[AuditExtent, o.Takes(*_GREEDY, *_SAMPLED)],
    as_json: o.AsJson = False,
) -> None:
    """Compare an engine with itself, speculation on and off; exit code 1 if they differ."""
    from paceline.lab.audit.outside import run
    from paceline.lab.audit.report import plain_report

    settings = _settings(option or [])
    with _bar(shown=not as_json) as bar:
        report = run(engine, plan, settings, lambda line: bar(0, 0, line))
    tell(report.as_dict(), plain_report(report), as_json=as_json)
    if not report.passed:
        raise typer.Exit(FAILED)


def _settings(pairs: list[str]) -> Mapping[str, str]:
    out: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidOption(f"--option {pair!r} is no KEY=VALUE")
        out[key.replace("-", "_")] = value
    return out


@contextmanager
def _bar(shown: bool) -> Iterator[Callable[..., None]]:
    with progress_bar(shown=shown) as bar:
        task = bar.add_task("cases", total=None)

        def show(done: int, total: int, what: str = "cases") -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        yield show


def _print(report: InsideReport) -> None:
    from rich.console import Console

    Console().print(_table(report), markup=False)
    missing = Counter[str]()
    for left in report.left_out:
        missing[left.why] += left.cases
    lines = [
        "",
        f"cases: {len(report.rows)} run, "
        + (", ".join(f"{n} left out ({why})" for why, n in missing.items()) or "none left out"),
        _count("incompatible pairs refused", [each.refused for each in report.refused]),
        _count("bad inputs named", [each.raised for each in report.bad_input]),
        _count("wrong rules caught", [each.caught for each in report.negative_controls]),
        *(f"  {each.name}: {each.how}" for each in report.negative_controls if each.caught),
    ]
    for rule in report.lossy:
        if rule.limit is None:
            limit = "no lossless limit checked"
        else:
            limit = f"at its limit ({rule.limit}) {'exact' if rule.exact else 'NOT EXACT'}"
        lines.append(f"lossy, not counted as exact: {rule.verifier}, {limit}")
    lines += _failures(report)
    verdict = "passed" if report.passed else "FAILED"
    lines.append(f"{verdict} in {report.seconds:.0f} s")
    typer.echo("\n".join(lines))


def _table(report: InsideReport) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("verifier", "draft sampling", "cases", "runs", "max abs error", "least p", ""):
        right = column in ("cases", "runs", "max abs error", "least p")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    pairs: dict[tuple[str, str], list[AuditRow]] = {}
    for row in report.rows:
        pairs.setdefault((row.verifier, row.draft_sampling), []).append(row)
    above = ""
    for (verifier, distribution), rows in pairs.items():
        findings = [row.finding for row in rows]
        errors = [f.max_abs_error for f in findings if f.max_abs_error is not None]
        fits = [f.p_value for f in findings if f.p_value is not None]
        if above and verifier != above:
            table.add_section()
        table.add_row(
            verifier if verifier != above else "",
            distribution,
            str(len(rows)),
            str(sum(f.runs for f in findings)),
            f"{max(errors):.1e}" if errors else "",
            f"{min(fits):.2g}" if fits else "",
            "exact" if all(f.exact for f in findings) else "NOT EXACT",
        )
        above = verifier
    return table


def _count(what: str, good: list[bool]) -> str:
    return f"{what}: {sum(good)} of {len(good)}"


def _failures(report: InsideReport) -> list[str]:
    rows = [row for row in report.rows if not row.finding.exact]
    return [
        *(f"FAILED: {problem}" for problem in report.problems),
        *(f"FAILED: {r.verifier} on {r.draft_sampling}, {r.case}: {r.finding}" for r in rows),
        *(
            f"FAILED: {each.verifier} did not refuse {each.draft_sampling}: {each.message}"
            for each in report.refused
            if not each.refused
        ),
        *(
            f"FAILED: {each.verifier} on {each.draft_sampling}, {each.fault}: {each.message}"
            for each in report.bad_input
            if not each.raised
        ),
        *(
            f"FAILED: {each.verifier} at its limit ({each.limit}): {each.problem}"
            for each in report.lossy
            if each.exact is False
        ),
        *(
            f"FAILED: not caught: {each.name}: {each.how}"
            for each in report.negative_controls
            if not each.caught
        ),
    ]

"""Lossy verifiers at the setting where each must be lossless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.exactness.cases import Grid
from paceline.exactness.draft_laws import draft_law
from paceline.exactness.pairs import Finding, examine
from paceline.registry import Method

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


@dataclass(frozen=True, slots=True)
class Limit:
    """Constructor arguments at which a verifier is lossless, and whether it is then seed-exact."""

    arguments: Mapping[str, Any]
    seed_exact: bool = True


# By registry name; without verifiers that read hidden states, which tables lack.
LIMITS: Mapping[str, Limit] = {
    "typical": Limit({"epsilon": 1.0, "delta": 1e9, "greedy_next": False}),
    "top-gap": Limit({"beta": 1}),
    "fly": Limit({"window": 100}),
    "reflective": Limit({"alpha": 0.0}),
    "relaxed": Limit({"ratio": 1.0}, seed_exact=False),
}


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
    limit = LIMITS.get(method.name)
    if limit is None:
        return Lossy(method.name, method.guarantee)
    rule = method.load()(**limit.arguments)
    found: list[Finding] = []
    for name in _DRAFT_LAWS:
        drafts = draft_law(name)
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

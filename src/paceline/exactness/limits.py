"""Lossy rules where they lose nothing: the setting of each at which its law must be the target's.

Elsewhere nothing is claimed of them, and nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.exactness.cases import Grid
from paceline.exactness.draft_laws import draft_law
from paceline.exactness.pairs import Finding, examine
from paceline.registry import Method

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
"""What limits are checked on."""

_DRAFT_LAWS = ("likely chain", "any tree", "iid chain")
"""How drafts are made for it, as far as the rule takes them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a rule is lossless.

    Attributes:
        arguments: of its constructor.
        seed_exact: whether it is then also plain decoding token by token, seed by seed.
    """

    arguments: Mapping[str, Any]
    seed_exact: bool = True


LIMITS: Mapping[str, Limit] = {
    "typical": Limit({"epsilon": 1.0, "delta": 1e9, "greedy_next": False}),
    "top-gap": Limit({"beta": 1}),
    "fly": Limit({"window": 100}),
    "reflective": Limit({"alpha": 0.0}),
    "relaxed": Limit({"ratio": 1.0}, seed_exact=False),
}
"""By registry name. Rules that read hidden states are missing: tables have none."""


@dataclass(frozen=True, slots=True)
class Lossy:
    """A lossy rule, which no row of an audit counts as exact.

    Attributes:
        verifier: registry name of the rule.
        guarantee: what the registry says of it.
        limit: the arguments at which it was checked; None if it was not.
        cases: how many were run there.
        max_abs_error: the largest error found there; None without a limit.
        exact: whether the rule is lossless there; None without a limit.
        problem: what was seen on the first case that is not exact.
        lossless: always False, to be read beside `exact`.
    """

    verifier: str
    guarantee: str
    limit: str | None = None
    cases: int = 0
    max_abs_error: float | None = None
    exact: bool | None = None
    problem: str | None = None
    lossless: bool = False


def lossy(method: Method) -> Lossy:
    """Check one lossy rule at its limit, if it has one that a table can show."""
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

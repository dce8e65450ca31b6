"""Negative controls of the audit: wrong verifiers and drafters that it must detect."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.types import SamplingParams, SamplingScheme
from paceline.proof import negative
from paceline.proof.cases import (
    PROMPT,
    Case,
    Control,
    Draftable,
    Grid,
    Propose,
    draft_sampling,
    grown,
)
from paceline.proof.compare import Finding, examine
from paceline.proof.tabular import DistributionOf, processed
from paceline.trees.drawn import Branching
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import SampleMatch
from paceline.verifiers.recursive import RecursiveDistinct
from paceline.verifiers.rejection import Rejection

# Error that detects a wrong verifier: far above rounding.
VISIBLE = 1e-3

# p-value below which a chi-square test detects a wrong verifier.
SURE = 1e-6

# Controls run on these cases, one after the other, until detected.
GRID = Grid(
    vocabularies=(3, 4),
    depths=(1, 2),
    widths=(2, 3),
    samplings=((1.0, 1.0), (0.7, 0.8)),
    loops=(0, 0, 0),
    max_runs=2000,
    noise_sizes=((3, 2, 2),),
    noise_samplings=((1.0, 1.0),),
    seeds=4000,
)


@dataclass(frozen=True, slots=True)
class Caught:
    """Result of a control: detected or not, and the evidence with its case."""

    name: str
    caught: bool
    how: str


def _wrong_rule(name: str, rule: Callable[[], Verifier], distribution: str) -> Control:
    return Control(name, lambda case: rule(), draft_sampling(distribution))


def _wrong_drafter(
    name: str,
    rule: Callable[[], Verifier],
    kind: SamplingScheme | None,
    build: Callable[[DistributionOf, int], Propose],
) -> Control:
    drafts = Draftable(
        name, kind, "tree", operator.mul, lambda q, vocabulary, width: build(q, width)
    )
    return Control(name, lambda case: rule(), drafts)


def _residual_of_raw_logits(case: Case) -> Verifier:
    raw = processed(case.models()[0], SamplingParams(temperature=1), PROMPT)
    return negative.ResidualOfRawLogits(lambda node: raw(PROMPT))


CONTROLS: tuple[Control, ...] = (
    _wrong_rule("correction from p", negative.CorrectsFromTarget, "iid chain"),
    _wrong_rule("every draft accepted", negative.AlwaysAccepts, "iid chain"),
    _wrong_rule("accepted by p instead of p/q", negative.AcceptsByTargetMass, "iid chain"),
    _wrong_rule("chain residual not normalised", negative.ResidualNotNormalised, "iid chain"),
    Control("residual of raw logits", _residual_of_raw_logits, draft_sampling("iid chain")),
    _wrong_rule("a second try at matching", negative.MatchesOrRetries, "any tree"),
    _wrong_rule("noise keyed by round", negative.RepeatsNoise, "any tree"),
    _wrong_rule("block with early exit", negative.BlockWithEarlyExit, "iid chain"),
    _wrong_rule(
        "path selected, distribution unchanged", negative.MultipathByPlainDistribution, "paths"
    ),
    _wrong_rule("sibling residual not normalised", negative.ForgetsToNormalise, "iid tree"),
    _wrong_rule("rejected sibling kept in q", negative.KeepsRejected, "branching"),
    _wrong_rule("siblings sorted by q", negative.SortsSiblings, "branching"),
    _wrong_rule("repeated draws merged", negative.MergesRepeats, "iid tree"),
    _wrong_rule("k-seq residual unscaled", negative.CorrectsUnscaled, "paths"),
    _wrong_rule("argmax kept in q", negative.ForgetsTheArgmax, "top and one"),
    _wrong_drafter(
        "argmax called drawn", Rejection, "iid", lambda q, width: negative.top_one_as_sampled(q)
    ),
    _wrong_drafter(
        "drawn token dropped for its own q",
        Rejection,
        "iid",
        lambda q, width: negative.drops_unlikely(q, 0.3),
    ),
    _wrong_drafter(
        "most probable siblings called drawn",
        RecursiveDistinct,
        "without_replacement",
        lambda q, width: grown(negative.ClaimsTheArgmax([width]), q),
    ),
    _wrong_drafter(
        "drawn tree pruned by its own q",
        RecursiveDistinct,
        "without_replacement",
        lambda q, width: negative.prunes_unlikely(grown(Branching([width, 1]), q), 0.3),
    ),
    _wrong_drafter(
        "draft drawn with the target's draws",
        SampleMatch,
        None,
        lambda q, width: negative.peeks_at_target(q),
    ),
)


def check(control: Control) -> Caught:
    """Run one control as the audit runs verifiers."""
    last = "no case was run"
    for case in GRID.cases(control.rule(_ANY), control.drafts):
        found = examine(control.rule(case), control.drafts, case, GRID)
        if not isinstance(found, Finding):
            continue
        last = f"{found} ({case})"
        if _wrong(found):
            return Caught(control.name, True, last)
    return Caught(control.name, False, last)


_ANY = Case(3, 1, 1, 1.0, 1.0)


def _wrong(found: Finding) -> bool:
    # A crash is no detection, except a reused draw.
    if found.problem is not None:
        return found.problem.startswith("ReusedDraw")
    if found.p_value is not None:
        return found.p_value < SURE
    return found.max_abs_error is not None and found.max_abs_error > VISIBLE

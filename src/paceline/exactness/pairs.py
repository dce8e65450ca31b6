"""One verifier on one drafting method and one case: exact or not."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from paceline.drafters.base import Drafter
from paceline.drafters.none import NoDrafter
from paceline.exactness.cases import PROMPT, Case, Grid
from paceline.exactness.compare import (
    drafter_loop,
    extend,
    goodness_of_fit,
    max_error,
    one_round,
    round_outcomes,
    target_joint,
)
from paceline.exactness.draft_laws import Draftable
from paceline.exactness.drafting import FunctionDrafter
from paceline.exactness.oracle import ContinuousNoise, Joint, add_up, estimate_runs, outcomes
from paceline.exactness.tabular import processed
from paceline.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import Verifier

# Largest error that counts as none: rounding of float64 sums.
EXACT = 1e-12

# p-value below which a chi-square test speaks against a verifier.
LEAST_P = 1e-4

# Reason for not running a case.
LeftOut = Literal["too many outcomes", "noise is sampled on other cases"]

# From a source of draws to output tokens.
Run = Callable[[Randomness], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one case.

    Attributes:
        method: "enumeration", or "chi-square" over fixed seeds where noise is continuous.
        max_abs_error: of any output's probability. By chi-square, for seed-exact verifiers, the
            share of seeds that differ from autoregressive decoding; else None.
        problem: what was raised instead of an output.
    """

    method: Literal["enumeration", "chi-square"]
    runs: int
    max_abs_error: float | None = None
    p_value: float | None = None
    problem: str | None = None

    @property
    def exact(self) -> bool:
        small = self.max_abs_error is None or self.max_abs_error <= EXACT
        likely = self.p_value is None or self.p_value >= LEAST_P
        return self.problem is None and small and likely

    def __str__(self) -> str:
        parts = [] if self.max_abs_error is None else [f"max abs error {self.max_abs_error:.2g}"]
        if self.p_value is not None:
            parts.append(f"chi-square p = {self.p_value:.1g}")
        return self.problem or ", ".join(parts)


def examine(
    verifier: Verifier, drafts: Draftable, case: Case, grid: Grid, seed_exact: bool = False
) -> Finding | LeftOut:
    """Run one case, by enumeration if possible; errors of verifier or drafter are findings.

    `seed_exact` also compares tokens with autoregressive decoding, seed by seed.
    """
    budget = drafts.budget(case.width, case.depth)
    target, drafter = case.models()
    law = processed(target, case.params, PROMPT)
    q = processed(drafter, case.draft_params, PROMPT)
    propose = drafts.build and drafts.build(q, case.vocabulary, case.width)

    def make_drafter() -> Drafter:
        if drafts.drafter is not None:
            return drafts.drafter(drafter, case.vocabulary)
        return NoDrafter() if propose is None else FunctionDrafter(propose)

    def loop(make: Callable[[], Drafter]) -> Run:
        return drafter_loop(target, case.vocabulary, verifier, make, PROMPT, case.params, budget)

    run: Run
    weighted: Iterator[tuple[tuple[int, ...], float]]
    if case.loop or propose is None:
        run = loop(make_drafter)
        weighted = ((output, chance) for output, chance, _ in outcomes(run))
    else:
        run = partial(one_round, verifier, law, propose, PROMPT, budget=budget)
        weighted = round_outcomes(verifier, law, propose, PROMPT, budget)
    truth = target_joint(law, PROMPT, case.horizon)
    try:
        try:
            if estimate_runs(run) > grid.most(verifier, case):
                return "too many outcomes"
            runs = list(weighted)
            joint = extend(add_up(runs), law, PROMPT, case.horizon)
            return Finding("enumeration", len(runs), max_abs_error=max_error(joint, truth))
        except ContinuousNoise:
            seeds = grid.samples(verifier, drafts, case)
            if not seeds:
                return "noise is sampled on other cases"
        return _by_chi_square(run, truth, seeds, loop(NoDrafter) if seed_exact else None)
    except Exception as error:  # of a rule or drafter, which may be a plugin's: it is the finding
        return Finding("enumeration", 0, problem=f"{type(error).__name__}: {error}")


def _by_chi_square(run: Run, truth: Joint, seeds: int, plain: Run | None) -> Finding:
    outputs = [run(KeyedRandomness(seed)) for seed in range(seeds)]
    different = None
    if plain is not None:
        other = (plain(KeyedRandomness(seed)) for seed in range(seeds))
        different = sum(map(operator.ne, outputs, other)) / seeds
    fit = goodness_of_fit(Counter(outputs), truth)
    return Finding("chi-square", seeds, max_abs_error=different, p_value=fit)

"""Output distribution of verification against the target's, by enumeration or goodness of fit."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from paceline.core.constraint import Constraint
from paceline.core.types import Budget, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.proof.cases import PROMPT, Case, Draftable, FunctionDrafter, Grid, Propose
from paceline.proof.oracle import ContinuousNoise, Joint, add_up, estimate_runs, outcomes
from paceline.proof.tabular import (
    DistributionOf,
    LogitsOf,
    TabularDistributions,
    TabularTarget,
    processed,
)
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import Verifier


def target_joint(distribution: DistributionOf, context: tuple[int, ...], horizon: int) -> Joint:
    """Return the target's exact distribution of the `horizon` tokens after `context`."""
    joint: Joint = {(): 1.0}
    for _ in range(horizon):
        longer: Joint = {}
        for output, mass in joint.items():
            p = distribution((*context, *output))
            for index, probability in enumerate(p.probs.tolist()):
                if probability > 0:
                    longer[(*output, p.token(index))] = mass * probability
        joint = longer
    return joint


def extend(
    joint: Joint, distribution: DistributionOf, context: tuple[int, ...], horizon: int
) -> Joint:
    """Bring outputs to `horizon` tokens: extend by the target's distribution, or marginalise."""
    terms: dict[tuple[int, ...], list[float]] = {}
    for output, mass in joint.items():
        rest = target_joint(distribution, (*context, *output), max(0, horizon - len(output)))
        for tail, probability in rest.items():
            terms.setdefault((*output, *tail)[:horizon], []).append(mass * probability)
    return {output: math.fsum(masses) for output, masses in terms.items()}


def one_round(
    verifier: Verifier,
    distribution: DistributionOf,
    propose: Propose,
    context: tuple[int, ...],
    randomness: Randomness,
    budget: Budget,
) -> tuple[int, ...]:
    """Return the tokens that one draft and its verification add to `context`."""
    draft = verifier.extend(propose(context, randomness, budget))
    verdict = verifier.verify(draft, TabularDistributions(distribution, context, draft), randomness)
    return (*draft.tokens[list(verdict.path)].tolist(), verdict.next_token)


def round_outcomes(
    verifier: Verifier,
    distribution: DistributionOf,
    propose: Propose,
    context: tuple[int, ...],
    budget: Budget,
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield each outcome of `one_round` with its probability.

    Each draft is drawn once and then verified in all ways, which is faster than whole rounds.
    """
    drafts = outcomes(lambda r: verifier.extend(propose(context, r, budget)))
    for draft, chance, drawn in drafts:
        distributions = TabularDistributions(distribution, context, draft)
        verdicts = outcomes(partial(verifier.verify, draft, distributions), after=drawn)
        for verdict, share, _ in verdicts:
            tokens = draft.tokens[list(verdict.path)].tolist()
            yield (*tokens, verdict.next_token), chance * share


def drafter_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    make_drafter: Callable[[], Drafter],
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
    steps: int | None = None,
    constraint: Constraint | None = None,
) -> Callable[[Randomness], tuple[int, ...]]:
    """Return the shipped decode loop as a function of its randomness, ended after `steps` if given.

    `make_drafter` builds a fresh drafter for every run, which may be stateful.
    """

    def run(randomness: Randomness) -> tuple[int, ...]:
        target = TabularTarget(logits, vocabulary)
        controller = Fixed(budget.nodes, budget.depth)
        stops = StopRules((), target.capabilities.max_context)
        decoder = AutoregressiveDecoder(target, make_drafter(), verifier, controller, stops)
        sequence = Generation.start(0, prompt, params, constraint=constraint, randomness=randomness)
        decoder.open(sequence)
        while sequence.finish_reason is None and sequence.stats.target_forwards != steps:
            decoder.step([sequence])
        decoder.close(sequence)
        return tuple(sequence.generated)

    return run


def max_error(first: Joint, second: Joint) -> float:
    """Return the largest absolute difference of two distributions at any output."""
    return max(abs(first.get(output, 0.0) - second.get(output, 0.0)) for output in first | second)


def goodness_of_fit(counts: Mapping[tuple[int, ...], int], joint: Joint) -> float:
    """Return the p-value of Pearson's chi-square test that `counts` were drawn from `joint`.

    Outputs expected fewer than five times are pooled; one outside the support gives 0.
    """
    total = sum(counts.values())
    if any(joint.get(output, 0.0) == 0.0 for output in counts):
        return 0.0
    cells: list[tuple[float, int]] = []
    rare, seen = 0.0, 0
    for output, probability in joint.items():
        expected, observed = probability * total, counts.get(output, 0)
        if expected < 5:
            rare, seen = rare + expected, seen + observed
        else:
            cells.append((expected, observed))
    if rare:
        cells.append((rare, seen))
    statistic = math.fsum((observed - expected) ** 2 / expected for expected, observed in cells)
    return _upper_tail(statistic, len(cells) - 1)


def _upper_tail(statistic: float, freedom: int) -> float:
    # Regularised gamma Q(a, y) at half-integer a, by Q(a + 1) = Q(a) + y^a e^-y / a!.
    y = statistic / 2
    if freedom < 1 or y == 0:
        return 1.0
    a = 1.0 if freedom % 2 == 0 else 0.5
    tail = math.exp(-y) if a == 1.0 else math.erfc(math.sqrt(y))
    while a < freedom / 2:
        tail += math.exp(a * math.log(y) - y - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)


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
    verifier: Verifier,
    drafts: Draftable,
    case: Case,
    grid: Grid,
    seed_exact: bool = False,
    constraint: Constraint | None = None,
) -> Finding | LeftOut:
    """Run one case, by enumeration if possible; errors of verifier or drafter are findings.

    `seed_exact` also compares tokens with autoregressive decoding, seed by seed.
    """
    budget = drafts.budget(case.width, case.depth)
    target, drafter = case.models()
    distribution = processed(target, case.params, PROMPT, constraint)
    q = processed(drafter, case.draft_params, PROMPT, constraint)
    propose = drafts.build and drafts.build(q, case.vocabulary, case.width)

    def make_drafter() -> Drafter:
        if drafts.drafter is not None:
            return drafts.drafter(drafter, case.vocabulary)
        return NoDrafter() if propose is None else FunctionDrafter(propose)

    def loop(make: Callable[[], Drafter]) -> Run:
        return drafter_loop(
            target,
            case.vocabulary,
            verifier,
            make,
            prompt=PROMPT,
            params=case.params,
            budget=budget,
            constraint=constraint,
        )

    run: Run
    weighted: Iterator[tuple[tuple[int, ...], float]]
    if case.loop or propose is None:
        run = loop(make_drafter)
        weighted = ((output, chance) for output, chance, _ in outcomes(run))
    else:
        run = partial(one_round, verifier, distribution, propose, PROMPT, budget=budget)
        weighted = round_outcomes(verifier, distribution, propose, PROMPT, budget)
    truth = target_joint(distribution, PROMPT, case.horizon)
    try:
        try:
            if estimate_runs(run) > grid.most(verifier, case):
                return "too many outcomes"
            runs = list(weighted)
            joint = extend(add_up(runs), distribution, PROMPT, case.horizon)
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

"""Is the output law of verification the target's? Exactly, or by a test of goodness of fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paceline.controllers.fixed import Fixed
from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.exactness.drafting import FunctionDrafter, Propose
from paceline.exactness.oracle import Joint, enumerate_law
from paceline.exactness.tabular import LawOf, LogitsOf, TabularLaws, TabularTarget
from paceline.randomness import Randomness
from paceline.sequence import Sequence as Generation
from paceline.stopping import StopRules
from paceline.types import Budget, SamplingParams
from paceline.verifiers.base import Verifier


def target_joint(law: LawOf, context: tuple[int, ...], horizon: int) -> Joint:
    """The target's exact law of the `horizon` tokens after `context`."""
    joint: Joint = {(): 1.0}
    for _ in range(horizon):
        longer: Joint = {}
        for output, mass in joint.items():
            p = law((*context, *output))
            for index, probability in enumerate(p.probs.tolist()):
                if probability > 0:
                    longer[(*output, p.token(index))] = mass * probability
        joint = longer
    return joint


def extend(joint: Joint, law: LawOf, context: tuple[int, ...], horizon: int) -> Joint:
    """Outputs of unequal length brought to `horizon` tokens.

    Short ones go on with the target's own law, long ones are cut (their tails summed out).
    """
    terms: dict[tuple[int, ...], list[float]] = {}
    for output, mass in joint.items():
        rest = target_joint(law, (*context, *output), max(0, horizon - len(output)))
        for tail, probability in rest.items():
            terms.setdefault((*output, *tail)[:horizon], []).append(mass * probability)
    return {output: math.fsum(masses) for output, masses in terms.items()}


def one_round(
    verifier: Verifier,
    law: LawOf,
    propose: Propose,
    context: tuple[int, ...],
    randomness: Randomness,
    budget: Budget,
) -> tuple[int, ...]:
    """The tokens that one draft and its verification add to `context`."""
    draft = propose(context, randomness, budget)
    verdict = verifier.verify(draft, TabularLaws(law, context, draft), randomness)
    return (*draft.tokens[list(verdict.path)].tolist(), verdict.next_token)


def joint_after_round(
    verifier: Verifier,
    law: LawOf,
    propose: Propose,
    context: tuple[int, ...],
    horizon: int,
    budget: Budget,
) -> Joint:
    """Exact law of `horizon` tokens of which the first are one verified draft.

    Args:
        verifier: the shipped rule.
        law: the target's processed law.
        propose: the drafter.
        context: tokens so far, at least one.
        horizon: number of tokens; more than the draft's depth shows the whole round.
        budget: limits of the draft.
    """
    joint = enumerate_law(lambda r: one_round(verifier, law, propose, context, r, budget))
    return extend(joint, law, context, horizon)


def joint_of_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    propose: Propose,
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
) -> Joint:
    """Exact law of the whole output of the decode loop, `params.max_new_tokens` tokens long.

    The loop, sampler, stop rules and verifier are the shipped ones; only target, drafter and
    randomness are stand-ins. Draws are checked for reuse across all rounds.
    """
    target = TabularTarget(logits, vocabulary)
    parts = FunctionDrafter(propose), verifier, Fixed(budget.nodes, budget.depth)
    decoder = AutoregressiveDecoder(target, *parts, StopRules((), target.capabilities.max_context))

    def run(randomness: Randomness) -> tuple[int, ...]:
        sequence = Generation.start(0, prompt, params)
        sequence.randomness = randomness
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        decoder.close(sequence)
        return tuple(sequence.generated)

    return enumerate_law(run)


def max_error(first: Joint, second: Joint) -> float:
    """The largest difference of two laws at any output."""
    return max(abs(first.get(output, 0.0) - second.get(output, 0.0)) for output in first | second)


def goodness_of_fit(counts: Mapping[tuple[int, ...], int], joint: Joint) -> float:
    """p-value of Pearson's chi-square test that `counts` were drawn from `joint`.

    Outputs that are expected fewer than five times are pooled. An output outside the support of
    `joint` gives 0.
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
    """Probability that chi-square with `freedom` degrees exceeds `statistic`.

    The regularised gamma function Q(a, y) at half-integer a, by Q(a + 1) = Q(a) + y^a e^-y / a!.
    """
    y = statistic / 2
    if freedom < 1 or y == 0:
        return 1.0
    a = 1.0 if freedom % 2 == 0 else 0.5
    tail = math.exp(-y) if a == 1.0 else math.erfc(math.sqrt(y))
    while a < freedom / 2:
        tail += math.exp(a * math.log(y) - y - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)

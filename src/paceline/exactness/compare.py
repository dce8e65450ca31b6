"""Output distribution of verification against the target's, by enumeration or goodness of fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from paceline.controllers.fixed import Fixed
from paceline.decode.autoregressive import AutoregressiveDecoder
from paceline.drafters.base import Drafter
from paceline.exactness.drafting import FunctionDrafter, Propose
from paceline.exactness.oracle import Joint, add_up, enumerate_law, outcomes
from paceline.exactness.tabular import LawOf, LogitsOf, TabularLaws, TabularTarget, processed
from paceline.randomness import Randomness
from paceline.sequence import Sequence as Generation
from paceline.stopping import StopRules
from paceline.types import Budget, SamplingParams
from paceline.verifiers.base import Verifier


def target_joint(law: LawOf, context: tuple[int, ...], horizon: int) -> Joint:
    """Return the target's exact distribution of the `horizon` tokens after `context`."""
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
    """Bring outputs to `horizon` tokens: extend by the target's distribution, or marginalise."""
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
    """Return the tokens that one draft and its verification add to `context`."""
    draft = verifier.extend(propose(context, randomness, budget))
    verdict = verifier.verify(draft, TabularLaws(law, context, draft), randomness)
    return (*draft.tokens[list(verdict.path)].tolist(), verdict.next_token)


def round_outcomes(
    verifier: Verifier,
    law: LawOf,
    propose: Propose,
    context: tuple[int, ...],
    budget: Budget,
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield each outcome of `one_round` with its probability.

    Each draft is drawn once and then verified in all ways, which is faster than whole rounds.
    """
    drafts = outcomes(lambda r: verifier.extend(propose(context, r, budget)))
    for draft, chance, drawn in drafts:
        laws = TabularLaws(law, context, draft)
        verdicts = outcomes(partial(verifier.verify, draft, laws), after=drawn)
        for verdict, share, _ in verdicts:
            tokens = draft.tokens[list(verdict.path)].tolist()
            yield (*tokens, verdict.next_token), chance * share


def joint_after_round(
    verifier: Verifier,
    law: LawOf,
    propose: Propose,
    context: tuple[int, ...],
    horizon: int,
    budget: Budget,
) -> Joint:
    """Return the exact distribution of `horizon` tokens, the first from one verified draft.

    A horizon above the draft's depth shows the whole round.
    """
    joint = add_up(round_outcomes(verifier, law, propose, context, budget))
    return extend(joint, law, context, horizon)


def whole_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    propose: Propose,
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
) -> Callable[[Randomness], tuple[int, ...]]:
    """`drafter_loop` with a stateless drafter."""
    return drafter_loop(
        logits, vocabulary, verifier, lambda: FunctionDrafter(propose), prompt, params, budget
    )


def drafter_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    make_drafter: Callable[[], Drafter],
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
    steps: int | None = None,
) -> Callable[[Randomness], tuple[int, ...]]:
    """Return the shipped decode loop as a function of its randomness, ended after `steps` if given.

    `make_drafter` builds a fresh drafter for every run, which may be stateful.
    """

    def run(randomness: Randomness) -> tuple[int, ...]:
        target = TabularTarget(logits, vocabulary)
        controller = Fixed(budget.nodes, budget.depth)
        stops = StopRules((), target.capabilities.max_context)
        decoder = AutoregressiveDecoder(target, make_drafter(), verifier, controller, stops)
        sequence = Generation.start(0, prompt, params)
        sequence.randomness = randomness
        decoder.open(sequence)
        while sequence.finish_reason is None and sequence.stats.target_forwards != steps:
            decoder.step([sequence])
        decoder.close(sequence)
        return tuple(sequence.generated)

    return run


def joint_of_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    propose: Propose,
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
) -> Joint:
    """Return the exact output distribution of `whole_loop`; detects draws reused across rounds."""
    return enumerate_law(whole_loop(logits, vocabulary, verifier, propose, prompt, params, budget))


def joint_of_steps(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    make_drafter: Callable[[], Drafter],
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
    steps: int | None = None,
) -> Joint:
    """Return the exact distribution of `drafter_loop`, extended after `steps` by the target's."""
    joint = enumerate_law(
        drafter_loop(logits, vocabulary, verifier, make_drafter, prompt, params, budget, steps)
    )
    law = processed(logits, params, prompt)
    return extend(joint, law, tuple(prompt), params.max_new_tokens)


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

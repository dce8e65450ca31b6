"""Exact output distributions of a round, a loop, or some steps of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.core.types import Budget, SamplingParams
from paceline.drafters.base import Drafter
from paceline.proof.cases import FunctionDrafter, Propose
from paceline.proof.compare import drafter_loop, extend, round_outcomes
from paceline.proof.oracle import Joint, add_up, enumerate_distribution
from paceline.proof.tabular import DistributionOf, LogitsOf, processed
from paceline.verifiers.base import Verifier


def joint_after_round(
    verifier: Verifier,
    distribution: DistributionOf,
    propose: Propose,
    context: tuple[int, ...],
    horizon: int,
    budget: Budget,
) -> Joint:
    """Return the exact distribution of `horizon` tokens, the first from one verified draft.

    A horizon above the draft's depth shows the whole round.
    """
    joint = add_up(round_outcomes(verifier, distribution, propose, context, budget))
    return extend(joint, distribution, context, horizon)


def joint_of_loop(
    logits: LogitsOf,
    vocabulary: int,
    verifier: Verifier,
    propose: Propose,
    prompt: Sequence[int],
    params: SamplingParams,
    budget: Budget,
) -> Joint:
    """Return the exact output distribution of a whole loop; detects draws reused across rounds."""
    return enumerate_distribution(
        drafter_loop(
            logits, vocabulary, verifier, lambda: FunctionDrafter(propose), prompt, params, budget
        )
    )


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
    joint = enumerate_distribution(
        drafter_loop(logits, vocabulary, verifier, make_drafter, prompt, params, budget, steps)
    )
    distribution = processed(logits, params, prompt)
    return extend(joint, distribution, tuple(prompt), params.max_new_tokens)

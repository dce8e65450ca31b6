"""Engines over tables: speculation by a shipped or a wrong rule, and plain draws without."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.lab.audit.engine import CallableEngine, SeededRequest
from paceline.proof.cases import Propose
from paceline.proof.compare import one_round
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import SampleMatch

VOCABULARY = 5
P = TabularModel(VOCABULARY, 2, 71, 1.0)
Q = TabularModel(VOCABULARY, 2, 72, 1.0)
PROMPT = (0, 1)
BUDGET = Budget(6, 2)


def nothing(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    return trees.EMPTY


def law_at(model: TabularModel, temperature: float) -> DistributionOf:
    return processed(model.logits, SamplingParams(temperature=temperature), PROMPT)


def speculate(
    verifier: Verifier, propose: Propose, distribution: DistributionOf, length: int, seed: int
) -> tuple[int, ...]:
    tokens: tuple[int, ...] = PROMPT
    randomness = KeyedRandomness(seed)
    while len(tokens) < len(PROMPT) + length:
        tokens += one_round(verifier, distribution, propose, tokens, randomness, BUDGET)
    return tokens[len(PROMPT) : len(PROMPT) + length]


def engine(verifier: Verifier, propose: Propose, knows_law: bool = True) -> CallableEngine:
    """An engine whose speculation is `verifier` on drafts of `propose`."""
    distributions = {temperature: law_at(P, temperature) for temperature in (0.0, 1.0)}

    def answer(ask: SeededRequest) -> Sequence[Sequence[int]]:
        distribution = distributions[ask.temperature]
        parts = (verifier, propose) if ask.speculation else (SampleMatch(), nothing)
        return [speculate(*parts, distribution, ask.tokens, seed) for seed in ask.seeds]

    def first(prompt: object, temperature: float) -> dict[int | str, float]:
        return dict(enumerate(distributions[temperature](PROMPT).probs.tolist()))

    return CallableEngine(answer, "table", first if knows_law else None, lambda text: PROMPT)

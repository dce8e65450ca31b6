"""Runs of lossy rules through the decode loop over a table, with every step written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tests.cli import fakes

from paceline.core import tree as trees
from paceline.core.target import Output, Rows
from paceline.core.types import (
    Budget,
    Capabilities,
    DraftSampling,
    LogitArray,
    SamplingParams,
    TokenTree,
)
from paceline.drafters.base import NoDrafter
from paceline.drafters.resources import Loaded
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter, Propose, likely_chain, random_tree, sampled_chain
from paceline.proof.tabular import DistributionOf, TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled

VOCABULARY = 6
HIDDEN = 5
WIDE = Budget(16, 6)
MODEL = TabularModel(VOCABULARY, 2, seed=181, sharpness=1.2)
OTHER = TabularModel(VOCABULARY, 2, seed=182, sharpness=1.2)


def hidden_state(context: tuple[int, ...]) -> LogitArray:
    """float32 `[5]`: a stand-in for what a model holds after `context`."""
    generator = np.random.default_rng([7, *context[-3:]])
    return generator.normal(size=HIDDEN).astype(np.float32)


class HiddenTarget(TabularTarget):
    """A table that gives hidden states as well."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of a table, with hidden states."""
        return replace(super().capabilities, hidden_states=True, hidden_size=HIDDEN)

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        """Rows of the table, and the state after each of them."""
        outputs = super().forward([replace(each, hidden=False) for each in passes])
        out = []
        for each, output in zip(passes, outputs, strict=True):
            draft = each.tree or trees.EMPTY
            context = (*each.cache.tokens, *each.tokens[: each.num_new])
            paths = [(), *(trees.path_to(draft, node) for node in range(len(draft)))]
            states = [hidden_state((*context, *draft.tokens[list(p)].tolist())) for p in paths]
            out.append(Output(output.logits, np.stack(states) if each.hidden else None))
        return out


def nearly(distribution: DistributionOf, other: DistributionOf) -> Propose:
    """Chains of the target's most likely tokens with the other model's every third position."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        for _ in range(min(budget.depth, budget.nodes)):
            now = (*context, *tokens)
            tokens.append((other if len(now) % 3 == 0 else distribution)(now).argmax())
        return trees.chain(tokens, "nearly")

    return propose


def factorised(rows: DistributionOf) -> Propose:
    """Chains whose rows depend on the root alone."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        depth = min(budget.depth, budget.nodes)
        distributions = {node - 1: rows((*context[-1:], node)) for node in range(depth)}
        tokens = [
            distributions[node - 1].token(
                randomness.choice(
                    distributions[node - 1].probs,
                    Draw(len(context) + node, Purpose.DRAFT, root=len(context) - 1),
                )
            )
            for node in range(depth)
        ]
        return trees.chain(tokens, "factorised", DraftSampling("factorised", distributions))

    return propose


DRAFTERS: dict[str, Propose] = {
    "nearly": nearly(MODEL.distribution, OTHER.distribution),
    "likely": likely_chain(OTHER.distribution),
    "tree": random_tree(VOCABULARY, 20, seed=3),
    "sampled": sampled_chain(OTHER.distribution),
    "factorised": factorised(OTHER.distribution),
}


@dataclass(frozen=True)
class Step:
    """What one step did.

    Attributes:
        context: prompt and output before it.
        draft: what was drafted.
        tokens: what was committed.
        drafted: how many of them were drafted.
    """

    context: tuple[int, ...]
    draft: TokenTree
    tokens: tuple[int, ...]
    drafted: int


def run(
    verifier: Verifier,
    propose: Propose | None,
    params: SamplingParams,
    prompt: Sequence[int] = (0, 1),
    budget: Budget = WIDE,
) -> list[Step]:
    """One generation, step by step; plain decoding without a drafter."""
    drafts: list[TokenTree] = []

    def noted(context: tuple[int, ...], randomness: Randomness, limit: Budget) -> TokenTree:
        assert propose is not None
        drafts.append(propose(context, randomness, limit))
        return drafts[-1]

    drafter = NoDrafter() if propose is None else FunctionDrafter(noted)
    parts = drafter, verifier, Fixed(budget.nodes, budget.depth)
    target = HiddenTarget(MODEL.logits, VOCABULARY)
    decoder = AutoregressiveDecoder(target, *parts, StopRules((), 400))
    sequence = Generation.start(0, prompt, params)
    decoder.open(sequence)
    steps = []
    while sequence.finish_reason is None:
        context = tuple(sequence.tokens)
        [commit] = decoder.step([sequence])
        assert sequence.finish_reason or sequence.cache.tokens == sequence.tokens[:-1]
        draft = drafts[-1] if drafts else trees.EMPTY
        drafted = sum(source is not None for source in commit.sources)
        steps.append(Step(context, draft, commit.tokens, drafted))
    decoder.close(sequence)
    return steps


def text(steps: Sequence[Step]) -> list[int]:
    """All committed tokens."""
    return [token for step in steps for token in step.tokens]


def plain(params: SamplingParams, prompt: Sequence[int] = (0, 1)) -> list[int]:
    """The text of plain decoding."""
    return text(run(Coupled(), None, params, prompt))


@dataclass(frozen=True)
class Truth:
    """The target's laws, looked up without the code under test.

    Attributes:
        params: of the request.
        law: the processed law of every context.
        soft: the same at temperature 1 if the request is greedy.
    """

    params: SamplingParams
    distribution: DistributionOf
    soft: DistributionOf

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int] = (0, 1)) -> Truth:
        """The truth about requests with `params`."""
        warm = replace(params, temperature=1.0) if params.greedy else params
        distribution, soft = (processed(MODEL.logits, each, prompt) for each in (params, warm))
        return cls(params, distribution, soft)

    def scores(self, context: tuple[int, ...]) -> list[float]:
        """Log-probabilities, with the noise of the position where the request samples."""
        probs = self.soft(context).dense()
        if self.params.greedy:
            return [math.log(p) if p else -math.inf for p in probs]
        draw = Draw(len(context), Purpose.NOISE)
        noise = KeyedRandomness(self.params.seed).noise(draw).of(np.arange(VOCABULARY))
        return [
            math.log(p) - math.log(e) if p else -math.inf for p, e in zip(probs, noise, strict=True)
        ]

    def own(self, context: tuple[int, ...]) -> int:
        """The token of plain decoding."""
        scores = self.scores(context)
        return scores.index(max(scores))


Predicate = Callable[[tuple[int, ...], int], bool]
"""Whether a token may follow a context although it is not the target's own."""


def relaxed(steps: Sequence[Step], truth: Truth, allowed: Predicate) -> int:
    """Check every committed token; how many drafted ones were not the target's own."""
    count = 0
    for step in steps:
        context = step.context
        for index, token in enumerate(step.tokens):
            if token != truth.own(context):
                assert index < step.drafted, "a token of the target's choice is not its own"
                assert allowed(context, token), f"{token} after {context}"
                count += 1
            context = (*context, token)
    return count


tokens = st.integers(0, VOCABULARY - 1)


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    """Greedy and sampled requests with any processors that leave some token possible."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.6, 1.0, 1.5])),
        top_k=draw(st.sampled_from([0, 0, 3])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.8])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.4])),
        banned_tokens=tuple(draw(st.sets(tokens, max_size=2))),
        forced_tokens=draw(st.dictionaries(st.integers(0, 12), tokens, max_size=2)),
        seed=draw(st.integers(0, 2**32)),
        max_new_tokens=draw(st.integers(1, 24)),
    )


def restless() -> Loaded:
    """A loaded table that gives hidden states, and writes few tokens in an order hard to guess."""
    plain = fakes.loaded()
    table = TabularModel(fakes.VOCABULARY, 3, seed=9, sharpness=2.0)
    favour = np.zeros(fakes.VOCABULARY, np.float32)
    favour[40:52] = 12
    target: Any = HiddenTarget(lambda c: table.logits(c) + favour, fakes.VOCABULARY, 600)
    return replace(plain, target=target)

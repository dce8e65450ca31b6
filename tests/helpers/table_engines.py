"""An engine on a tabular target with a real tokenizer, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer

from paceline.core.target import Output, Rows
from paceline.core.types import LogitArray, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion, Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import OutOfMemory
from paceline.methods.prompt_lookup import PromptLookup
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter, likely_chain
from paceline.proof.tabular import LogitsOf, TabularCache, TabularModel, TabularTarget, processed
from paceline.trees.deterministic import SharedNoise
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled

VOCABULARY = 320
EOS = 2
TOKENIZER = Tokenizer(tiny_tokenizer(VOCABULARY), eos_token_ids=(EOS,), chat_template=CHAT_TEMPLATE)
MODEL = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.5)
PROMPTS = ["the quick", "dog", "12 34 567", "def f(x): return", "lazy lazy lazy dog"]
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_new_tokens=24, presence_penalty=0.1)


class Target(TabularTarget):
    """Counts batches and knows which caches are open; fails when told to."""

    def __init__(self, logits: LogitsOf = MODEL.logits, max_context: int = 400) -> None:
        super().__init__(logits, VOCABULARY, max_context)
        self.batches: list[int] = []
        self.live: list[TabularCache] = []
        self.slots = 99  # caches that find memory
        self.failure: BaseException | None = None

    def open(self) -> TabularCache:
        if len(self.live) >= self.slots:
            raise OutOfMemory("no room for another sequence: use shorter or fewer sequences")
        self.live.append(super().open())
        return self.live[-1]

    def fork(self, cache: TabularCache) -> TabularCache:
        self.live.append(super().fork(cache))
        return self.live[-1]

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.batches.append(len(passes))
        return super().forward(passes)

    def release(self, cache: TabularCache) -> None:
        super().release(cache)
        self.live.remove(cache)


def make(
    target: Target | None = None,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    max_batch: int = 8,
    tokenizer: Tokenizer = TOKENIZER,
    depth: int = 6,
) -> Engine:
    target = target or Target()
    stops = StopRules(tokenizer.eos_token_ids, target.capabilities.max_context)
    decoder = AutoregressiveDecoder(
        target, drafter or NoDrafter(), verifier or Coupled(), Fixed(depth, depth), stops
    )
    return Engine(decoder, tokenizer, max_batch=max_batch)


def drafters() -> dict[str, Drafter]:
    small = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.0)
    return {
        "prompt-lookup": PromptLookup(),
        "recycling": Recycling(VOCABULARY),
        "draft-model": DraftModel(
            TabularTarget(small.logits, VOCABULARY), VOCABULARY, SharedNoise([1])
        ),
    }


def speaker(text: str) -> LogitsOf:
    """A model that says `text` after a prompt of one token, over and over, end token between."""
    script = [*TOKENIZER.encode(text), EOS]

    def logits(context: tuple[int, ...]) -> LogitArray:
        row = np.zeros(VOCABULARY, np.float32)
        row[script[(len(context) - 1) % len(script)]] = 9.0
        return row

    return logits


def knowing(logits: LogitsOf) -> Drafter:
    """A drafter whose greedy chains are always right."""
    return FunctionDrafter(likely_chain(processed(logits, SamplingParams(), [])))


def key(completion: Completion) -> tuple[object, ...]:
    """What must not depend on drafts or batches."""
    return (
        completion.text,
        completion.token_ids,
        completion.logprobs,
        completion.prompt_tokens,
        completion.finish_reason,
    )


def finish(engine: Engine) -> dict[int, Completion]:
    """Step until nothing is left."""
    done = {}
    while engine.pending:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
    assert engine.step() == []
    return done


def bounded(engine: Engine, steps: int = 300) -> Engine:
    """An engine that fails instead of looping for ever."""
    step, count = engine.step, iter(range(steps))

    def counted() -> Any:
        assert next(count, None) is not None, "the engine goes round without an end"
        return step()

    engine.step = counted  # type: ignore[method-assign]  # a guard of this test
    return engine

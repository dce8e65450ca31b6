"""Prompts written piece by piece beside others, replayed by a seed; each answer is that alone.

python -m tests.engine.histories --seeds 10000
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.helpers import table_engines as tables
from tests.helpers.paged_table import PagedTable
from tests.serving.simulate import logits

from paceline.core.types import Needs
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion, Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.scheduler import POLICIES
from paceline.engine.stopping import StopRules
from paceline.errors import ContextExceeded, OutOfMemory
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularTarget
from paceline.runtimes.kv_cache import BLOCK
from paceline.trees.deterministic import SharedNoise
from paceline.verifiers.matching import Coupled

VOCABULARY, CONTEXT = tables.VOCABULARY, 400
WORDS = ["dog", " lazy", " the", " quick brown", " 12", "34 ", "\n", " fox jumps over", "x", " "]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5, "presence_penalty": -1.0},
    {"temperature": 0.8, "seed": 9, "repetition_penalty": 1.2, "stop": ("e", "th")},
    {"temperature": 0.0, "prompt_logprobs": 1, "logprobs": 1},
    {"temperature": 1.0, "seed": 3, "dry_multiplier": 0.8, "dry_allowed_length": 1},
]


class Wrong(AssertionError):
    """An answer is another one, or something leaked."""


class Reader(NoDrafter):
    """Drafts nothing, and holds what it is given: features are ids, of the last before the root."""

    def __init__(self, recent: int | None) -> None:
        self.needs = Needs(features=True, recent=recent)
        self.wrong = ""  # an error of a drafter costs nothing but drafts: it is told at the end

    def read(self, sequence: Any, features: Any) -> None:
        recent = len(sequence.tokens) if self.needs.recent is None else self.needs.recent
        seen = features[:, 0].astype(int).tolist()
        before = sequence.tokens[:-1]
        if before[len(before) - len(seen) :] != seen or len(seen) < min(recent, len(before)):
            self.wrong = f"features {seen} are not those of the end of {before}"


DRAFTERS: list[Callable[[], Drafter]] = [
    NoDrafter,
    PromptLookup,
    lambda: Recycling(VOCABULARY),
    lambda: DraftModel(TabularTarget(logits, VOCABULARY), VOCABULARY, SharedNoise([1])),
    lambda: Reader(None),
    lambda: Reader(5),
]
LIBRARY = tables.make(tables.Target(logits))


def engine_of(draw: random.Random, blocks: int) -> tuple[Engine, PagedTable]:
    """An engine over a paged table, of a drafter and limits at random."""
    target = PagedTable(logits, VOCABULARY, blocks, context=CONTEXT, keep=draw.choice([None, 0, 2]))
    stops = StopRules((tables.EOS,), CONTEXT)
    decoder = AutoregressiveDecoder(target, draw.choice(DRAFTERS)(), Coupled(), Fixed(4, 4), stops)
    engine = Engine(
        decoder,
        tables.TOKENIZER,
        max_batch=draw.choice([1, 2, 4]),
        step_tokens=draw.choice([None, 16]),
        prompt_policy=draw.choice(list(POLICIES)),
    )
    return engine, target


def key(completion: Completion) -> tuple[Any, ...]:
    return (*tables.key(completion), completion.prompt_logprobs)


class Writer:
    """One prompt that is written by chance, then answered."""

    def __init__(self, draw: random.Random, engine: Engine) -> None:
        self.draw, self.engine = draw, engine
        self.options = {**draw.choice(PARAMS), "max_new_tokens": draw.choice([1, 4, 12])}
        self.form = draw.choice(["text", "raw", "messages", "ids"])
        if self.form == "raw":
            self.options["raw"] = True
        self.prompt = engine.writing(**self.options)
        self.said: Any = []
        self.whole: Any = None

    def _piece(self, first: bool = False) -> Any:
        text = "".join(self.draw.choice(WORDS) for _ in range(self.draw.randrange(1, 12)))
        if self.form == "ids":
            return tables.TOKENIZER.encode(text)
        if self.form == "messages" and (first or not self.said or self.draw.random() < 0.4):
            return [{"role": "user", "content": text}]
        return text

    def act(self) -> bool:
        """Write, read or end; return whether the prompt is whole now."""
        chance, prompt = self.draw.random(), self.prompt
        if chance < 0.45:
            piece = self._piece()
            try:
                prompt.append(piece)
            except ContextExceeded:
                return False
            self.said = tables_joined(self.said, piece)
        elif chance < 0.55 and self.said:
            cut = self.draw.randrange(len(self.said)) + 1
            said = self.said[:cut] if self.draw.random() < 0.5 else self._piece(True)
            try:
                prompt.replace(said)
            except ContextExceeded:
                return False
            self.said = said
        elif chance < 0.8:
            prompt.read()
        elif self.said and (not isinstance(self.said, str) or self.said.strip()):
            try:
                prompt.finish()
            except ContextExceeded:  # the last word and the end of the turn
                self.said = self._piece(True)
                prompt.replace(self.said)
                return False
            self.whole = self.said
            return True
        return False


def tables_joined(said: Any, piece: Any) -> Any:
    """What was said with what follows, in plain words: the twin of the engine's own."""
    if not said:
        return piece
    if isinstance(said, list) and isinstance(piece, str):
        return [*said[:-1], {**said[-1], "content": said[-1]["content"] + piece}]
    return said + piece


def simulate(seed: int) -> Counter[str]:
    """Live one history; raise Wrong if a promise is broken."""
    draw = random.Random(seed)
    engine, target = engine_of(draw, draw.choice([4, 4, 5, 8, 60]))
    tally: Counter[str] = Counter()
    writers = [Writer(draw, engine) for _ in range(draw.choice([1, 1, 2, 4]))]
    others: dict[int, tuple[Any, dict[str, Any]]] = {}
    pending, steps = list(writers), 0
    while pending:
        writer = draw.choice(pending)
        if writer.act():
            pending.remove(writer)
        elif draw.random() < 0.03:
            writer.prompt.close()
            pending.remove(writer)
            tally["closed"] += 1
        if draw.random() < 0.1:
            options = {**draw.choice(PARAMS), "max_new_tokens": draw.choice([1, 8])}
            text = "".join(draw.choice(WORDS[:4]) for _ in range(draw.randrange(1, 20)))
            others[engine.add(text, **options)] = text, options
        for _ in range(draw.randrange(3)):
            steps += 1
            tell(engine, others, tally)
    for writer in draw.sample(writers, len(writers)):
        if writer.whole is None:
            continue
        try:
            got = writer.prompt.completion()
        except Exception as error:
            alone = LIBRARY.generate(writer.whole, **writer.options)
            most = alone.prompt_tokens + len(alone.token_ids)
            if isinstance(error, OutOfMemory) and most >= target.memory.blocks * BLOCK:
                tally["too long"] += 1  # for the cache, alone as well
                continue
            raise Wrong(f"{type(error).__name__}: {error}") from error
        if not 0 <= got.cached_tokens < got.prompt_tokens:
            raise Wrong(f"{got.cached_tokens} of {got.prompt_tokens} tokens are said to be cached")
        if key(got) != key(LIBRARY.generate(writer.whole, **writer.options)):
            raise Wrong("the answer is not that to the whole prompt")
        tally["answers"] += 1
        tally["cached"] += got.cached_tokens
        tally["read"] += got.prompt_tokens
    rounds = 0
    while engine.pending:
        rounds += 1
        if rounds > 5000:
            raise Wrong("the engine goes round without an end")
        tell(engine, others, tally)
    if others:
        raise Wrong(f"{len(others)} requests have no answer")
    for writer in writers:
        writer.prompt.close()
    if target.memory.free != target.memory.blocks or engine.pending:
        raise Wrong("blocks have leaked")
    if wrong := getattr(engine.loop.drafter, "wrong", ""):
        raise Wrong(wrong)
    tally["preemptions"] += engine.scheduler.preemptions
    return tally


def tell(engine: Engine, others: dict[int, Any], tally: Counter[str]) -> None:
    """Take a step, and compare what has ended."""
    for event in engine.step():
        if event.error is not None:
            raise Wrong(str(event.error))
        if event.completion is not None:
            prompt, options = others.pop(event.request)
            if key(event.completion) != key(LIBRARY.generate(prompt, **options)):
                raise Wrong("a neighbour's answer is another one")
            tally["neighbours"] += 1


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="histories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given, total = parser.parse_args(), Counter[str]()
    for seed in range(given.first, given.first + given.seeds):
        try:
            total += simulate(seed)
        except Wrong as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
    print(f"{given.seeds} seeds, nothing wrong: {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

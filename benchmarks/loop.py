"""What a decoding step costs beside the target: the loop on a target that answers at once.

    python benchmarks/loop.py --batches 1,8

The target reads its answers from a text that is known, so all time is the loop's own: scheduling,
draft sizing, drafting, sampling, verification, text. The text repeats phrases, so that drafts are
partly right. In "declined" every drafted row costs a whole forward, and the controller should stop
asking for drafts. A model's weights push everything else out of the processor's caches in every
forward; `--evict` touches that much memory in place of them, and 0 shows the loop with warm caches,
two to four times as fast. Times are medians over steps, the best of a few rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.target import Layer, Output, Rows
from paceline.core.types import Capabilities, IntArray, SamplingParams
from paceline.drafters.base import NoDrafter
from paceline.drafters.suffix.history import SuffixAutomaton
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.prompts import BUILT_IN
from paceline.models.source import resolve
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.verifiers.matching import Coupled

TEMPERATURE_KINDS = {
    "greedy": SamplingParams(),
    "temperature 1": SamplingParams(temperature=1.0),
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
}
DRAFTING = ("plain", "drafted", "declined")
CONTEXT, PROMPT, WARM = 8192, 257, 300
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
SECONDS = (2.0, 2.2, 2.3, 2.5, 2.7, 2.9, 3.3, 3.7, 4.1, 4.9)
"""Milliseconds of forwards over so many rows, as the controller is told."""
_LAWS = 37
_SURE = 6.5
"""Logit of the text's next token; it has about two thirds of the probability."""


class Replay:
    """A target that says a text again: from every position on, what stands there."""

    def __init__(self, text: Sequence[int], vocabulary: int, evict: int = 0) -> None:
        """Take the text, the width of a row of logits, and MiB to touch in every forward."""
        self.memory = BlockPool(1, 1, 1, 2048)
        self.capabilities = Capabilities(
            "replay", "cpu", "fp32", vocabulary, CONTEXT, 1, hidden_states=False, bit_exact=True
        )
        self.seconds = 0.0
        """Spent in here since it was last set to 0."""
        self._text = text
        # Ranked like words of a language, in an order of its own for each of some positions.
        ranked = 3.0 - 1.1 * np.log(np.arange(1, vocabulary + 1)).astype(np.float32)
        rng = np.random.default_rng(0)
        self._distributions = [rng.permutation(ranked) for _ in range(_LAWS)]
        self._logits = np.zeros((256, vocabulary), dtype=np.float32)
        self._weights = np.zeros(evict << 20, dtype=np.uint8)

    def open(self) -> PagedCache:
        """A new, empty cache."""
        return PagedCache(self.memory)

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        """Rows as a model's last product would leave them: in the caches, and nothing else."""
        begin = perf_counter()
        self._weights += 1
        out, row = [], 0
        for each in rows:
            first, draft = row, each.tree
            depths = [0]
            for parent in [] if draft is None else draft.parents.tolist():
                depths.append(depths[parent + 1] + 1)
            each.cache.reserve(len(each))
            for depth in depths:
                place = each.cache.length + each.num_new + depth
                self._logits[row] = self._distributions[place % _LAWS]
                self._logits[row, self._text[place % len(self._text)]] = _SURE
                row += 1
            out.append(Output(self._logits[first:row]))
        self.seconds += perf_counter() - begin
        return out

    def keep(self, cache: PagedCache, pending: int, path: Sequence[int]) -> None:
        """Go on behind the path."""
        cache.length += pending + len(path)

    def release(self, cache: PagedCache) -> None:
        """Give the blocks back."""
        cache.release()


def script(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """Phrases of ordinary texts, in an order by chance, so that many come again."""
    corpus = [t for prompt in BUILT_IN for text in prompt.turns for t in tokenizer.encode(text)]
    rng = np.random.default_rng(1)
    out: list[int] = []
    while len(out) < tokens:
        start = int(rng.integers(len(corpus)))
        out += corpus[start : start + int(rng.integers(6, 24))]
    return out


def make(
    drafting: str, tokenizer: Tokenizer, text: Sequence[int], batch: int, evict: int
) -> Engine:
    """An engine on the text, as `paceline.load` would make it."""
    target: Any = Replay(text, tokenizer.vocab_size, evict)
    stops = StopRules(tokenizer.eos_token_ids, CONTEXT)
    if drafting == "plain":
        decoder = AutoregressiveDecoder(target, NoDrafter(), Coupled(), Fixed(0, 0), stops)
    else:
        dear = [SECONDS[0] * rows for rows in SIZES]
        milliseconds = dear if drafting == "declined" else SECONDS
        costs = CostModel(SIZES, [1e-3 * each for each in milliseconds])
        sizes = CostModelController(costs)
        decoder = AutoregressiveDecoder(target, SuffixAutomaton(), Coupled(), sizes, stops)
    return Engine(decoder, tokenizer, max_batch=batch)


def measure(
    engine: Engine, prompt: Sequence[int], params: SamplingParams, batch: int, steps: int
) -> tuple[IntArray, float]:
    """Nanoseconds of every step beside the target, and tokens per step and sequence."""
    target: Any = engine.decoder.target
    engine.decoder.reset()
    requests = [
        engine.add(list(prompt), params, ignore_eos=True, max_new_tokens=CONTEXT, seed=seed)
        for seed in range(batch)
    ]
    for _ in range(WARM):
        engine.step()
    spent, tokens = [], 0
    for _ in range(steps):
        target.seconds = 0.0
        begin = perf_counter()
        events = engine.step()
        spent.append(1e9 * (perf_counter() - begin - target.seconds))
        tokens += sum(len(event.token_ids) for event in events)
    for request in requests:
        engine.cancel(request)
    return np.array(spent, dtype=np.int64), tokens / steps / batch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is used")
    parser.add_argument("--batches", default="1,8", help="sequences, separated by commas")
    parser.add_argument("--evict", type=int, default=48, help="MiB touched in every forward")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tokenizer = resolve(given.model).tokenizer()
    text = script(tokenizer, CONTEXT)
    found = []
    for batch in map(int, given.batches.split(",")):
        for kind, params in TEMPERATURE_KINDS.items():
            for drafting in DRAFTING:
                engine = make(drafting, tokenizer, text, batch, given.evict)
                runs = [
                    measure(engine, text[:PROMPT], params, batch, given.steps)
                    for _ in range(given.rounds)
                ]
                best = min(float(np.median(spent)) for spent, _ in runs) / 1e3
                found.append(
                    {
                        **{"batch": batch, "requests": kind, "drafting": drafting},
                        **{"step_us": round(best, 1), "sequence_us": round(best / batch, 1)},
                        "tokens_per_step": round(runs[-1][1], 2),
                    }
                )
    if given.json:
        print(dumps({"evicted_mib": given.evict, "steps": found}))
        return
    print("| " + " | ".join(found[0]) + " |")
    print("|" + "---|" * len(found[0]))
    for row in found:
        print("| " + " | ".join(map(str, row.values())) + " |")


if __name__ == "__main__":
    main()

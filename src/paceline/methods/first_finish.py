"""First Finish Search (Agarwal et al. 2025, arXiv:2505.18149): the shortest of n samples wins.

Lossy: short answers become more probable. Length is in tokens, independent of the drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.core.options import within
from paceline.core.types import SamplingParams, described
from paceline.engine.engine import Completion, Engine, Prompt
from paceline.errors import InvalidOption

MOST = 1024
"""Samples of a search."""

# Preference: complete text, cut text, text ended for repetition.
_ORDER = ("stop", "length", "loop", "cancelled")


@dataclass(frozen=True, slots=True)
class FirstFinish:
    """Result of a search. A request with `seed` generates the winner again."""

    completion: Completion
    index: int
    seed: int
    samples: tuple[Completion, ...]
    lossless: bool = False

    @property
    def total_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.samples)

    def as_dict(self) -> dict[str, Any]:
        """Return figures of the search for `--json`."""
        samples = [
            {"tokens": len(each.token_ids), "finish_reason": each.finish_reason}
            for each in self.samples
        ]
        return {"index": self.index, "seed": self.seed, "samples": samples}

    def told(self) -> str:
        """Say in a line which sample won."""
        return (
            f"sample {self.index + 1} of {len(self.samples)} (seed {self.seed}), "
            f"{self.total_tokens} tokens in all; lossy: favours short texts"
        )


@described(
    "lossy: of several samples the first to end, so short texts are favoured",
    requires="paceline generate --first-of N",
    paper="First Finish Search, Agarwal et al. 2025, arXiv:2505.18149",
)
def first_finish(
    engine: Engine,
    prompt: Prompt,
    n: int,
    params: SamplingParams | None = None,
    *,
    interrupt: Callable[[], object] = lambda: False,
    **options: Any,
) -> FirstFinish:
    """Decode `n` samples of a prompt together and return the shortest that ends by itself.

    Ties go to the lowest index. If no sample ends by itself, the first wins. Sample 0 has the seed
    of `params`. `interrupt` is polled between steps; True cancels all samples.

    Raises:
        InvalidOption: `n` is out of range, several samples at temperature 0, or an unknown option.
        PromptError: the prompt is empty or longer than the context.
        PacelineError: the error of a sample that ended with one.
    """
    params = params or SamplingParams()
    within("n", n, 1, MOST)
    if n > 1 and options.get("temperature", params.temperature) == 0:
        raise InvalidOption("first-finish search needs a temperature above 0: samples must differ")
    seed = options.pop("seed", params.seed)
    seeds = [_seed(seed, index) for index in range(n)]
    requests: list[int] = []
    done: dict[int, Completion] = {}
    counts: dict[int, int] = {}
    try:
        for seed in seeds:
            requests.append(engine.add(prompt, params, seed=seed, **options))
            counts[requests[-1]] = 0
        while len(done) < n and not interrupt():
            for event in engine.checked_step():
                if event.request in counts:
                    counts[event.request] += len(event.token_ids)
                    if event.completion is not None:
                        done[event.request] = event.completion
            ended = [len(c.token_ids) for c in done.values() if c.finish_reason == "stop"]
            for request in counts.keys() - done.keys():
                if ended and counts[request] >= min(ended):
                    _cancel(engine, request, done)
    finally:
        for request in requests:
            _cancel(engine, request, done)
    samples = tuple(done[request] for request in requests)
    ranks = [(_ORDER.index(each.finish_reason), len(each.token_ids)) for each in samples]
    index = ranks.index(min(ranks))
    return FirstFinish(samples[index], index, seeds[index], samples)


def _cancel(engine: Engine, request: int, done: dict[int, Completion]) -> None:
    completion = engine.cancel(request)
    if completion is not None:
        done[request] = completion


def _seed(seed: int, index: int) -> int:
    if index == 0:
        return seed
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0])

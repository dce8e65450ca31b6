"""First-finish search: several samples of one prompt, of which the shortest wins.

After First Finish Search (Agarwal, Sengupta and Chakraborty, 2025): samples are decoded together,
the first that ends wins, and the others are cancelled. It is lossy by design: answers that end
early become likelier than the model makes them. The winner's length is the least of n independent
lengths.

Here "first" counts tokens and not seconds, so the winner does not depend on how many tokens a
drafter brings per forward: when a sample ends, those that have fewer tokens go on until they end
as early or have as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engine import Completion, Engine, Prompt
from paceline.errors import InvalidOption
from paceline.types import SamplingParams

_ORDER = ("stop", "length", "loop", "cancelled")
"""A text that came to its end beats one that was cut off, and that one that went in circles."""


@dataclass(frozen=True, slots=True)
class FirstFinish:
    """The outcome of a search.

    Attributes:
        completion: the winner.
        index: its place among the samples.
        seed: a plain request with this seed generates it again.
        samples: all samples, in order; those that lost have finish reason "cancelled", unless
            they ended too.
        lossless: never.
    """

    completion: Completion
    index: int
    seed: int
    samples: tuple[Completion, ...]
    lossless: bool = False

    @property
    def total_tokens(self) -> int:
        """Tokens generated for all samples together."""
        return sum(len(each.token_ids) for each in self.samples)


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

    Equal lengths go to the lowest index. If none ends before `max_new_tokens` or the end of the
    context, the first sample wins.

    Args:
        engine: decodes as many samples at once as its `max_batch` allows.
        prompt: as for `Engine.generate`, a single one.
        n: number of samples.
        params: sampling parameters; sample 0 has their seed, the others seeds made from it.
        interrupt: asked between steps; once true, all samples are cancelled as they stand.
        **options: as for `Engine.generate`.

    Raises:
        InvalidOption: `n` is below 1, several samples are asked for at temperature 0, or an
            option is unknown.
        PromptError: the prompt is empty or longer than the context.
    """
    params = params or SamplingParams()
    if n < 1:
        raise InvalidOption(f"the number of samples must be 1 or more, not {n}")
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
            for event in engine.step():
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
    index = min(range(n), key=lambda place: (*_rank(samples[place]), place))
    return FirstFinish(samples[index], index, seeds[index], samples)


def _cancel(engine: Engine, request: int, done: dict[int, Completion]) -> None:
    completion = engine.cancel(request)
    if completion is not None:
        done[request] = completion


def _rank(completion: Completion) -> tuple[int, int]:
    return _ORDER.index(completion.finish_reason), len(completion.token_ids)


def _seed(seed: int, index: int) -> int:
    """Seeds that no two samples or searches are likely to share."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0])

"""What the simulator needs to know, measured: which tokens are right, and what forwards cost.

Times are the fastest of several: what else the machine does only adds to them. Processor time of
one thread hardly feels it at all, but knows no waiting.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from time import perf_counter, process_time

from benchmarks.schedules.simulator import Truth

from paceline.core import tree as trees
from paceline.core.target import Block, BlockTarget, Pass, Target
from paceline.core.types import LogitArray, SamplingParams
from paceline.sampling.randomness import KeyedRandomness
from paceline.sampling.sampler import top_k_ids
from paceline.sampling.sequence import Sequence
from paceline.zoo.schedules.drafting import DraftProcess, DraftRequest


def truth_of(
    target: BlockTarget,
    draft: Target,
    prompt: List[int],
    text: List[int],
    params: SamplingParams,
    exit: int = 0,
    branches: int = 1,
) -> Truth:
    """Return what verification says of the target's `text`, from a forward of each model.

    Sampled texts are those of request 0 under the rule "coupled". With `exit` also what the
    target's first layers guess, `branches` tokens per row.
    """
    sequence = Sequence.start(0, prompt, params)

    def token(logits: LogitArray, at: int) -> int:
        position = len(prompt) + at
        return sequence.sampler.sample(logits, text[:at], position, sequence.randomness)

    cache = draft.open()
    draft.prefill(cache, prompt[:-1])
    [output] = draft.forward([Pass(cache, prompt[-1:], trees.chain(list(text[:-1])))])
    drafted = [token(each, at) for at, each in enumerate(output.logits)]
    draft.keep(cache, 1, ())
    draft.release(cache)
    right = [one == other for one, other in zip(text, drafted, strict=True)]
    if not exit:
        return Truth(right)
    cache = target.open()
    target.prefill(cache, prompt[:-1])
    block = Block.chain(cache, [prompt[-1], *text[:-1]])
    [found] = target.forward_blocks([block], tuple(range(exit)))
    bonus, correction = [], []
    for at, logits in enumerate(found.logits):
        order = top_k_ids(logits, min(len(logits), branches + 1)).tolist()
        guesses = list(dict.fromkeys([token(logits, at), *order]))
        bonus.append(text[at] in guesses[:branches])
        correction.append(text[at] in [g for g in guesses if g != drafted[at]][:branches])
    target.rewind(cache, cache.length)
    target.release(cache)
    return Truth(right, bonus, correction)


def curve(
    model: Target, text: List[int], rows: List[int], repeats: int = 5
) -> tuple[list[float], list[float]]:
    """Measure forwards over so many rows behind a text, by turns: seconds, processor seconds."""
    cache = model.open()
    model.prefill(cache, text[:-1])
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in rows}
    for _ in range(repeats):
        for count in rows:
            chain = trees.chain([text[-1]] * (count - 1)) if count > 1 else None
            start = perf_counter(), process_time()
            model.forward([Pass(cache, text[-1:], chain, argmax=True)])
            found[count].append((perf_counter() - start[0], process_time() - start[1]))
            model.keep(cache, 1, ())
            model.truncate(cache, len(text) - 1)
    model.release(cache)
    wall, work = zip(*(map(min, zip(*each, strict=True)) for each in found.values()), strict=True)
    return list(wall), list(work)


def side_by_side(
    target: Target, worker: DraftProcess, text: List[int], repeats: int = 5
) -> tuple[float, float, float, float]:
    """Measure target forward and draft forward, seconds alone, then both at once, by turns."""
    worker.open(0, text, len(text), SamplingParams(), KeyedRandomness(0))
    cache = target.open()
    target.prefill(cache, text[:-1])

    def forward() -> float:
        start = perf_counter()
        target.forward([Pass(cache, text[-1:], None, argmax=True)])
        seconds = perf_counter() - start
        target.keep(cache, 1, ())
        target.truncate(cache, len(text) - 1)
        return seconds

    def asked() -> list[DraftRequest]:
        return [DraftRequest(0, tuple(text), 8)]

    found: list[list[float]] = [[], [], [], []]
    for _ in range(repeats):
        found[0].append(min(forward() for _ in range(4)))
        worker.send(asked())
        reply = worker.receive()
        found[1].append(reply.seconds / reply.rounds)
        worker.send(asked())
        both: list[float] = []
        start = perf_counter()
        while perf_counter() - start < 0.7 * reply.seconds or not both:
            both.append(forward())
        reply = worker.receive()
        found[2].append(min(both))
        found[3].append(reply.seconds / reply.rounds)
    worker.close(0)
    target.release(cache)
    alone, draft, busy, drafting = map(min, found)
    return alone, draft, busy, drafting


def joined(truths: List[Truth]) -> Truth:
    """Return texts one behind the other."""
    first, *rest = truths
    for each in rest:
        first = replace(
            first,
            right=[*first.right, *each.right],
            bonus=[*first.bonus, *each.bonus],
            correction=[*first.correction, *each.correction],
        )
    return first

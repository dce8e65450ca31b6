"""What a target writes after each of many beginnings, decoded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.randomness import Draw, KeyedRandomness, Purpose
from paceline.sampling import Sampler, logprobs
from paceline.target import Cache, Pass, Target
from paceline.types import LogitArray, SamplingParams

Choose = Callable[[LogitArray, int], int]
"""From float32 `[vocabulary]` logits and a position to the token there."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A token put behind a part of a cached text.

    Attributes:
        position: absolute position of the token; what is cached before it is the context.
        token: the token.
        choose: how the text goes on.
    """

    position: int
    token: int
    choose: Choose


@dataclass(slots=True)
class Continuation:
    """What followed a beginning.

    Attributes:
        tokens: up to the wanted length, or to an end token, which is the last then.
        logprobs: of each under the target, in nats.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def greedy(logits: LogitArray, position: int) -> int:
    """The most likely token."""
    return int(logits.argmax())


def sampled(temperature: float, top_k: int, seed: int, stream: int) -> Choose:
    """Draws that are the same at a position for every text of one stream (common randomness)."""
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=top_k), ())
    randomness = KeyedRandomness(seed, stream)

    def choose(logits: LogitArray, position: int) -> int:
        law = sampler.law(logits)
        return law.token(randomness.choice(law.probs, Draw(position, Purpose.TARGET)))

    return choose


def continue_all(
    target: Target,
    cache: Cache,
    beginnings: Sequence[Beginning],
    length: int,
    ends: Sequence[int],
    batch: int = 16,
) -> list[Continuation]:
    """Continuations of `length` tokens, `batch` at a time.

    Args:
        target: the model.
        cache: holds the text that the beginnings branch off from, and is left as it is.
        beginnings: where and how to go on.
        length: most tokens of each.
        ends: tokens that end a text.
        batch: rows of a forward.
    """
    out = [Continuation() for _ in beginnings]
    for start in range(0, len(beginnings), batch):
        group = list(zip(beginnings, out, strict=True))[start : start + batch]
        running = [
            (begin, done, target.fork(cache)) for begin, done in group if begin.token not in ends
        ]
        try:
            for begin, _, fork in running:
                target.truncate(fork, begin.position)
            live = running
            for _ in range(length):
                if not live:
                    break
                outputs = target.forward(
                    [Pass(fork, [(done.tokens or [begin.token])[-1]]) for begin, done, fork in live]
                )
                for (begin, done, fork), output in zip(live, outputs, strict=True):
                    target.keep(fork, 1, ())
                    row = output.logits[0]
                    token = begin.choose(row, begin.position + 1 + len(done.tokens))
                    done.tokens.append(token)
                    done.logprobs.append(logprobs(row, token, 0).logprob)
                live = [each for each in live if each[1].tokens[-1] not in ends]
        finally:
            for _, _, fork in running:
                target.release(fork)
    return out

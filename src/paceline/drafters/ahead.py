"""Speculative copy of a sequence, for drafters that decode and verify ahead of the target.

The copy has its own tokens, sampler state and random draws, and never touches the real one.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline.noise import TokenNoise
from paceline.randomness import Draw, Purpose, Randomness
from paceline.sampling import Sampler
from paceline.sequence import Sequence
from paceline.types import Law, LogitArray, ProbArray

# Most tokens drafted ahead; names of nested draws have room for this many roots.
LONGEST = 200

_ROOT_BITS, _PURPOSE_BITS = 8, 3


class Ahead:
    """A sequence extended by drafted tokens.

    Attributes:
        sequence: a copy of the real sequence, longer by the drafted tokens.
        rows: draft distributions of those tokens, where given.
    """

    def __init__(self, sequence: Sequence, *, fresh: bool) -> None:
        """Copy a sequence, which may be such a copy itself.

        With `fresh` draws, the draft is independent of the draws that verify it (p/q rules);
        otherwise it shares the Gumbel noise of the real sequence.
        """
        self._start = len(sequence.tokens)
        self.sequence = Sequence(
            sequence.id,
            list(sequence.tokens),
            sequence.prompt_length,
            sequence.params,
            _AheadSampler(sequence.sampler),
            _Nested(sequence.randomness, self._start - 1) if fresh else sequence.randomness,
        )
        self.rows: list[Law] = []

    def __len__(self) -> int:
        return len(self.sequence.tokens) - self._start

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self._start :]

    def extend(self, tokens: List[int], rows: List[Law]) -> None:
        self.sequence.tokens += tokens
        self.sequence.sampler.commit(tokens)
        self.rows += rows


class _AheadSampler(Sampler):
    def __init__(self, sampler: Sampler) -> None:
        self.params = sampler.params
        self._sampler = sampler
        self._drafted: list[int] = []

    def commit(self, tokens: List[int]) -> None:
        self._drafted += tokens

    def law(self, logits: LogitArray, path: List[int] = (), *, soft: bool = False) -> Law:
        return self._sampler.law(logits, (*self._drafted, *path), soft=soft)

    @property
    def takes_likeliest(self) -> bool:
        return self._sampler.takes_likeliest

    def winner(
        self, logits: LogitArray, path: List[int], position: int, randomness: Randomness
    ) -> int:
        return self._sampler.winner(logits, (*self._drafted, *path), position, randomness)


class _Nested:
    # Purpose, sibling and root (counted from the outer root) of the inner draw are packed into the
    # sibling of the outer one. Names stay distinct at every depth of nesting, as long as a decoder
    # draws nothing as its own drafter.

    def __init__(self, randomness: Randomness, root: int) -> None:
        self._randomness = randomness
        self._root = root

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        return self._randomness.choice(weights, self._rename(draw))

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return self._randomness.bernoulli(probability, self._rename(draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return self._randomness.uniform(size, self._rename(draw))

    def noise(self, draw: Draw) -> TokenNoise:
        return self._randomness.noise(self._rename(draw))

    def _rename(self, draw: Draw) -> Draw:
        step = 0  # for draws that name no root
        if draw.root:
            step = draw.root - self._root + 1
            if not 0 < step < 1 << _ROOT_BITS:
                raise ValueError(f"{draw} has no place inside the round at {self._root}")
        packed = (draw.sibling << _ROOT_BITS | step) << _PURPOSE_BITS | int(draw.purpose)
        return Draw(draw.position, Purpose.DRAFT, packed, self._root)

"""A sequence as it would be if drafted tokens were committed: what decodes ahead of the target.

A drafter that verifies drafts of its own needs all that a decoder has: tokens, a sampler that
knows them, and draws. None of it may touch the real sequence, whose tokens are not settled yet.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline.noise import TokenNoise
from paceline.randomness import Draw, Purpose, Randomness
from paceline.sampling import Sampler
from paceline.sequence import Sequence
from paceline.types import Law, LogitArray, ProbArray

LONGEST = 200
"""Most tokens that may be drafted ahead; names of draws have room for so many roots."""

_ROOT_BITS, _PURPOSE_BITS = 8, 3


class Ahead:
    """Drafted tokens behind a sequence, and the sequence that ends with them.

    Attributes:
        sequence: a copy of the real sequence, longer by the drafted tokens.
        rows: the laws that the drafted tokens come from, as far as they were given.
    """

    def __init__(self, sequence: Sequence, *, fresh: bool) -> None:
        """Start with no drafted token.

        Args:
            sequence: the sequence to run ahead of. It may run ahead of another itself.
            fresh: draw under names of its own instead of the real sequence's names, so that what
                is drafted does not depend on the draws that will decide about it.
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
        """The drafted tokens."""
        return self.sequence.tokens[self._start :]

    def extend(self, tokens: List[int], rows: List[Law]) -> None:
        """Append drafted tokens."""
        self.sequence.tokens += tokens
        self.sequence.sampler.commit(tokens)
        self.rows += rows


class _AheadSampler(Sampler):
    """Another sampler's laws after drafted tokens. The other one hears nothing of them."""

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
    """Draws of a decoder inside a drafter, renamed to draws of the round that it drafts for.

    Purpose, sibling and root of the inner name are packed into the sibling of the outer one, the
    root counted from the outer root. So names stay distinct at every depth of nesting, as long as
    a decoder draws nothing as its own drafter.
    """

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

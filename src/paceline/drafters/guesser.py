"""Base of drafters that draft from a model of the text and learn its hit rates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as List
from typing import ClassVar, Generic, Protocol, TypeVar

from paceline.drafters.base import Drafter
from paceline.drafters.best_first import Guess
from paceline.drafters.idle import Idle
from paceline.drafters.statistics import HitRates
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree


class Model(Protocol):
    """A text model."""

    @property
    def rates(self) -> HitRates: ...


AnyModel = TypeVar("AnyModel", bound=Model)


class Guesser(Drafter, Generic[AnyModel]):
    """Holds the open draft of each sequence. `reset`, called on creation, makes the model."""

    _model: AnyModel
    # True if it learns by ranking logits, which it then does in few steps without a draft.
    ranks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._guesses: dict[int, tuple[int, Guess]] = {}
        self._idle = Idle()
        self._nothing = Guess().tree(self.name)
        self.reset()

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if self.ranks and self._idle.rests(budgets):
            return [self._nothing] * len(sequences)
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            guess = self._guess(sequence, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            drafts.append(guess.tree(self.name))
        return drafts

    def close(self, sequence: Sequence) -> None:
        self._guesses.pop(sequence.id, None)

    @abstractmethod
    def _guess(self, sequence: Sequence, budget: Budget) -> Guess: ...

    def _left_out(self, sequence: Sequence) -> bool:
        return sequence.id not in self._guesses

    def _settle(self, sequence: Sequence) -> tuple[int, Guess]:
        # Scores the whole open draft, verified or not; returns the position after its root, too.
        begin, guess = self._guesses.pop(sequence.id)
        guess.learn(sequence.tokens[begin:], self._model.rates)
        return begin, guess

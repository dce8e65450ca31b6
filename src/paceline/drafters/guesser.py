"""What drafters share that guess from a model of the text and learn how good the guesses are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as List
from typing import Generic, Protocol, TypeVar

from paceline.drafters.base import Drafter
from paceline.drafters.best_first import Guess
from paceline.drafters.statistics import HitRates
from paceline.sequence import Sequence
from paceline.types import Budget, TokenTree


class Model(Protocol):
    """What guesses are made from."""

    @property
    def rates(self) -> HitRates:
        """Hit rates of its offers."""
        ...

    def ready(self) -> None:
        """Take the hit rates of the moment for the offers that follow."""
        ...


AnyModel = TypeVar("AnyModel", bound=Model)


class Guesser(Drafter, Generic[AnyModel]):
    """Keeps the open guess of each sequence. `reset`, which makes the model, is called at once."""

    _model: AnyModel

    def __init__(self) -> None:
        """No guess is open."""
        self._guesses: dict[int, tuple[int, Guess]] = {}
        self.reset()

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """A guess per sequence, empty where nothing is known of its last tokens."""
        self._model.ready()
        drafts = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            guess = self._guess(sequence, budget)
            self._guesses[sequence.id] = (len(sequence.tokens), guess)
            drafts.append(guess.tree(self.name))
        return drafts

    def close(self, sequence: Sequence) -> None:
        """Drop what was guessed; the model outlives its sequences."""
        self._guesses.pop(sequence.id, None)

    @abstractmethod
    def _guess(self, sequence: Sequence, budget: Budget) -> Guess:
        """A guess of how the sequence goes on."""

    def _settle(self, sequence: Sequence) -> tuple[int, Guess]:
        """Score the open guess against what was committed, the whole of it, verified or not.

        Returns:
            The position behind the guess's root, and the guess.
        """
        begin, guess = self._guesses.pop(sequence.id)
        guess.learn(sequence.tokens[begin:], self._model.rates)
        return begin, guess

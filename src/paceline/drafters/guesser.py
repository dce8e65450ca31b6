"""What drafters share that guess from a model of the text and learn how good the guesses are."""

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
    """What guesses are made from."""

    @property
    def rates(self) -> HitRates:
        """Hit rates of its offers."""
        ...


AnyModel = TypeVar("AnyModel", bound=Model)


class Guesser(Drafter, Generic[AnyModel]):
    """Keeps the open guess of each sequence. `reset`, which makes the model, is called at once."""

    _model: AnyModel
    ranks: ClassVar[bool] = False
    """Whether it learns by ranking logits, which it then does in few of the plain steps."""

    def __init__(self) -> None:
        """No guess is open."""
        self._guesses: dict[int, tuple[int, Guess]] = {}
        self._idle = Idle()
        self._nothing = Guess().tree(self.name)
        self.reset()

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """A guess per sequence, empty where nothing is known of its last tokens."""
        if self.ranks and self._idle.rests(budgets):
            return [self._nothing] * len(sequences)
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

    def _left_out(self, sequence: Sequence) -> bool:
        """Whether there is no guess to settle."""
        return sequence.id not in self._guesses

    def _settle(self, sequence: Sequence) -> tuple[int, Guess]:
        """Score the open guess against what was committed, the whole of it, verified or not.

        Returns:
            The position behind the guess's root, and the guess.
        """
        begin, guess = self._guesses.pop(sequence.id)
        guess.learn(sequence.tokens[begin:], self._model.rates)
        return begin, guess

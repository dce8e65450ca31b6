"""Base of retrieval drafters that search a sequence's own text and ended sequences by automata."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as List
from operator import attrgetter
from typing import ClassVar

from paceline.drafters.automaton import Automaton
from paceline.drafters.base import Drafter
from paceline.drafters.best_first import Guess
from paceline.drafters.history import CAPACITY, Corpus, History, Reader
from paceline.drafters.statistics import HitRates
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, TokenTree, Verdict

# Prompt tokens that precede an output in the history, so that its beginning is found.
_LEAD = 8

# Tokens of ended sequences that the history takes in per running sequence and step.
_PACE = 8


class Own:
    """Retrieval state of one sequence: automaton of its tokens, readers of other texts, guesses."""

    def __init__(self, others: Iterable[History | Corpus]) -> None:
        self.text = Automaton()
        self.readers = [Reader(other) for other in others]
        self.guesses: list[Guess] = []

    def unread(self, tokens: List[int]) -> List[int]:
        """Return the tokens of the sequence since it was read."""
        return tokens[len(self.text.log) - 1 :]  # the log begins with a break

    def read(self, tokens: List[int]) -> None:
        """Catch up with a sequence, and with what the others learned."""
        new = self.unread(tokens)
        if new:
            self.text.extend(new)
        for reader in self.readers:
            reader.read(tokens, len(new))


class RecallingDrafter(Drafter):
    """Draft from automata of the running texts, a history, and fixed texts if there are any."""

    name: ClassVar[str]

    def __init__(self, capacity: int = CAPACITY, corpus: Iterable[List[int]] = ()) -> None:
        """Start with a history of `capacity` tokens and a fixed corpus. Raises InvalidOption."""
        self.history = History(capacity)
        texts = list(corpus)
        self._others: list[History | Corpus] = [self.history]
        if texts:
            self._others.append(Corpus(texts))
        self._own: dict[int, Own | None] = {}
        self._due = 0
        self._nothing = Guess().tree(self.name)
        self.reset()

    @abstractmethod
    def _start_rates(self, sources: int) -> HitRates:
        """Return prior hit rates; the first index is the source, 0 for the sequence's own text."""

    @abstractmethod
    def _guesses(self, own: Own, budget: Budget) -> list[Guess]:
        """Return drafts to choose from; all of them will be scored."""

    def reset(self) -> None:
        self.history.clear()
        self._rates = self._start_rates(1 + len(self._others))

    def open(self, sequence: Sequence) -> None:
        # The own text is read with the first draft; ended sequences are then read to the end.
        self._own[sequence.id] = None
        self._due = self.history.waiting

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if not any(budget.nodes and budget.depth for budget in budgets):
            return [self._nothing] * len(sequences)
        if self._due:
            self.history.absorb(self._due)
            self._due = 0
        return [self._propose(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        self._due = min(self._due + _PACE * len(sequences), self.history.waiting)
        for sequence in sequences:
            own = self._own[sequence.id]
            if own is not None and own.guesses:
                new = own.unread(sequence.tokens)
                for guess in own.guesses:
                    guess.learn(new, self._rates)
                own.guesses = []

    def close(self, sequence: Sequence) -> None:
        if sequence.id in self._own:
            del self._own[sequence.id]
            if len(sequence.tokens) > sequence.prompt_length:
                self.history.add(sequence.tokens[max(0, sequence.prompt_length - _LEAD) :])

    def _propose(self, sequence: Sequence, budget: Budget) -> TokenTree:
        if not (budget.nodes and budget.depth):
            return self._nothing
        own = self._own[sequence.id]
        if own is None:
            own = self._own[sequence.id] = Own(self._others)
        own.read(sequence.tokens)
        guesses = own.guesses = self._guesses(own, budget)
        if len(guesses) > 1:
            return max(guesses, key=attrgetter("score")).tree(self.name)
        return guesses[0].tree(self.name) if guesses else self._nothing

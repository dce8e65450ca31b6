"""Sliding window over the texts of ended sequences, searchable by suffix automata.

A suffix automaton cannot forget. So a second one starts when the first is three quarters full,
and replaces it when it is full.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import ClassVar

import numpy as np

from paceline.core.cache import whole_file
from paceline.core.types import Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.drafters.candidates import alone, length_kinds
from paceline.drafters.suffix.automaton import BREAK, ROOT_STATE, Automaton, Match
from paceline.errors import InvalidOption
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import ABSORBED, LEAD, OTHER_SOURCE
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree

# Most tokens of a history.
CAPACITY = 1 << 18

# Most tokens queued; beyond that, the eldest are absorbed as others come.
_LINE = 1 << 13

_MAGIC = "paceline history 1"


class History:
    """The latest texts, shared by all sequences.

    Texts are queued until `absorb`, so that the end of a long sequence delays no other one.

    Attributes:
        waiting: tokens queued.
        texts: the automaton to read.
        generation: changes when `texts` is replaced or a text completed; readers must then find
            their contexts anew.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Create a history of `capacity` tokens, breaks included. Raises InvalidOption below 8."""
        if capacity < 8:
            raise InvalidOption(f"the capacity of a history must be 8 or more, not {capacity}")
        self.generation = 0
        self._quarter = capacity // 4
        self.clear()

    def clear(self) -> None:
        self.texts = Automaton()
        self.generation += 1
        self._younger = Automaton()
        self._both = False
        self._line: deque[Sequence[int]] = deque()
        self._taken = 0
        self.waiting = 0

    def add(self, text: Sequence[int]) -> None:
        """Queue a text; of one longer than a quarter of the capacity, its end."""
        text = text[-(self._quarter - 1) :]
        if len(text):
            self._line.append(text)
            self.waiting += len(text)
            self.absorb(max(0, self.waiting - _LINE))

    def absorb(self, tokens: int | None = None) -> None:
        """Learn up to `tokens` queued tokens, or all."""
        left = self.waiting if tokens is None else min(tokens, self.waiting)
        self.waiting -= left
        while left:
            text = self._line[0]
            if not self._taken:
                self._begin(len(text))
            part = text[self._taken : self._taken + left]
            self.texts.extend(part)
            if self._both:
                self._younger.extend(part)
            self._taken += len(part)
            left -= len(part)
            if self._taken == len(text):
                self._line.popleft()
                self._taken = 0
                self.generation += 1

    def save(self, path: Path, vocab_size: int) -> None:
        """Write an `.npz` file atomically. Raises InvalidOption if it cannot be written."""
        self.absorb()
        try:
            with whole_file(path) as part:
                part.touch(0o600, exist_ok=False)  # user texts are private
                with part.open("wb") as file:
                    log = np.array(self.texts.log)
                    np.savez(file, magic=_MAGIC, vocab_size=vocab_size, log=log)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidOption(f"cannot write {path} ({reason}): choose another file") from error

    def restore(self, path: Path, vocab_size: int) -> str | None:
        """Load what `save` wrote, and return None, or one line on why the history is empty.

        Never raises: serving must not fail for it. Damaged or foreign files are renamed to `.bad`.
        """
        self.clear()
        try:
            log = _read(path, vocab_size)
        except OSError as error:
            return f"{path} cannot be read ({error.strerror or error}): the history starts empty"
        except Exception as error:  # damaged archives raise almost anything
            with suppress(OSError):
                path.replace(path.with_name(f"{path.name}.bad"))
            return f"{path} is damaged or foreign ({error}): the history starts empty"
        for text in np.split(log, np.flatnonzero(log == BREAK)):
            self.add(text[text != BREAK].tolist())
        self.absorb()
        return None

    def _begin(self, tokens: int) -> None:
        self.texts.begin()
        if len(self.texts.log) + tokens > 4 * self._quarter:
            # The younger has room: it began with three quarters full, or one text before.
            self.texts = self._younger
            self.generation += 1
            self._younger = Automaton()
            self.texts.begin()
        self._both = len(self.texts.log) + tokens > 3 * self._quarter
        if self._both:
            self._younger.begin()


class Corpus:
    """Texts that never change, with the reading interface of `History`."""

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.generation = 0
        self.texts = Automaton()
        for text in texts:
            self.texts.begin()
            self.texts.extend(text)


class HistoryReader:
    """Position of a growing text in other texts; `match` is its longest suffix there."""

    def __init__(self, others: History | Corpus) -> None:
        self.match: Match = (ROOT_STATE, 0, -1)
        self._others = others
        self._generation = -1
        self._size = 0  # of the texts when they were read

    @property
    def texts(self) -> Automaton:
        return self._others.texts

    def read(self, tokens: Sequence[int], new: int) -> None:
        """Advance to the end of `tokens`, of which the last `new` are unread."""
        texts = self.texts
        size, self._size = self._size, len(texts.log)
        if not new and size == self._size and self._generation == self._others.generation:
            return  # nothing new was learned
        if self._generation != self._others.generation:
            self._generation = self._others.generation
            self.match, new = (ROOT_STATE, 0, -1), texts.depth
        self.match = texts.read(*self.match[:2], tokens[max(0, len(tokens) - new) :])


def _read(path: Path, vocab_size: int) -> np.ndarray:
    with np.load(path, allow_pickle=False) as saved:
        if str(saved["magic"]) != _MAGIC:
            raise ValueError("not a history")
        if int(saved["vocab_size"]) != vocab_size:
            raise ValueError(f"it is for {saved['vocab_size']} tokens, not {vocab_size}")
        log: np.ndarray = saved["log"]
    if log.ndim != 1 or log.dtype.kind != "i" or not BREAK <= log.min() <= log.max() < vocab_size:
        raise ValueError("it holds no texts")
    return log


class SequenceText:
    """Retrieval state of one sequence: automaton of its tokens, readers of other texts, guesses."""

    def __init__(self, others: Iterable[History | Corpus]) -> None:
        self.text = Automaton()
        self.readers = [HistoryReader(other) for other in others]
        self.guesses: list[CandidateTree] = []

    def unread(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens of the sequence since it was read."""
        return tokens[len(self.text.log) - 1 :]  # the log begins with a break

    def read(self, tokens: Sequence[int]) -> None:
        """Catch up with a sequence, and with what the others learned."""
        new = self.unread(tokens)
        if new:
            self.text.extend(new)
        for reader in self.readers:
            reader.read(tokens, len(new))


class HistoryDrafter(Drafter):
    """Draft from automata of the running texts, a history, and fixed texts if there are any."""

    name: ClassVar[str]

    def __init__(self, capacity: int = CAPACITY, corpus: Iterable[Sequence[int]] = ()) -> None:
        """Start with a history of `capacity` tokens and a fixed corpus. Raises InvalidOption."""
        self.history = History(capacity)
        texts = list(corpus)
        self._others: list[History | Corpus] = [self.history]
        if texts:
            self._others.append(Corpus(texts))
        self._own: dict[int, SequenceText | None] = {}
        self._due = 0
        self._nothing = CandidateTree().tree(self.name)
        self.reset()

    @abstractmethod
    def _start_rates(self, sources: int) -> HitRates:
        """Return prior hit rates; the first index is the source, 0 for the sequence's own text."""

    @abstractmethod
    def _guesses(self, own: SequenceText, budget: Budget) -> list[CandidateTree]:
        """Return drafts to choose from; all of them will be scored."""

    def reset(self) -> None:
        self.history.clear()
        self._rates = self._start_rates(1 + len(self._others))

    def open(self, sequence: Generation) -> None:
        # The own text is read with the first draft; ended sequences are then read to the end.
        self._own[sequence.id] = None
        self._due = self.history.waiting

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        if not any(budget.nodes and budget.depth for budget in budgets):
            return [self._nothing] * len(sequences)
        if self._due:
            self.history.absorb(self._due)
            self._due = 0
        return super().propose(sequences, budgets)

    def learn(self, verified: VerifiedDraft) -> None:
        self._due = min(self._due + ABSORBED, self.history.waiting)
        own = self._own[verified.sequence.id]
        if own is not None and own.guesses:
            new = own.unread(verified.sequence.tokens)
            for guess in own.guesses:
                guess.learn(new, self._rates)
            own.guesses = []

    def close(self, sequence: Generation) -> None:
        if sequence.id in self._own:
            del self._own[sequence.id]
            if len(sequence.tokens) > sequence.prompt_length:
                self.history.add(sequence.tokens[max(0, sequence.prompt_length - LEAD) :])

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        if not (budget.nodes and budget.depth):
            return self._nothing
        own = self._own[sequence.id]
        if own is None:
            own = self._own[sequence.id] = SequenceText(self._others)
        own.read(sequence.tokens)
        guesses = own.guesses = self._guesses(own, budget)
        if len(guesses) > 1:
            return max(guesses, key=attrgetter("score")).tree(self.name)
        return guesses[0].tree(self.name) if guesses else self._nothing


# SAM-Decoding (Hu et al. 2024, arXiv:2411.10666): copy after the longest earlier match, found by
# suffix automata of the own text, ended outputs and a corpus. The paper's fixed margin and length
# rule are replaced by hit rates per source and match length.


class SuffixAutomaton(HistoryDrafter):
    """Copy chains from the longest earlier match of any length."""

    name: ClassVar[str] = "suffix-automaton"
    paper = "after SAM-Decoding, Hu et al. 2024, arXiv:2411.10666"

    def _start_rates(self, sources: int) -> HitRates:
        return HitRates(np.array([alone(), *[alone(OTHER_SOURCE)] * (sources - 1)]), weight=16.0)

    def _guesses(self, own: SequenceText, budget: Budget) -> list[CandidateTree]:
        most = min(budget.nodes, budget.depth)
        _, length, end = own.text.match
        found = [self._copy(0, length, _loop(own.text.behind(end, most), most))] if length else []
        for source, reader in enumerate(own.readers, 1):
            _, length, end = reader.match
            if length:
                found.append(self._copy(source, length, reader.texts.behind(end, most)))
        return found

    def _copy(self, source: int, length: int, tokens: list[int]) -> CandidateTree:
        rates = self._rates.table[source]
        kinds = length_kinds(length, len(tokens))
        steps = zip(tokens, kinds, strict=True)
        return CandidateTree.chain([(token, rates[kind], (source, kind)) for token, kind in steps])


def _loop(tokens: list[int], most: int) -> list[int]:
    # Over and over, so that repetition is continued.
    return tokens if len(tokens) == most else (tokens * most)[:most]

"""Online suffix automaton of token texts (Blumer et al. 1985), with counts and last occurrences.

States number at most two per token; a token costs amortised constant time. Counts cover
contexts of up to `depth` tokens, which bounds the work on repetition. The states are native.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.native.library import address, calls

ROOT_STATE = 0

# Separates texts in the log.
BREAK = -1

# Ranked continuations per state.
BEST = 4

# State and length of a context, and `log` index of the last token of its latest occurrence.
Match = tuple[int, int, int]

# Up to `BEST` (token, count) continuations: most frequent first, then latest first.
Followers = list[tuple[int, int]]

# State and length of a context; then per context, longest first, (length, followed, followers).
Outlook = tuple[int, int, list[tuple[int, int, Followers]]]


class PerState(Protocol):
    def __getitem__(self, state: int, /) -> int: ...
    def __len__(self) -> int: ...


class Automaton:
    """Suffix automaton of the appended texts.

    A *context* is a (state, length) pair: the last `length` tokens, which belong to the state.

    Attributes:
        depth: longest context; substrings of up to one token more are counted.
        log: every text, each preceded by `BREAK`.
        match: longest suffix of the current text, at most `depth` tokens, that occurred before,
            with its previous `end`; length 0 if there is none.
    """

    def __init__(self, depth: int = 32) -> None:
        """Start empty. Raises MemoryError; RuntimeUnavailable: there are no native kernels."""
        self.depth = depth
        self.log = array("i", [BREAK])
        self.match: Match = (ROOT_STATE, 0, 0)
        self._call = calls("automaton_")
        # Of the automaton, for native kernels that read several.
        self.address = self._call.new(depth)
        if not self.address:
            raise MemoryError("no memory for an automaton")
        weakref.finalize(self, self._call.free, self.address).atexit = False
        self._make_room(2)

    @property
    def count(self) -> PerState:
        """Occurrences per state, overlaps included."""
        return _PerState(self, self._call.count)

    @property
    def end(self) -> PerState:
        """`log` index of the last token of each state's latest occurrence."""
        return _PerState(self, self._call.end)

    def begin(self) -> None:
        """Start another text."""
        self.match = (ROOT_STATE, 0, 0)
        if self.log[-1] != BREAK:
            self.log.append(BREAK)
        self._call.begin(self.address)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, each 0 or more, to the current text."""
        new = array("i", tokens)
        if not self._call.extend(self.address, address(new), len(new), self._at):
            raise MemoryError("no memory for more tokens in an automaton")
        self.log += new
        self.match = self._match()

    def step(self, state: int, token: int) -> int:
        """Return the state after `token`, or the root if there is no transition."""
        after: int = self._call.step(self.address, state, token)
        return after

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return the longest context that ends with `token`, from a context before it."""
        return self.outlook(state, length, token, 0)[:2]

    def read(self, state: int, length: int, tokens: Sequence[int]) -> Match:
        """Return the longest context after `tokens`, from a context before them."""
        new = array("i", tokens)
        at = address(new)
        self._call.read(self.address, state, length, at, len(new), self._at)
        return self._match()

    def back_off(self, state: int) -> tuple[int, int]:
        """Return the longest shorter context that occurred more often. Undefined for the root."""
        self._call.back_off(self.address, state, self._at)
        return self._found[0], self._found[1]

    def followers(self, state: int) -> Followers:
        """Return the ranked continuations of a context."""
        count = self._call.followers(self.address, state, self._at)
        return _pairs(self._found[:count])[2:]

    def followed(self, state: int) -> int:
        """Return how many occurrences of a context have a continuation."""
        times: int = self._call.followed(self.address, state)
        return times

    def outlook(self, state: int, length: int, token: int | None, most: int) -> Outlook:
        """Return continuations of up to `most` contexts: this one (after `token`) and suffixes."""
        if most > self._most:
            self._make_room(most)
        after = BREAK if token is None else token
        count = self._call.outlook(self.address, state, length, after, most, self._at)
        pairs = _pairs(self._found[:count])
        found, at = [], 1
        while at < len(pairs):
            (length, times), (_, tokens) = pairs[at : at + 2]
            found.append((length, times, pairs[at + 2 : at + 2 + tokens]))
            at += 2 + tokens
        return (*pairs[0], found)

    def behind(self, end: int, most: int) -> list[int]:
        """Return up to `most` tokens after a `log` index, within its text."""
        tokens = self.log[end + 1 : end + 1 + most].tolist()
        return tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens

    def _make_room(self, most: int) -> None:
        # For what the library finds: the outlook of so many contexts.
        self._most = most
        self._found = array("i", bytes(4 * (2 + most * (4 + 2 * BEST))))
        self._at = address(self._found)

    def _match(self) -> Match:
        found = self._found
        return found[0], found[1], found[2]


def _pairs(numbers: array[int]) -> list[tuple[int, int]]:
    each = iter(numbers)
    return list(zip(each, each, strict=True))


class _PerState:
    def __init__(self, automaton: Automaton, read: Callable[[int, int], int]) -> None:
        self._automaton = automaton
        self._read = read

    def __len__(self) -> int:
        size: int = self._automaton._call.size(self._automaton.address)
        return size

    def __getitem__(self, state: int) -> int:
        if not 0 <= state < len(self):
            raise IndexError(f"there is no state {state}")
        return self._read(self._automaton.address, state)

"""Online suffix automaton of token texts (Blumer et al. 1985), with counts and last occurrences.

States number at most two per token; a token costs amortised constant time. Counts cover
contexts of up to `depth` tokens, which bounds the work on repetition. Native kernels and the
Python reference implementation number states alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, Self

from paceline.native.library import library

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

    def __new__(cls, depth: int = 32) -> Self:
        return super().__new__(_kind() if cls is Automaton else cls)

    def __init__(self, depth: int = 32) -> None:
        self.depth = depth
        self.log = array("i", [BREAK])
        self.match: Match = (ROOT_STATE, 0, 0)

    def begin(self) -> None:
        """Start another text."""
        self.match = (ROOT_STATE, 0, 0)
        if self.log[-1] != BREAK:
            self.log.append(BREAK)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, each 0 or more, to the current text."""
        raise NotImplementedError

    @property
    def count(self) -> PerState:
        """Occurrences per state, overlaps included."""
        raise NotImplementedError

    @property
    def end(self) -> PerState:
        """`log` index of the last token of each state's latest occurrence."""
        raise NotImplementedError

    def step(self, state: int, token: int) -> int:
        """Return the state after `token`, or the root if there is no transition."""
        raise NotImplementedError

    def shorten(self, state: int, length: int) -> tuple[int, int]:
        """Cut a context to `depth` tokens.

        Appending may split states, so stored contexts must pass through here or `read`.
        """
        return self.read(state, length, ())[:2]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return the longest context that ends with `token`, from a context before it."""
        return self.outlook(state, length, token, 0)[:2]

    def read(self, state: int, length: int, tokens: Sequence[int]) -> Match:
        """Return the longest context after `tokens`, from a context before them."""
        raise NotImplementedError

    def back_off(self, state: int) -> tuple[int, int]:
        """Return the longest shorter context that occurred more often. Undefined for the root."""
        raise NotImplementedError

    def followers(self, state: int) -> Followers:
        """Return the ranked continuations of a context."""
        raise NotImplementedError

    def followed(self, state: int) -> int:
        """Return how many occurrences of a context have a continuation."""
        raise NotImplementedError

    def outlook(self, state: int, length: int, token: int | None, most: int) -> Outlook:
        """Return continuations of up to `most` contexts: this one (after `token`) and suffixes."""
        raise NotImplementedError

    def behind(self, end: int, most: int) -> list[int]:
        """Return up to `most` tokens after a `log` index, within its text."""
        tokens = self.log[end + 1 : end + 1 + most].tolist()
        return tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens


def _kind() -> type:
    if library() is None:
        from paceline.drafters.plain_automaton import PlainAutomaton

        return PlainAutomaton
    from paceline.drafters.native_automaton import NativeAutomaton

    return NativeAutomaton

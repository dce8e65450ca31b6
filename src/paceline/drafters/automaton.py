"""A suffix automaton of token texts that knows how often, and where last, everything occurred.

The states of the automaton are the classes of substrings that end at the same places, at most two
per token (Blumer et al. 1985). Following transitions from the state of a context gives the state
of every continuation, so the counts of states are the counts of a suffix tree, for half of its
nodes and without labels that point into texts. Texts are appended online; the amortised cost of a
token does not grow with what is there.

Counts are kept for contexts of up to `depth` tokens and what follows them. That bounds the work
per token where a text repeats itself (a run of n equal tokens is a chain of n states).

States are kept in C++ where that can be compiled (`native_automaton.py`), else in Python
(`plain_automaton.py`); both number them alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, Self

from paceline.native.library import library

ROOT_STATE = 0
"""The state of the empty context."""

BREAK = -1
"""Stands between texts in the log."""

BEST = 4
"""Ranked continuations per state."""

Match = tuple[int, int, int]
"""State and length of a context, and the index in `log` of the last token of its latest
occurrence."""

Followers = list[tuple[int, int]]
"""Up to `BEST` tokens that followed a context, and how often: most frequent first, and latest
first among equals."""

Outlook = tuple[int, int, list[tuple[int, int, Followers]]]
"""State and length of a context. And of it and shorter ones, the longest first, what followed:
length of the context, `followed`, `followers`."""


class PerState(Protocol):
    """A number for each state."""

    def __getitem__(self, state: int, /) -> int: ...
    def __len__(self) -> int: ...


class Automaton:
    """All substrings of the appended texts, with counts.

    A *context* is a state with a length: the last `length` tokens of something, which occur in
    the texts and belong to the state.

    Attributes:
        depth: longest context; substrings of up to one token more are counted.
        log: every text, each preceded by `BREAK`.
        match: the longest suffix of the current text, at most `depth` tokens, that had occurred
            before, with its previous `end`; of length 0 if not even the last token had.
    """

    def __new__(cls, depth: int = 32) -> Self:
        """Of the kind that is to be had here, unless a kind is asked for."""
        return super().__new__(_kind() if cls is Automaton else cls)

    def __init__(self, depth: int = 32) -> None:
        """An automaton without texts; the first one has begun."""
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
        """How often the substrings of a state occurred, overlaps included."""
        raise NotImplementedError

    @property
    def end(self) -> PerState:
        """Index in `log` of the last token of a state's latest occurrence."""
        raise NotImplementedError

    def step(self, state: int, token: int) -> int:
        """The state after `token`, or the root's if the texts do not go on like that."""
        raise NotImplementedError

    def shorten(self, state: int, length: int) -> tuple[int, int]:
        """The context cut to `depth` tokens, with the state it belongs to by now.

        Appending may move shorter substrings of a state to a new one, so contexts that were kept
        meanwhile must pass through here, or through `read`.
        """
        return self.read(state, length, ())[:2]

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest context that ends with `token`, from a context without it."""
        return self.outlook(state, length, token, 0)[:2]

    def read(self, state: int, length: int, tokens: Sequence[int]) -> Match:
        """The longest context behind some tokens, from a context before them."""
        raise NotImplementedError

    def back_off(self, state: int) -> tuple[int, int]:
        """The longest shorter context that occurred more often; the root below all others, and
        nothing below the root: do not ask."""
        raise NotImplementedError

    def followers(self, state: int) -> Followers:
        """What followed a context."""
        raise NotImplementedError

    def followed(self, state: int) -> int:
        """How many occurrences of a context are followed by something, the end of the current
        text being none of them."""
        raise NotImplementedError

    def outlook(self, state: int, length: int, token: int | None, most: int) -> Outlook:
        """What followed a context, or the longest one behind it that ends with `token`.

        Args:
            state: of the context.
            length: of the context.
            token: follows it; None leaves it as it is.
            most: take the first so many of it and shorter ones that anything followed.
        """
        raise NotImplementedError

    def behind(self, end: int, most: int) -> list[int]:
        """Up to so many tokens behind a place in the log, to the end of the text there."""
        tokens = self.log[end + 1 : end + 1 + most].tolist()
        return tokens[: tokens.index(BREAK)] if BREAK in tokens else tokens


def _kind() -> type:
    if library() is None:
        from paceline.drafters.plain_automaton import PlainAutomaton

        return PlainAutomaton
    from paceline.drafters.native_automaton import NativeAutomaton

    return NativeAutomaton

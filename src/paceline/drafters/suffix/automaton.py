"""Online suffix automaton of token texts (Blumer et al. 1985), with counts and last occurrences.

States number at most two per token; a token costs amortised constant time. Counts cover
contexts of up to `depth` tokens, which bounds the work on repetition. Native kernels and the
Python reference implementation number states alike.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, Self

from paceline.native.library import calls, library

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
        pass

        return PlainAutomaton
    pass

    return NativeAutomaton


# Suffix automaton in C++ (`native/drafting/automaton.hpp`).


class NativeAutomaton(Automaton):
    """Suffix automaton in the library's memory, freed with this object. Raises MemoryError."""

    def __init__(self, depth: int = 32) -> None:
        super().__init__(depth)
        self._call = calls("automaton_")
        # Of the automaton, for native kernels that read several.
        self.address = self._call.new(depth)
        if not self.address:
            raise MemoryError("no memory for an automaton")
        weakref.finalize(self, self._call.free, self.address).atexit = False
        self._make_room(2)

    @property
    def count(self) -> PerState:
        return _PerState(self, self._call.count)

    @property
    def end(self) -> PerState:
        return _PerState(self, self._call.end)

    def begin(self) -> None:
        super().begin()
        self._call.begin(self.address)

    def extend(self, tokens: Sequence[int]) -> None:
        new = array("i", tokens)
        if not self._call.extend(self.address, new.buffer_info()[0], len(new), self._at):
            raise MemoryError("no memory for more tokens in an automaton")
        self.log += new
        self.match = self._match()

    def step(self, state: int, token: int) -> int:
        after: int = self._call.step(self.address, state, token)
        return after

    def read(self, state: int, length: int, tokens: Sequence[int]) -> Match:
        new = array("i", tokens)
        at = new.buffer_info()[0]
        self._call.read(self.address, state, length, at, len(new), self._at)
        return self._match()

    def back_off(self, state: int) -> tuple[int, int]:
        self._call.back_off(self.address, state, self._at)
        return self._found[0], self._found[1]

    def followers(self, state: int) -> Followers:
        count = self._call.followers(self.address, state, self._at)
        return _pairs(self._found[:count])[2:]

    def followed(self, state: int) -> int:
        times: int = self._call.followed(self.address, state)
        return times

    def outlook(self, state: int, length: int, token: int | None, most: int) -> Outlook:
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

    def _make_room(self, most: int) -> None:
        # For what the library finds: the outlook of so many contexts.
        self._most = most
        self._found = array("i", bytes(4 * (2 + most * (4 + 2 * BEST))))
        self._at = self._found.buffer_info()[0]

    def _match(self) -> Match:
        found = self._found
        return found[0], found[1], found[2]


def _pairs(numbers: array[int]) -> list[tuple[int, int]]:
    each = iter(numbers)
    return list(zip(each, each, strict=True))


class _PerState:
    def __init__(self, automaton: NativeAutomaton, read: Callable[[int, int], int]) -> None:
        self._automaton = automaton
        self._read = read

    def __len__(self) -> int:
        size: int = self._automaton._call.size(self._automaton.address)
        return size

    def __getitem__(self, state: int) -> int:
        if not 0 <= state < len(self):
            raise IndexError(f"there is no state {state}")
        return self._read(self._automaton.address, state)


# Suffix automaton in Python:


class PlainAutomaton(Automaton):
    """Suffix automaton with its states in arrays."""

    def __init__(self, depth: int = 32) -> None:
        super().__init__(depth)
        self._count = array("i", [0])
        self._end = array("i", [-1])
        self._length = array("i", [0])
        self._link = array("i", [-1])
        # Most states have one transition, which lies in arrays; a state with several has a table
        # and its most frequent continuations, best first.
        self._token = array("i", [-1])
        self._next = array("i", [-1])
        self._tables: dict[int, dict[int, int]] = {}
        self._ranked: dict[int, list[int]] = {}
        self._last = ROOT_STATE
        self._window = (ROOT_STATE, 0)

    @property
    def count(self) -> array[int]:
        return self._count

    @property
    def end(self) -> array[int]:
        return self._end

    def begin(self) -> None:
        super().begin()
        self._last = ROOT_STATE
        self._window = (ROOT_STATE, 0)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)

    def step(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._next[state]
        table = self._tables.get(state)
        return table.get(token, ROOT_STATE) if table else ROOT_STATE

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        after = self.step(state, token)
        while state and not after:
            state, length = self.back_off(state)
            after = self.step(state, token)
        return self._cut(after, min(length + 1, self.depth)) if after else (ROOT_STATE, 0)

    def read(self, state: int, length: int, tokens: Sequence[int]) -> Match:
        state, length = self._cut(state, min(length, self.depth))
        for token in tokens:
            state, length = self.follow(state, length, token)
        return state, length, self._end[state]

    def back_off(self, state: int) -> tuple[int, int]:
        state = self._link[state]
        return state, self._length[state]

    def followers(self, state: int) -> list[tuple[int, int]]:
        count = self._count
        best = self._ranked.get(state)
        if best is not None:
            table = self._tables[state]
            return [(token, count[table[token]]) for token in best]
        after = self._next[state]
        return [(self._token[state], count[after])] if after > 0 else []

    def followed(self, state: int) -> int:
        # The end of the current text is followed by nothing.
        return self._count[state] - (self._end[state] == len(self.log) - 1)

    def outlook(self, state: int, length: int, token: int | None, most: int) -> Outlook:
        if token is not None:
            state, length = self.follow(state, length, token)
        found: list[tuple[int, int, Followers]] = []
        at, long = state, length
        while at and len(found) < most:
            followers = self.followers(at)
            if followers:
                found.append((long, self.followed(at), followers))
            at, long = self.back_off(at)
        return state, length, found

    def _cut(self, state: int, length: int) -> tuple[int, int]:
        # The state of the last `length` tokens of a state's substrings, and that length.
        lengths, links = self._length, self._link
        while state and length <= lengths[links[state]]:
            state = links[state]
        return state, length

    def _append(self, token: int) -> None:
        lengths, links, tables = self._length, self._link, self._tables
        self.log.append(token)
        previous, known = self._window
        self._last = self._grow(token)
        previous, known = self._cut(previous, known)
        # What may follow the longest context is one token longer than that.
        state, length = self._cut(self.step(previous, token), min(known, self.depth) + 1)
        self._window = state, length

        # Every suffix of the text, longest first, occurred once more, and here.
        count, end, position = self._count, self._end, len(self.log) - 1
        while state and (not count[state] or lengths[links[state]] >= self.depth):
            count[state] += 1
            end[state] = position
            state = links[state]
        self.match = (state, min(length, self.depth, lengths[state]), end[state])
        while state:
            count[state] += 1
            end[state] = position
            state = links[state]

        # And the token followed every suffix of the text before it.
        ranked = self._ranked
        while previous:
            best = ranked.get(previous)
            if best is not None and best[0] != token:
                _promote(best, token, tables[previous], count)
            previous = links[previous]

    def _grow(self, token: int) -> int:
        # Make all suffixes of the text with `token` substrings; return the state of the longest.
        last, new, after = self._last, len(self._link), ROOT_STATE
        links, tokens, nexts, tables = self._link, self._token, self._next, self._tables
        state = last
        while state >= 0:
            if tokens[state] == token:
                after = nexts[state]
                break
            table = tables.get(state)
            if table is not None:
                after = table.get(token, ROOT_STATE)
                if after:
                    break
                table[token] = new
            elif nexts[state] < 0:
                tokens[state] = token
                nexts[state] = new
            else:
                only = tokens[state]
                tables[state] = {only: nexts[state], token: new}
                self._ranked[state] = [only]
                tokens[state] = -1
            state = links[state]
        if state != last:
            self._state(self._length[last] + 1, ROOT_STATE)
        if after:  # and where state is last, an earlier text began like this one
            if self._length[after] != self._length[state] + 1:
                after = self._split(state, token, after)
            if state == last:
                return after
            links[new] = after
        return new

    def _split(self, state: int, token: int, after: int) -> int:
        # Give the substrings of `after` no longer than through `state` a state of their own: they
        # are about to occur where the longer ones do not.
        links = self._link
        new = self._state(self._length[state] + 1, links[after])
        self._count[new] = self._count[after]
        self._end[new] = self._end[after]
        self._token[new] = self._token[after]
        self._next[new] = self._next[after]
        if after in self._tables:
            self._tables[new] = dict(self._tables[after])
            self._ranked[new] = list(self._ranked[after])
        links[after] = new
        while state >= 0 and self.step(state, token) == after:
            if self._token[state] == token:
                self._next[state] = new
            else:
                self._tables[state][token] = new
            state = links[state]
        return new

    def _state(self, length: int, link: int) -> int:
        self._length.append(length)
        self._link.append(link)
        self._count.append(0)
        self._end.append(-1)
        self._token.append(-1)
        self._next.append(-1)
        return len(self._link) - 1


def _promote(best: list[int], token: int, table: dict[int, int], count: Sequence[int]) -> None:
    # Counts only rise, one at a time, so a list of the best alone never misses one that belongs.
    times = count[table[token]]
    if token in best:
        place = best.index(token)
    elif len(best) < BEST:
        place = len(best)
        best.append(token)
    elif times >= count[table[best[-1]]]:
        place = BEST - 1
    else:
        return
    while place and times >= count[table[best[place - 1]]]:
        best[place] = best[place - 1]
        place -= 1
    best[place] = token

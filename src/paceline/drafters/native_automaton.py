"""Suffix automaton in C++ (`native/automaton.hpp`)."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Sequence

from paceline.drafters.automaton import BEST, BREAK, Automaton, Followers, Match, Outlook, PerState
from paceline.native.library import calls


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
        behind = BREAK if token is None else token
        count = self._call.outlook(self.address, state, length, behind, most, self._at)
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

"""The automaton and a reference of it in Python, and all that can be seen of one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from paceline.drafters.suffix.automaton import (
    BEST,
    BREAK,
    ROOT_STATE,
    Automaton,
    Followers,
    Match,
    Outlook,
)


class PlainAutomaton(Automaton):
    """The automaton of the C++, step by step in Python: it numbers states alike."""

    def __init__(self, depth: int = 32) -> None:
        self.depth = depth
        self.log = array("i", [BREAK])
        self.match: Match = (ROOT_STATE, 0, 0)
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
        self.match = (ROOT_STATE, 0, 0)
        if self.log[-1] != BREAK:
            self.log.append(BREAK)
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


KINDS: list[type[Automaton]] = [PlainAutomaton, Automaton]


def built(kind: type[Automaton], texts: Sequence[Sequence[int]], depth: int = 32) -> Automaton:
    """An automaton of some texts, the last of which may go on."""
    automaton = kind(depth)
    for index, text in enumerate(texts):
        if index:
            automaton.begin()
        automaton.extend(text)
    return automaton


def seen(automaton: Automaton) -> list[object]:
    """What it knows: the texts, the match, and state by state the rest."""
    states = range(len(automaton.count))
    tokens = sorted(set(automaton.log))
    return [
        *(automaton.depth, list(automaton.log), automaton.match),
        *(list(automaton.count), list(automaton.end)),
        [automaton.followers(state) for state in states],
        [automaton.followed(state) for state in states],
        [automaton.back_off(state) for state in states if state != ROOT_STATE],
        [automaton.step(state, t) for state in states for t in tokens if t >= 0],
    ]

"""Drafts that come with a request: of its beginning, or from a text that it is likely to repeat."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import cached_property

from paceline.core import tree as trees
from paceline.core.types import TokenTree
from paceline.policy.controller import Controller
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import best_depths
from paceline.sampling.generation import Generation

# Sources of these drafts. Policies learn nothing from them.
CLIENT = "client"
PREDICTION = "prediction"
SOURCES = (CLIENT, PREDICTION)

_MOST = 64  # tokens of a draft
_NEAR = 16  # tokens ahead in which a single token may be found again
_LOOKED = 32  # places that are compared
_LONGEST = 8  # tokens before a place that are compared


class ClientDrafts:
    """Drafts of those sequences whose clients sent some."""

    def __init__(self) -> None:
        self._followers: dict[int, Follower] = {}

    def drafts(
        self, sequences: Sequence[Generation], controller: Controller
    ) -> dict[int, TokenTree]:
        """Return the next draft of each that has one, by its place in the batch."""
        out: dict[int, TokenTree] = {}
        asked = (each.speculation for each in sequences)
        if not any(each.draft or each.prediction for each in asked):
            return out
        reach: list[list[float]] = [[]] * len(sequences)
        for place, each in enumerate(sequences):
            # A draft is of the beginning: once a token is committed, it has stood or fallen.
            if each.speculation.draft and not each.stats.committed_tokens:
                out[place] = trees.chain(each.speculation.draft, CLIENT)
            elif each.speculation.prediction:
                reach[place] = self._follow(each).reach()
        for place, count in enumerate(depths(reach, controller.costs, controller.beside)):
            if count:
                ahead = self._followers[sequences[place].id].next(count)
                out[place] = trees.chain(ahead, PREDICTION)
        return out

    def close(self, sequence: Generation) -> None:
        self._followers.pop(sequence.id, None)

    def _follow(self, sequence: Generation) -> Follower:
        if sequence.id not in self._followers:
            asked = sequence.speculation
            self._followers[sequence.id] = Follower(asked.prediction, asked.marks)
        self._followers[sequence.id].read(sequence.tokens, sequence.prompt_length)
        return self._followers[sequence.id]


class Follower:
    """Say where in a prediction an answer is.

    Where the answer leaves the prediction it is taken to have replaced a token, until its last
    tokens are found again: those with most agreement before them, the nearest of equals. Marks are
    no part of either; one that the prediction lacks is taken to come twice, as an end and a begin.
    """

    def __init__(self, text: Sequence[int], marks: int | None = None) -> None:
        self._text = text
        self._marks = math.inf if marks is None else marks
        self._most = max(text, default=0)  # the last mark that is known
        self._later = 0  # how far those of the answer are behind those of the prediction
        self._twice: tuple[int, ...] = ()  # the mark that is taken to come again
        self._words: deque[int] = deque(maxlen=_LONGEST)  # the answer's last tokens without marks
        self._place = 0  # of the token that comes next
        self._known = 0  # tokens of the answer that were read
        self._run = 2  # tokens in a row that agreed; below 0 those that did not
        self._hits, self._tries = 9.0, 10.0

    def read(self, tokens: Sequence[int], first: int = 0) -> None:
        """Take in what is new of all tokens so far; the answer begins at `first`."""
        for at in range(first + self._known, len(tokens)):
            token = tokens[at]
            if token >= self._marks:
                self._mark(token, begins=at == first or tokens[at - 1] >= self._marks)
                continue
            self._twice = ()
            self._words.append(token)
            while self._marked():
                self._place += 1
            hit = self._place < len(self._text) and self._text[self._place] == token
            self._place += 1
            self._hits += hit
            self._tries += hit or self._run >= 0
            if hit:
                self._run = max(self._run, 0) + 1
            else:
                self._run = min(self._run, 0) - 1
                self._find([*self._words])
        self._known = len(tokens) - first

    def reach(self) -> list[float]:
        """Return the probability that the answer follows the prediction so far, by depth."""
        run, goes_on = self._run, self._hits / self._tries
        here = 1 - 0.5 ** (run + 1) if run >= 0 else 0.5 ** (1 - run)
        count = max(0, min(_MOST, len(self._text) - self._place))
        return [here * goes_on**depth for depth in range(count)]

    def next(self, count: int) -> Sequence[int]:
        ahead = self._text[self._place : self._place + count]
        if self._later:
            moved = (max(self._marks, min(each + self._later, self._most)) for each in ahead)
            pairs = zip(ahead, moved, strict=True)
            ahead = [int(new) if each >= self._marks else each for each, new in pairs]
        return [*self._twice, *ahead][:count] if self._twice else ahead

    def _marked(self) -> bool:
        return self._place < len(self._text) and self._text[self._place] >= self._marks

    def _mark(self, token: int, begins: bool) -> None:
        self._most = max(self._most, token)
        if self._marked():
            self._later = token - self._text[self._place]
            self._place += 1
            self._twice = ()
        else:
            self._twice = () if begins else (token,)

    def _find(self, last: Sequence[int]) -> None:
        text, here = self._text, self._place
        places = self._pairs.get(tuple(last[-2:]), ())
        first = max(0, bisect_left(places, here) - _LOOKED // 2)
        best = (1, 0, 0)
        for place in places[first : first + _LOOKED]:
            agree = 2
            while agree < min(len(last), place) and text[place - agree - 1] == last[-agree - 1]:
                agree += 1
            best = max(best, (agree, -abs(place - here), place))
        if best[0] > 1:
            self._run, _, self._place = best
        elif last[-1] in (near := text[here : here + _NEAR]):
            self._run, self._place = 1, here + near.index(last[-1]) + 1

    @cached_property
    def _pairs(self) -> dict[tuple[int, ...], list[int]]:
        # By pair of tokens, the places behind it, ascending.
        out: dict[tuple[int, ...], list[int]] = {}
        for place, pair in enumerate(zip(self._text, self._text[1:], strict=False), 2):
            out.setdefault(pair, []).append(place)
        return out


def depths(reach: Sequence[list[float]], costs: CostModel | None, beside: int) -> list[int]:
    """Return how many tokens of each prediction to draft; `beside` are rows of prefill."""
    if costs is None:
        return [sum(each > 0.5 for each in own) for own in reach]
    if not any(reach):
        return [0] * len(reach)
    return best_depths(reach, costs, beside=beside)

"""Timestamps of a transcript as a constraint (Radford et al. 2022, section 2.3).

A text is segments: a timestamp, words, a timestamp. Times never fall, and the first is in the first
second. Where all times together are more probable than any word, a time comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.core.constraint import ReadsLogits
from paceline.core.types import BoolArray, LogitArray, ProbArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.text import Tokenizer
from paceline.models.tokenizer import read_json

STEP = 0.02
"""Seconds from one timestamp to the next."""

_FIRST = 50  # latest of the first timestamp, in steps

# What is not spoken, alone or behind a space; of notes their first token, too, and of what is
# spoken inside of words the first token behind a space.
_SIGNS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
_PAIRS = ("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))")
_MORE = ("[[", "]]", "{{", "}}", "♪♪", "♪♪♪")
_NOTES = "♩♪♫♬♭♮♯"
_INNER = (" -", " '")
_BEGINS = ("begin_suppress_tokens", "suppress_ids_begin")


@dataclass(frozen=True, slots=True)
class TranscriptRules:
    """What a transcript may say; a `core.constraint.Constraint`.

    Attributes:
        vocabulary: ids of the model.
        end: token that ends a text.
        times: the first timestamp; all ids from there on are.
        suppressed: tokens that are no speech, such as marks of music.
        first: tokens that no text begins with.
        timed: whether there are timestamps; without, there are none at all.
    """

    vocabulary: int
    end: int
    times: int
    suppressed: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    timed: bool = True

    def start(self) -> TranscriptState:
        return TranscriptState(self)


def unspoken(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens of signs that nobody speaks, those that Whisper leaves out."""
    found = {token for each in _INNER for token in tokenizer.plain(each)[:1]}
    for sign in (*_SIGNS, *_PAIRS, *_MORE, *_NOTES):
        for each in (sign, f" {sign}"):
            ids = tokenizer.plain(each)
            if len(ids) == 1 or sign in _NOTES:
                found.add(ids[0])
    return found


def unsaid_of(path: Path, vocabulary: int) -> tuple[set[int] | None, tuple[int, ...] | None]:
    """Return the tokens that a model's directory suppresses, and those that begin no text.

    None is for a list that its files do not have; ModelError names one that is no list of tokens.
    """

    def listed(names: tuple[str, ...]) -> list[int] | None:
        for file in ("generation_config.json", "config.json"):
            found = read_json(path / file)
            for name in (each for each in names if found.get(each) is not None):
                ids = found[name]
                if not isinstance(ids, list) or {*map(type, ids)} - {int}:
                    raise ModelError(f"{path / file}: {name} is no list of tokens: mend it")
                if ids != [-1]:  # which asks for Whisper's own
                    if wrong := [each for each in ids if not 0 <= each < vocabulary]:
                        raise ModelError(f"{path / file}: {name} has {wrong[0]}, no token: mend it")
                    return ids
        return None

    suppressed, first = listed(("suppress_tokens", "suppress_ids")), listed(_BEGINS)
    return None if suppressed is None else {*suppressed}, None if first is None else (*first,)


class TranscriptState(ReadsLogits):
    """What one transcript may say next."""

    def __init__(self, rules: TranscriptRules) -> None:
        self._rules = rules
        self._said: list[int] = []

    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        said = [*self._said, *path]
        if self._allowed(said) < len(said):
            return np.ones(self._rules.vocabulary, np.bool_)
        return self._next(said)

    def read(self, logits: LogitArray | ProbArray) -> LogitArray | ProbArray:
        times = self._rules.times
        if self._rules.timed and (peak := logits[times:].max()) > -np.inf:
            shares = np.exp(logits[times:].astype(np.float64) - peak)
            if peak + np.log(shares.sum()) > logits[:times].max():
                logits[:times] = -np.inf
        return logits

    def valid(self, path: Sequence[int]) -> int:
        said = [*self._said, *path]
        return max(0, self._allowed(said, len(self._said)) - len(self._said))

    def forced(self) -> tuple[int, ...]:
        return ()

    def commit(self, tokens: Sequence[int]) -> None:
        if self.valid(tokens) < len(tokens):
            raise InvalidOption("a token breaks the rules of timestamps: resume another transcript")
        self._said += tokens

    def _allowed(self, said: Sequence[int], known: int = 0) -> int:
        # How many tokens are allowed, from the first on.
        for place in range(max(known, len(self._said)), len(said)):
            if not self._next(said[:place])[said[place]]:
                return place
        return len(said)

    def _next(self, said: Sequence[int]) -> BoolArray:
        rules = self._rules
        out = np.ones(rules.vocabulary, np.bool_)
        out[list(rules.suppressed)] = False
        if said and said[-1] == rules.end:
            out[:] = False
            out[rules.end] = True
            return out
        if not said:
            out[list(rules.first)] = False
        if not rules.timed:
            out[rules.times :] = False
            return out
        if not said:
            out[: rules.times] = False
            out[rules.times + _FIRST + 1 :] = False
            return out
        times = [token for token in said if token >= rules.times]
        timed = said[-1] >= rules.times
        begins = timed and (len(said) < 2 or said[-2] >= rules.times)
        if begins:  # words follow
            out[rules.times :] = False
        elif timed:  # the next segment begins, or the text ends
            out[: rules.times] = False
            out[rules.end] = True
        # No segment is empty: one that ends is behind its beginning.
        out[rules.times : times[-1] + (not timed)] = False
        return out


class Segment(NamedTuple):
    """Words from `begin` to `end`, in seconds; `tokens` are those of the words."""

    begin: float
    end: float
    tokens: tuple[int, ...]


def segments_of(
    tokens: Sequence[int], end: int, times: int, seconds: float
) -> tuple[list[Segment], float]:
    """Return the segments of a transcript of so many seconds, and up to where it is heard.

    What is begun behind a segment and has no end is not heard: the next window begins there.
    """
    said = [token for token in tokens if token != end]
    found: list[Segment] = []
    begin, words = 0.0, list[int]()
    for token in said:
        if token < times:
            words.append(token)
            continue
        at = min((token - times) * STEP, seconds)
        if words:
            found.append(Segment(begin, at, tuple(words)))
            words = []
        begin = at
    if words and not found:
        return [Segment(begin, seconds, tuple(words))], seconds
    begun = words or (len(said) > 1 and said[-1] >= times and said[-2] >= times)
    heard = found[-1].end if begun and found else seconds
    return found, heard if heard > 0 else seconds

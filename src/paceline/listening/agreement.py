"""What of the captions of a growing sound is final: words on which two in a row agree.

LocalAgreement of Liu et al. 2020 (arXiv:2005.11185), for Whisper as in Machacek et al. 2023
(arXiv:2307.14743), but without times of words: a caption is laid over what is final letter by
letter, for it may have lost words at either end, and hears one as two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

import numpy as np

_LEAK = 16  # letters before the window, about a second, that it may have the sound of all the same
_CHANCE = 2  # of these, equal ones that say nothing


def words_of(text: str) -> list[str]:
    """Return the words of a text; marks that stand alone belong to the word before."""
    out: list[str] = []
    for word in text.split():
        if out and not _key(word):
            out[-1] += f" {word}"
        else:
            out.append(word)
    return out


class Agreement:
    """Takes captions of a window that grows; what is final stays as it was said.

    Words are compared without case and punctuation, which the end of a sound changes most.

    Attributes:
        settled: number of words of the last caption that are final.
    """

    def __init__(self) -> None:
        self._gone: list[str] = []  # final words, the last ones before the window
        self._final: list[str] = []  # those of the window
        self._missed = 0  # of these, those at the end that the last caption lacks
        self._last: list[str] = []
        self.settled = 0

    def add(self, words: Sequence[str]) -> list[str]:
        """Take the next caption; return the words that are final now, behind those that were."""
        last, begin = self._last[self.settled :], self._lay(words)
        pairs = zip(last, words[begin:], strict=False)
        agreed = len(list(takewhile(lambda pair: _key(pair[0]) == _key(pair[1]), pairs)))
        self._last, self.settled = list(words), begin
        return self.settle(begin + agreed)

    def settle(self, count: int) -> list[str]:
        """Make the first `count` words of the last caption final; return those that were not."""
        before, self.settled = self.settled, max(self.settled, count)
        found = self._last[before : self.settled]
        self._final += found
        return found

    def drop(self, count: int) -> list[str]:
        """Say that the window has lost so many words, which are final; return them as they are."""
        self._last, self.settled = self._last[count:], self.settled - count
        lost = len(self._final) - self.settled - self._missed if count else 0
        gone, self._final = self._final[: max(0, lost)], self._final[max(0, lost) :]
        self._gone = [*self._gone, *gone][-_LEAK:]
        return gone

    def _lay(self, words: Sequence[str]) -> int:
        # Return how many words of a caption are final, or begin as the last final one does.
        gone = "".join(map(_key, self._gone))[-_LEAK:]
        ends = [*accumulate(map(len, map(_key, self._final)), initial=len(gone))]
        begins = [*accumulate(map(len, map(_key, words)), initial=0)]
        final, said = gone + "".join(map(_key, self._final)), "".join(map(_key, words))
        known, place = _overlap(final, said, len(gone))
        self._missed = sum(begin >= known for begin in ends[:-1])
        return sum(begin < place for begin in begins[:-1])


def _key(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))


def edits_to(said: Sequence[str], right: Sequence[str]) -> list[int]:
    """Return the least number of edits from `said` to each begin of `right`, the empty one first.

    An edit adds, drops or changes a word, or a letter where the two are strings.
    """
    row = list(range(len(right) + 1))
    for at, word in enumerate(said, 1):
        left, row[0] = row[0], at
        for place, other in enumerate(right, 1):
            best = min(left + (word != other), row[place] + 1, row[place - 1] + 1)
            left, row[place] = row[place], best
    return row


def _overlap(final: str, said: str, gone: int) -> tuple[int, int]:
    # Where the first of two texts to end does, in both, laid over each other as is worth most: 2 a
    # letter that is equal, less 1 for one that is not, 2 for one alone, and 1 for one of `final`
    # that `said` has lost at an end. Letters that are `gone` are free; those it has after all are
    # equal, and enough. Of equals, the plainest.
    letters = np.frombuffer(said.encode("utf-32-le"), np.uint32)
    places = 2 * np.arange(len(said) + 1)
    rows = [-places - (2 * _CHANCE if gone else 0)]
    for at, letter in enumerate(final, 1):
        row = rows[-1] - (4 if at <= gone else 2)
        equal = np.where(letters == ord(letter), 2, -4 if at <= gone else -1)
        row[1:] = np.maximum(row[1:], rows[-1][:-1] + equal)
        row[0] = -2 * _CHANCE if at < gone else gone - at
        rows.append(np.maximum.accumulate(row + places) - places)
    ends = {(at, len(said)): rows[at][-1] + at - len(final) for at in range(len(final))}
    ends |= {(len(final), at): worth for at, worth in enumerate(rows[-1])}
    return max(ends, key=lambda end: (ends[end], -abs(end[0] - gone - end[1])))

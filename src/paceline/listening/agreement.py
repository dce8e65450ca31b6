"""What of the captions of a growing sound is final: words on which two in a row agree.

LocalAgreement of Liu et al. 2020 (arXiv:2005.11185), for Whisper as in Machacek et al. 2023
(arXiv:2307.14743), but without times of words: a caption is aligned with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


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
    """Takes captions of one window, each longer than the last; what is final stays as it was said.

    Words are compared without case and punctuation, which the end of a sound changes most.

    Attributes:
        settled: number of words of the last caption that are final.
    """

    def __init__(self) -> None:
        self._last: list[str] = []
        self.settled = 0

    def add(self, words: Sequence[str]) -> list[str]:
        """Take the next caption; return the words that are final now, behind those that were."""
        final, last = self._last[: self.settled], self._last[self.settled :]
        begin = _aligned([*map(_key, final)], [*map(_key, words)])
        pairs = zip(last, words[begin:], strict=False)
        agreed = len(list(takewhile(lambda pair: _key(pair[0]) == _key(pair[1]), pairs)))
        self._last, self.settled = list(words), begin + agreed
        return self._last[begin : self.settled]

    def settle(self, count: int) -> list[str]:
        """Make the first `count` words of the last caption final; return those that were not."""
        before, self.settled = self.settled, max(self.settled, count)
        return self._last[before : self.settled]

    def drop(self, count: int) -> None:
        """Say that the window has lost the sound of so many words, which are final."""
        self._last, self.settled = self._last[count:], self.settled - count


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


def _aligned(final: Sequence[str], words: Sequence[str]) -> int:
    # The number of words that are as near as can be to the final ones, by edits; of equals that
    # nearest to theirs.
    row = edits_to(final, words)
    return min(range(len(row)), key=lambda place: (row[place], abs(place - len(final))))

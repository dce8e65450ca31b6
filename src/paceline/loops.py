"""Texts that have come to repeat themselves, as small models often do when they decode greedily."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = 3
_LEAST = 24
"""Fewer tokens are a row of dots, three equal lines, a number full of zeros."""

_LONGEST = 128

WINDOW = _TIMES * _LONGEST
"""Tokens at the end of a text that say whether it repeats itself."""


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Whether the last tokens, 24 or more, are one run of up to 128 tokens three times over.

    A run of less than 8 tokens has to come as often as it takes to fill 24.
    """
    backwards = list(tokens[: -WINDOW - 1 : -1])
    period = 0
    while True:
        try:  # a run ends with the last token, and so does every earlier copy of it
            period = backwards.index(backwards[0], period + 1, _LONGEST + 1)
        except (ValueError, IndexError):
            return False
        span = max(_TIMES * period, _LEAST)
        if span <= len(backwards) and backwards[period:span] == backwards[: span - period]:
            return True

"""Repetition detection, for small models that repeat themselves under greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = 3
# Shorter repetition is legitimate: a row of dots, three equal lines, a number full of zeros.
_LEAST = 24

_LONGEST = 128

# Length of the suffix that `ends_in_loop` looks at.
WINDOW = _TIMES * _LONGEST


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Return whether a text ends in a repetition: a run of up to 128 tokens three times over."""
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

"""Large counts as people write them: 60k, 1.5M, 60000."""

from __future__ import annotations

import re
from decimal import Decimal

from paceline.errors import InvalidOption

_UNITS = {"": 1, "k": 1000, "m": 1_000_000}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([km]?)", re.IGNORECASE)


def read_count(text: str, option: str) -> int:
    """A count of 1 or more from text.

    Args:
        text: digits, with k for thousands or M for millions behind.
        option: where it stands, for messages.

    Raises:
        InvalidOption: it is no whole number above 0.
    """
    found = _FORM.fullmatch(text.strip())
    value = Decimal(found[1]) * _UNITS[found[2].lower()] if found else Decimal(0)
    if value < 1 or value != int(value):
        raise InvalidOption(
            f"{option} must be whole numbers above 0, such as 60000, 60k or 1.5M, not {text!r}"
        )
    return int(value)


def short(count: int) -> str:
    """A count to read: 950, 60k, 7.08M; three digits, and more for a thousand millions."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        value = count / size
        if value >= 0.9995:
            places = 2 if value < 10 else 1 if value < 100 else 0
            number = f"{value:.{places}f}"
            return f"{number.rstrip('0').rstrip('.') if places else number}{unit}"
    return str(count)

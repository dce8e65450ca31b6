"""What expressions (`native_network_rows`) come to in the last context row of every sequence.

Drafts start there, so that behind the attention of a network's last layer no other row is needed.
"""

from __future__ import annotations

from typing import Any

from paceline.runtimes.native_network_rows import (
    Joined,
    Last,
    Linear,
    Normed,
    Part,
    Rows,
    Silu,
    Sum,
    Times,
)


class Lasts:
    """Finds what the last context row of every sequence comes to.

    Of rows that nothing has asked for, only those of the last are made.
    """

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[Rows, Rows] = {}

    def __call__(self, x: Rows) -> Rows:
        """Draft rows of one slot."""
        if x not in self._known:
            again = self._again(x) if x.written is None else {}
            kept = {key: each for key, each in vars(x).items() if key not in again}
            self._known[x] = (
                type(x)(**{**kept, **again, "slots": 1}) if again else Last(1, x.width, of=x)
            )
        return self._known[x]

    def _again(self, x: Rows) -> dict[str, Any]:
        """What the same is made of there; nothing if it cannot be made of last rows."""
        match x:
            case Linear() | Normed() | Silu():
                return {"of": self(x.of)}
            case Part() if x.of.written is None:
                return {"of": self(x.of)}
            case Joined():
                return {"parts": tuple(map(self, x.parts))}
            case Sum() | Times():
                second = x.second
                other = self(second) if isinstance(second, Rows) else second
                return {"first": self(x.first), "second": other}
        return {}

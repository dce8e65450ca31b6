"""What a row costs at the moment, in units of what was measured once.

A machine that is shared changes within seconds: while memory is short a forward is slow whatever
its rows, and they are nearly free; while it is not, rows are what a forward takes. A curve of
costs that was measured in one of these states chooses wrong sizes in the other. So recent steps
are laid on a line over the measured cost of their rows: where it begins is the machine's pace,
which changes no choice, and how steep it is, beside that, is the price.
"""

from __future__ import annotations

_MEMORY = 0.99
"""Decay per step: a machine changes within seconds, of some hundred steps each."""

_BELIEF = 0.1
"""How much the measured price counts: as steps whose measured costs, in units of one row's, have
this sum of squares about their mean."""

_LEAST, _MOST = 0.25, 4.0
"""Bounds of a price."""

_OUTLIER = 1.5
"""A step that takes more than so many times as long as was expected counts as so many."""


class RowPrice:
    """A line through recent steps, by least squares."""

    def __init__(self) -> None:
        """Believe what was measured."""
        self.price = 1.0
        """Of a row, in units of the measured one."""
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, measured: float, seconds: float) -> None:
        """A forward is over.

        Args:
            measured: what its rows beyond the first were measured to cost, in units of a forward
                over one row.
            seconds: what it took, in the same units.
        """
        if self._weight > 1:
            pace = self._y / (self._weight + self.price * self._x)
            seconds = min(seconds, _OUTLIER * pace * (1 + self.price * measured))
        self._weight = _MEMORY * self._weight + 1
        self._x = _MEMORY * self._x + measured
        self._y = _MEMORY * self._y + seconds
        self._xx = _MEMORY * self._xx + measured * measured
        self._xy = _MEMORY * self._xy + measured * seconds
        pace = self._y / (self._weight + self._x)  # if rows cost what was measured
        spread = self._xx - self._x * self._x / self._weight
        together = self._xy - self._x * self._y / self._weight
        slope = (together + _BELIEF * pace) / (spread + _BELIEF)
        begin = (self._y - slope * self._x) / self._weight
        price = slope / begin if begin > 0 else _MOST
        self.price = min(max(price, _LEAST), _MOST)

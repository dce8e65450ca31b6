"""Present price of a row, relative to the measured one: least squares of recent step times over the
measured cost of their rows. On a shared machine, memory-bound phases make rows nearly free and
others do not. The intercept is the machine's pace, the slope relative to it the price.
"""

from __future__ import annotations

# Decay per step: a machine changes within seconds, of some hundred steps each.
_MEMORY = 0.99

# Weight of the measured price: as steps whose measured costs, in units of one row's, have this sum
# of squares about their mean.
_BELIEF = 0.1

# Bounds of a price.
_LEAST, _MOST = 0.25, 4.0

# A step that takes more than so many times as long as was expected counts as so many.
_OUTLIER = 1.5


class RowPrice:
    """Running least-squares line through recent steps."""

    def __init__(self) -> None:
        # Of a row, in units of the measured one.
        self.price = 1.0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, measured: float, seconds: float) -> None:
        """Add a forward: measured cost of its further rows, and time, in forwards of one row."""
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

"""Drafters' estimates against what was accepted: one factor for all text, one per sequence."""

from __future__ import annotations

_PRIOR = 4.0
"""Expected acceptances that the shared factor counts for in a sequence's own."""

_MEMORY = 0.98
"""Decay per step of what was counted."""


class _Ratio:
    """Accepted over predicted, with decay."""

    def __init__(self) -> None:
        self._accepted = 0.0
        self._predicted = 0.0

    def add(self, accepted: float, predicted: float) -> None:
        self._accepted = _MEMORY * self._accepted + accepted
        self._predicted = _MEMORY * self._predicted + predicted

    def value(self, prior: float, weight: float) -> float:
        return (self._accepted + prior * weight) / (self._predicted + weight)


class Calibration:
    """What to multiply a drafter's estimates with, by sequence id."""

    def __init__(self) -> None:
        """Trust the estimates."""
        self._all = _Ratio()
        self._own: dict[int, _Ratio] = {}

    def learn(self, id: int, accepted: float, predicted: float) -> None:
        """A draft from which `predicted` tokens were expected had `accepted` accepted."""
        self._all.add(accepted, predicted)
        self._own.setdefault(id, _Ratio()).add(accepted, predicted)

    def factor(self, id: int) -> float:
        """Accepted tokens per expected one."""
        shared = self._all.value(1.0, 2 * _PRIOR)
        own = self._own.get(id)
        return shared if own is None else own.value(shared, _PRIOR)

    def close(self, id: int) -> None:
        """Forget a sequence's own factor."""
        self._own.pop(id, None)

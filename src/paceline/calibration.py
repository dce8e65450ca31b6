"""Drafters' estimates against what was accepted: one factor for all text, one per sequence.

And one for what is chosen to be verified: of uncertain estimates the highest are chosen, and these
are too high oftener than too low, however right all of them are together.
"""

from __future__ import annotations

_PRIOR = 4.0
"""Expected acceptances that the shared factor counts for in a sequence's own."""

_MEMORY = 0.98
"""Decay per draft of what was counted."""

_CHOSEN_PRIOR = 10.0
_CHOSEN_MEMORY = 0.995
"""The same for those that were chosen: how much too high they are differs little from text to text,
and shows only in many."""


def corrected(chances: list[float], factor: float) -> list[float]:
    """Chances that come true `factor` times as often as they say.

    A factor above 1 multiplies odds: it comes from many small chances, and the high ones beside
    them have no room for it.
    """
    if factor <= 1:
        return [factor * chance for chance in chances]
    return [factor * chance / (1 + (factor - 1) * chance) for chance in chances]


class _Ratio:
    """Accepted over predicted, with decay."""

    def __init__(self, memory: float = _MEMORY) -> None:
        self._memory = memory
        self._accepted = 0.0
        self._predicted = 0.0

    def add(self, accepted: float, predicted: float) -> None:
        self._accepted = self._memory * self._accepted + accepted
        self._predicted = self._memory * self._predicted + predicted

    def value(self, prior: float, weight: float) -> float:
        return (self._accepted + prior * weight) / (self._predicted + weight)


class Calibration:
    """What to multiply a drafter's estimates with, by sequence id."""

    def __init__(self) -> None:
        """Trust the estimates."""
        self._all = _Ratio()
        self._own: dict[int, _Ratio] = {}
        self._chosen = _Ratio(_CHOSEN_MEMORY)

    def verified(self, id: int, accepted: float, predicted: float) -> None:
        """`learn` of a draft that was chosen to be verified."""
        self._chosen.add(accepted, predicted * self._factor(id))
        self.learn(id, accepted, predicted)

    def learn(self, id: int, accepted: float, predicted: float) -> None:
        """A draft from which `predicted` tokens were expected had `accepted` accepted."""
        self._all.add(accepted, predicted)
        self._own.setdefault(id, _Ratio()).add(accepted, predicted)

    def factor(self, id: int) -> float:
        """Accepted tokens per expected one, if it is chosen."""
        return self._factor(id) * self._chosen.value(1.0, _CHOSEN_PRIOR)

    def close(self, id: int) -> None:
        """Forget a sequence's own factor."""
        self._own.pop(id, None)

    def _factor(self, id: int) -> float:
        """Accepted tokens per expected one, of all that are proposed."""
        shared = self._all.value(1.0, 2 * _PRIOR)
        own = self._own.get(id)
        return shared if own is None else own.value(shared, _PRIOR)

"""Calibration of acceptance probabilities: accepted over expected tokens, also per sequence."""

from __future__ import annotations

# Weight, in expected accepted tokens, of the shared factor in a sequence's own factor.
_PRIOR = 4.0

# Decay per draft.
_MEMORY = 0.98

# For selected drafts. Their bias differs little between texts and shows only over many drafts.
_CHOSEN_PRIOR = 10.0
_CHOSEN_MEMORY = 0.995


def corrected(chances: list[float], factor: float) -> list[float]:
    """Return acceptance probabilities times `factor`; above 1 it multiplies the odds instead."""
    if factor <= 1:
        return [factor * chance for chance in chances]
    return [factor * chance / (1 + (factor - 1) * chance) for chance in chances]


class _Ratio:
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
    """Correction factors of a drafter's acceptance probabilities, by sequence id."""

    def __init__(self) -> None:
        self._all = _Ratio()
        self._own: dict[int, _Ratio] = {}
        self._chosen = _Ratio(_CHOSEN_MEMORY)

    def verified(self, id: int, accepted: float, predicted: float) -> None:
        # Selecting the highest of uncertain estimates favours those that are too high, so selected
        # drafts have a factor of their own.
        self._chosen.add(accepted, predicted * self._factor(id))
        self.learn(id, accepted, predicted)

    def learn(self, id: int, accepted: float, predicted: float) -> None:
        self._all.add(accepted, predicted)
        self._own.setdefault(id, _Ratio()).add(accepted, predicted)

    def factor(self, id: int) -> float:
        """Return accepted over expected tokens, for drafts selected for verification."""
        return self._factor(id) * self._chosen.value(1.0, _CHOSEN_PRIOR)

    def close(self, id: int) -> None:
        self._own.pop(id, None)

    def _factor(self, id: int) -> float:
        shared = self._all.value(1.0, 2 * _PRIOR)
        own = self._own.get(id)
        return shared if own is None else own.value(shared, _PRIOR)

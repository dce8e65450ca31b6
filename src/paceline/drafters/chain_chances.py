"""Online Platt scaling (Platt 1999) of draft probabilities to acceptance probabilities.

Slope and offset in the logit are learned by Newton steps, from tokens whose predecessors in
the chain were all accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

# Initial slope and offset; those of greedy requests and of drafts with shared Gumbel noise are
# fitted to EAGLE-3 and the default model.
_GREEDY = 1.0, 0.6
_NOISY = 0.75, -0.9
_DRAWN = 1.0, 0.0

# Prior curvature of the loss, in the order of 50 tokens.
_BELIEF = 10.0

# Decay of the curvature per token, so that the fit follows the text.
_MEMORY = 0.999

# Largest logit.
_SUREST = 7.0


class ChainChances:
    """Platt scaling for requests of one temperature."""

    def __init__(self, greedy: bool, noisy: bool) -> None:
        """Start from fitted values; `noisy` drafts share the target's Gumbel noise."""
        self._slope, self._offset = _GREEDY if greedy else _NOISY if noisy else _DRAWN
        self._bend = [_BELIEF, _BELIEF]  # curvature of the loss by slope and offset
        self._said = self._stood = -1.0  # mean logarithms of chances, as said and as they stand

    def of(self, chances: Sequence[float]) -> list[float]:
        """Return acceptance probabilities, each given acceptance of the tokens before."""
        slope, offset = self._slope, self._offset
        return [1 / (1 + exp(-slope * _logit(chance) - offset)) for chance in chances]

    def said(self, chance: float) -> float:
        """Return the draft probability of a chain, roughly, for an acceptance probability."""
        return chance ** (self._said / self._stood) if chance > 0 else 0.0

    def learn(
        self, chances: Sequence[float], tokens: Sequence[int], committed: Sequence[int]
    ) -> None:
        """Update from a drafted chain with its draft probabilities and the committed tokens."""
        for chance, token, right in zip(chances, tokens, committed, strict=False):
            at = _logit(chance)
            stands = 1 / (1 + exp(-self._slope * at - self._offset))
            wrong, bend = (token == right) - stands, stands * (1 - stands)
            by_slope, by_offset = self._bend
            self._bend = [_MEMORY * by_slope + bend * at * at, _MEMORY * by_offset + bend]
            self._slope += wrong * at / self._bend[0]
            self._offset += wrong / self._bend[1]
            self._said += (log(max(chance, 1e-3)) - self._said) / 64
            self._stood += (log(max(stands, 1e-3)) - self._stood) / 64
            if token != right:
                return


def _logit(chance: float) -> float:
    if chance <= 0:
        return -_SUREST
    return max(-_SUREST, min(_SUREST, log(chance / (1 - chance)))) if chance < 1 else _SUREST

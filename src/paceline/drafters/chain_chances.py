"""How often a network's own tokens stand, by the chance that it gives them.

A network that is unsure of the law may be sure of the likeliest token, so for greedy requests its
tokens stand oftener than they say; tokens that win under the noise stand more seldom, since the
target's law differs. So chances go through a line in the logits (Platt 1999), which is learned
while decoding: a step of Newton's method for every token whose fate is known, if all before it in
the chain stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

_GREEDY = 1.0, 0.6
_NOISY = 0.75, -0.9
_DRAWN = 1.0, 0.0
"""Slope and offset to begin with; those of greedy requests, and of others that are drafted with the
target's noise, are fits to EAGLE-3 and the default model."""

_BELIEF = 10.0
"""Curvature that the first line counts for: that of some 50 tokens."""

_MEMORY = 0.999
"""Decay per token of the curvature, so that lines follow the text."""

_SUREST = 7.0
"""Largest logit."""


class ChainChances:
    """The line for requests of one temperature."""

    def __init__(self, greedy: bool, noisy: bool) -> None:
        """Begin with a fitted line.

        Args:
            greedy: whether the temperature is 0.
            noisy: if not, whether tokens are drafted with the target's noise.
        """
        self._slope, self._offset = _GREEDY if greedy else _NOISY if noisy else _DRAWN
        self._bend = [_BELIEF, _BELIEF]  # curvature of the loss by slope and offset
        self._said = self._stood = -1.0  # mean logarithms of chances, as said and as they stand

    def of(self, chances: Sequence[float]) -> list[float]:
        """How often tokens of these chances stand, given those before them."""
        slope, offset = self._slope, self._offset
        return [1 / (1 + exp(-slope * _logit(chance) - offset)) for chance in chances]

    def said(self, chance: float) -> float:
        """What the chances of a chain multiply to, roughly, if it stands with this chance."""
        return chance ** (self._said / self._stood) if chance > 0 else 0.0

    def learn(
        self, chances: Sequence[float], tokens: Sequence[int], committed: Sequence[int]
    ) -> None:
        """A chain was drafted, of such chances, before this was committed."""
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

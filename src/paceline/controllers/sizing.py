"""How many nodes to verify when a change of size costs extra.

Verifying n nodes beside B roots commits g(n) = B + (sum of the n likeliest) tokens in expected
value and takes t(B + n) seconds. Without extra cost the best n maximises g / t. With it the last
size is a state, and the choice a Markov decision problem of average reward: with `rate` the tokens
per second of the long run and h(s) the worth of being at size s, the best size maximises
g(s) - rate * (t(s) + [s is not the last] * switch) + h(s). h comes from relative value iteration
over the gains of recent steps, one sweep per step, so the policy follows the text: it stays at a
large size where drafts are steadily good, and leaves a small one only for a promising draft.
"""

from __future__ import annotations

import numpy as np

from paceline.controllers.cost import CostModel
from paceline.types import ProbArray

MARGIN = 1.02
"""How much better than plain decoding a draft must look: costs are known no better than that."""

_STEPS = 64
"""Recent steps whose gains stand for those to come."""

_MEMORY = 0.98
"""Decay per step of the long-run rate."""


class Sizing:
    """Chooses the number of nodes to verify, step by step."""

    def __init__(self) -> None:
        self._roots = 0
        self._last = 0
        self._committed = self._spent = 0.0

    def choose(self, ranked: ProbArray, roots: int, costs: CostModel) -> tuple[int, int]:
        """How many of the ranked nodes to verify beside `roots` roots, and the size to pad to.

        A size may be kept through a step whose draft cannot fill it. Where size changes cost
        nothing, the size is 0: no padding.

        Args:
            ranked: float64 `[n]`, probabilities of acceptance, descending.
            roots: sequences in the batch.
            costs: what forwards cost.
        """
        gains = roots + np.concatenate([[0.0], np.cumsum(ranked)])
        if not costs.padded or not costs.switch:
            rates = gains / costs.times(roots + np.arange(len(gains)))
            best = int(np.argmax(rates))
            return best if rates[best] > MARGIN * rates[0] else 0, 0
        if roots != self._roots:
            self._restart(roots, costs)
        nodes = np.clip(self._sizes - roots, 0, len(ranked))
        seconds = costs.times(self._sizes)
        changed = costs.switch * (self._sizes != self._last)
        gain = gains[nodes]
        best = int(np.argmax(gain - self._rate * (seconds + changed) + self._worth))
        self._committed = _MEMORY * self._committed + float(gain[best])
        self._spent = _MEMORY * self._spent + float(seconds[best] + changed[best])
        self._learn(gain, seconds, costs.switch)
        return int(nodes[best]), int(self._sizes[best])

    def ran(self, size: int) -> bool:
        """Note the padded size of a forward; whether it was that of the one before."""
        same = size == self._last
        self._last = size
        return same

    @property
    def _rate(self) -> float:
        return self._committed / self._spent

    def _restart(self, roots: int, costs: CostModel) -> None:
        """Another batch size is another problem."""
        self._roots = roots
        sizes = [size for size in costs.sizes if size >= costs.size(roots)]
        self._sizes = np.array(sizes or [costs.size(roots)])
        self._worth = np.zeros(len(self._sizes))
        self._recent = np.empty((0, len(self._sizes)))
        # Plain decoding is the rate to beat, believed like a few steps.
        self._committed = 4.0 * roots
        self._spent = 4.0 * costs.time(roots)

    def _learn(self, gain: ProbArray, seconds: ProbArray, switch: float) -> None:
        """Take a step's gains in and sweep once over all recent ones."""
        self._recent = np.concatenate([self._recent[-_STEPS + 1 :], gain[None]])
        value = self._recent - self._rate * seconds + self._worth
        elsewhere = value.max(axis=1, keepdims=True) - self._rate * switch
        worth = np.maximum(value, elsewhere).mean(axis=0)
        self._worth = worth - worth[0]

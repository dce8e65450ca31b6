"""How many nodes to verify when a change of size costs extra.

Verifying n nodes beside B roots commits g(n) = B + (sum of the n likeliest) tokens in expected
value and takes t(B + n) seconds. Without extra cost the best n maximises g / t. With it the last
size is a state, and the choice a Markov decision problem of average reward: with `rate` the tokens
per second of the long run and h(s) the worth of being at size s, the best size maximises
g(s) - rate * (t(s) + [s is not the last] * switch) + h(s). h is learned by
relative value iteration, one step of it per step of decoding, so the policy follows the text: it
stays at a large size where drafts are steadily good, and leaves a small one only for a promising
draft. Lists, not arrays: there are few sizes, and this runs at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from paceline.controllers.cost import CostModel

MARGIN = 1.02
"""How much better than plain decoding a draft must look: costs are known no better than that."""

_PACE = 1 / 16
"""Weight of one step in what sizes are worth."""

_MEMORY = 0.98
"""Decay per step of the long-run rate."""


class Sizing:
    """Chooses the number of nodes to verify, step by step."""

    def __init__(self) -> None:
        self._roots = 0
        self._last = 0
        self._sizes: Sequence[int] = ()
        self._worth: list[float] = []
        self._committed = self._spent = 0.0

    def choose(
        self, ranked: Sequence[float], roots: int, costs: CostModel, beside: int = 0
    ) -> tuple[int, int]:
        """How many of the ranked nodes to verify beside `roots` roots, and the size to pad to.

        A size may be kept through a step whose draft cannot fill it. Where size changes cost
        nothing, the size is 0: no padding.

        Args:
            ranked: probabilities of acceptance, descending.
            roots: sequences in the batch.
            costs: what forwards cost.
            beside: rows of the forward that belong to none of the sequences. They are there for
                their own sake: a node must gain more than its own time would commit in a plain
                step. And such a forward is an exception, so no size is kept for it.
        """
        gains = list(accumulate(ranked, initial=float(roots)))
        most = len(gains) - 1
        if beside:
            rate = MARGIN * roots / costs.time(roots, roots)
            taken = roots + beside
            left = [gain - rate * costs.time(taken + n) for n, gain in enumerate(gains)]
            return left.index(max(left)), 0
        if not costs.padded or not costs.switch:
            rates = [gain / costs.time(roots + nodes, roots) for nodes, gain in enumerate(gains)]
            best = rates.index(max(rates))
            return best if rates[best] > MARGIN * rates[0] else 0, 0
        if roots != self._roots:
            self._restart(roots, costs)
        nodes = [min(max(size - roots, 0), most) for size in self._sizes]
        plain = self._sizes[0]
        seconds = [costs.time(s, roots) * (MARGIN if s > plain else 1.0) for s in self._sizes]
        rate, fee = self._rate, self._rate * costs.switch
        value = [
            gains[n] - rate * s + worth
            for n, s, worth in zip(nodes, seconds, self._worth, strict=True)
        ]
        after = [v - fee * (size != self._last) for v, size in zip(value, self._sizes, strict=True)]
        best = after.index(max(after))
        size = self._sizes[best]
        self._committed = _MEMORY * self._committed + gains[nodes[best]]
        self._spent = _MEMORY * self._spent + seconds[best] + costs.switch * (size != self._last)
        elsewhere = max(value) - fee
        worth = [
            old + _PACE * (max(v, elsewhere) - old)
            for old, v in zip(self._worth, value, strict=True)
        ]
        self._worth = [each - worth[0] for each in worth]
        return nodes[best], size

    @staticmethod
    def saved(ranked: Sequence[float], roots: int, costs: CostModel) -> float:
        """Seconds that verifying the best number of the ranked nodes saves, in a steady run.

        That is what plain decoding would need for the tokens that they gain, less their own time.
        """
        gains = list(accumulate(ranked, initial=0.0))
        plain = costs.time(roots, roots)
        most = len(ranked)
        counts = {min(size - roots, most) for size in costs.sizes if size > roots} | {0, most}
        return max(
            gains[n] * plain / roots - (costs.time(roots + n, roots) - plain) for n in counts
        )

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
        self._sizes = sizes or [costs.size(roots)]
        self._worth = [0.0] * len(self._sizes)
        # Plain decoding is the rate to beat, believed like a few steps.
        self._committed = 4.0 * roots
        self._spent = 4.0 * costs.time(roots, roots)

"""How many tokens to keep: coverage against the time of a draft, and the best size exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidOption
from paceline.options import require
from paceline.training.vocabulary import coverage_curve
from paceline.types import IntArray


@dataclass(frozen=True, slots=True)
class Sizing:
    """The size of a draft vocabulary and what speaks for it.

    Attributes:
        size: tokens kept.
        utility: what is maximised.
        coverage: share of the target's tokens that are kept.
        reduction: share of a draft's cost that is saved against the whole vocabulary.
    """

    size: int
    utility: float
    coverage: float
    reduction: float


class Balance:
    """U(k) = alpha C(k) + (1 - alpha) R(k) over allowed sizes, where C(k) is at least a floor.

    C is coverage by the k most frequent tokens. R(k) = 1 - cost(k) / cost(all) with
    cost(k) = body + 2 width k, the floating-point operations of one drafted token. That is the
    trade-off of vocabulary trimming by TPE; U is a function of one integer, so `best` looks at
    every size, and `paceline.training.vocabulary_search` is checked against it.
    """

    def __init__(
        self,
        counts: IntArray,
        *,
        body: float,
        width: int,
        alpha: float = 0.5,
        least_coverage: float = 0.0,
        smallest: int = 1,
        largest: int | None = None,
        step: int = 1,
    ) -> None:
        """Set what is weighed.

        Args:
            counts: int64 `[v]`, how often the target wrote each token.
            body: operations per drafted token in all but the LM head.
            width: of the hidden state that the head reads.
            alpha: weight of coverage against cost, in [0, 1].
            least_coverage: the floor of C(k), in [0, 1].
            smallest: size allowed.
            largest: size allowed; None for all tokens.
            step: sizes are `smallest` and so many tokens more, again and again.

        Raises:
            InvalidOption: a value is out of range, nothing was counted, or no allowed size covers
                enough.
        """
        largest = len(counts) if largest is None else largest
        require(body >= 0, "body", body, "0 operations or more")
        require(width >= 1, "width", width, "1 or more")
        require(0 <= alpha <= 1, "alpha", alpha, "in [0, 1]")
        require(0 <= least_coverage <= 1, "least coverage", least_coverage, "in [0, 1]")
        require(1 <= largest <= len(counts), "largest size", largest, f"1 to {len(counts)} tokens")
        require(1 <= smallest <= largest, "smallest size", smallest, f"1 to {largest} tokens")
        require(step >= 1, "step", step, "1 or more")
        self.sizes = np.arange(smallest, largest + 1, step)
        self.least_coverage = least_coverage
        self._alpha, self._body, self._width = alpha, body, width
        self._coverage, self._all = coverage_curve(counts), len(counts)
        most = self.coverage(int(self.sizes[-1]))
        if most < least_coverage:
            raise InvalidOption(
                f"{self.sizes[-1]} tokens cover {most:.2%}, less than the {least_coverage:.2%} "
                "asked for: allow more tokens or less coverage"
            )

    def coverage(self, size: int) -> float:
        """Share of the target's tokens that the `size` most frequent cover."""
        return float(self._coverage[size - 1])

    def at(self, size: int) -> Sizing:
        """What speaks for a size, allowed or not."""
        cost = self._body + 2.0 * self._width * size
        reduction = 1 - cost / (self._body + 2.0 * self._width * self._all)
        coverage = self.coverage(size)
        utility = self._alpha * coverage + (1 - self._alpha) * reduction
        return Sizing(size, utility, coverage, reduction)

    def best(self) -> Sizing:
        """The allowed size of the greatest utility, by looking at all; the least among equals."""
        every = [self.at(int(size)) for size in self.sizes]
        allowed = [each for each in every if each.coverage >= self.least_coverage]
        return max(allowed, key=lambda each: (each.utility, -each.size))

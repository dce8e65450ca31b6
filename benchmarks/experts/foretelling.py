"""Experts foretold from token ids, before the forward (after Speculative MoE, arXiv:2503.04398).

A table counts which experts of each layer a token has used, and learns from every forward. What it
foretells may be wrong: rows are routed by the model's own scores, so no text depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from paceline.core.target import Output, Pass
from paceline.core.types import BoolArray, ProbArray

_PRIOR = 2.0
"""Rows of a token that the mean over all tokens counts for."""


@dataclass(slots=True)
class Counters:
    """Of rows that were foretold.

    Attributes:
        rows: seen, of all layers.
        uses: experts that rows used.
        foretold: experts that were foretold.
        right: foretold ones that were used.
        unknown: rows of tokens that were new, foretold by the mean over all tokens.
    """

    rows: int = 0
    uses: int = 0
    foretold: int = 0
    right: int = 0
    unknown: int = 0

    @property
    def recall(self) -> float:
        return self.right / max(1, self.uses)

    @property
    def precision(self) -> float:
        return self.right / max(1, self.foretold)


class Foretelling:
    """The table: experts by token and layer, learned as it goes."""

    def __init__(self, layers: int, experts: int, used: int = 0, *, tokens: bool = True) -> None:
        """Begin empty.

        Args:
            layers: that have experts.
            experts: of a layer.
            used: experts of a row; 0 if rows use as many as they want.
            tokens: False foretells by the mean over all tokens: what knowing the token is worth.
        """
        self.counters = Counters()
        self._used, self._tokens = used, tokens
        self._all = np.zeros((layers, experts))
        self._rows = 0
        self._known: dict[int, tuple[int, ProbArray]] = {}

    def shares(self, tokens: Sequence[int]) -> ProbArray:
        """Return how probable each expert is, `[rows, layers, experts]`."""
        mean = self._all / max(1, self._rows)
        known = (self._known.get(token, (0, 0.0)) for token in tokens)
        return np.array([(used + _PRIOR * mean) / (count + _PRIOR) for count, used in known])

    def foretell(self, tokens: Sequence[int]) -> BoolArray:
        """Return the experts that are expected to be used, `[rows, layers, experts]`."""
        shares = self.shares(tokens)
        if not self._used:
            return shares > 0.5
        best = np.argsort(-shares, axis=-1, kind="stable")[..., : self._used]
        out = np.zeros(shares.shape, dtype=np.bool_)
        np.put_along_axis(out, best, True, axis=-1)
        return out & (shares > 0)

    def learn(self, tokens: Sequence[int], used: BoolArray) -> None:
        """Count what was foretold, and learn what came: `used` is `[rows, layers, experts]`."""
        told, counters = self.foretell(tokens), self.counters
        counters.rows += used.shape[0] * used.shape[1]
        counters.uses += int(used.sum())
        counters.foretold += int(told.sum())
        counters.right += int((told & used).sum())
        counters.unknown += sum(token not in self._known for token in tokens) * used.shape[1]
        self._all += used.sum(0)
        self._rows += len(tokens)
        for token, row in zip(tokens, used, strict=True) if self._tokens else ():
            count, before = self._known.get(token, (0, 0.0))
            self._known[token] = count + 1, before + row


class Watched:
    """A target whose forwards teach a table; everything else is the target's own."""

    def __init__(self, target: Any, table: Foretelling) -> None:
        self._target, self.table = target, table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, passes: Sequence[Pass]) -> list[Output]:
        """Forward, then compare the experts that were used with those foretold."""
        outputs: list[Output] = self._target.forward(passes)
        tokens: list[int] = []
        for each in passes:
            tokens += map(int, each.pending)
            tokens += [] if each.draft is None else map(int, each.draft.tokens)
        used = np.stack([each != 0 for each in self._target.routes()], axis=1)
        self.table.learn(tokens, used)
        return outputs


def as_dict(counters: Counters) -> dict[str, float]:
    """All counters, and the shares."""
    found = {each.name: getattr(counters, each.name) for each in fields(counters)}
    return found | {"recall": counters.recall, "precision": counters.precision}

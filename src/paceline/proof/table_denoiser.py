"""Denoisers over explicit joints: small enough to enumerate, complete enough for the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.core.target import Layer, Output, Rows
from paceline.core.types import Attention, CanvasTraits, Capabilities, ProbArray


class TableDenoiser:
    """`Target` over a joint of `places` symbols after a prompt of `begin` tokens.

    A masked row's distribution is the exact conditional of its place, given the tokens that it
    sees. A clean row's is that of its place given the others, or with `autoregressive` that of the
    next place. Places beyond the joint hold the end token. Tokens are the joint's symbols,
    the mask, the end.
    """

    def __init__(
        self,
        joint: ProbArray,
        begin: int = 1,
        attention: Attention = "full",
        block: int | None = None,
        *,
        shifted: bool = False,
        autoregressive: bool = False,
    ) -> None:
        """Bind float64 `[symbols] * places`, which sums to one."""
        self.joint = joint
        self.symbols = joint.shape[0]
        self.mask, self.end = self.symbols, self.symbols + 1
        self.begin = begin
        self.forwards: list[int] = []
        self._facts = CanvasTraits(
            self.mask, attention, block, shifted, autoregressive, (self.end,)
        )

    @property
    def facts(self) -> CanvasTraits:
        return self._facts

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            runtime="tabular",
            device="cpu",
            precision="fp64",
            vocab_size=self.symbols + 2,
            max_context=self.begin + self.joint.ndim + 64,
            hidden_size=0,
            hidden_states=False,
            bit_exact=True,
            blocks=True,
            denoises=self._facts,
        )

    def open(self) -> TableCache:
        return TableCache()

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        """Return float64 log distributions as logits; rows are of `Rows.block` alone."""
        self.forwards.append(sum(map(len, rows)))
        out = []
        for each in rows:
            assert each.positions is not None
            each.cache.asked = list(zip(each.positions.tolist(), each.tokens, strict=True))
            found = [self._row(each, row) for row in each.wanted_rows.tolist()]
            logits: Any = np.stack(found) if found else np.zeros((0, self.symbols + 2))
            out.append(Output(logits))
        return out

    def keep(self, cache: TableCache, num_new: int, path: Sequence[int]) -> None:
        kept = (*range(num_new), *(num_new + row for row in path))
        cache.held += [cache.asked[row] for row in kept]
        cache.asked = []

    def prefill(self, cache: TableCache, tokens: Sequence[int], features: bool = False) -> None:
        cache.held += enumerate(tokens, cache.length)

    def truncate(self, cache: TableCache, length: int, hold: bool = False) -> None:
        del cache.held[length:]

    def fork(self, cache: TableCache) -> TableCache:
        return TableCache(list(cache.held))

    def release(self, cache: TableCache) -> None:
        cache.held = []

    def warm_up(self) -> None:
        # Nothing to do.
        ...

    def _row(self, block: Rows, row: int) -> ProbArray:
        cached = len(block.cache.held) if block.cached is None else int(block.cached[row])
        seen = dict(block.cache.held[:cached])
        assert block.sees is not None
        seen |= {block.cache.asked[each] for each in np.flatnonzero(block.sees[row])}
        place, token = block.cache.asked[row]
        if (self._facts.autoregressive and token != self.mask) or self._facts.shifted:
            place += 1
        known = [(at, held) for at, held in seen.items() if held != self.mask and at != place]
        with np.errstate(divide="ignore"):
            return np.log(self.conditional(place, known))

    def conditional(self, place: int, known: Sequence[tuple[int, int]]) -> ProbArray:
        """Return float64 `[symbols + 2]`: the conditional of a place, given places and tokens."""
        out = np.zeros(self.symbols + 2)
        axis = place - self.begin
        if axis >= self.joint.ndim:
            out[self.end] = 1.0
            return out
        given = {at - self.begin: token for at, token in known if at >= self.begin}
        index = tuple(
            given[each] if each in given and given[each] < self.symbols else slice(None)
            for each in range(self.joint.ndim)
        )
        rest = self.joint[index]
        free = [each for each in range(self.joint.ndim) if isinstance(index[each], slice)]
        others = tuple(i for i, each in enumerate(free) if each != axis)
        weights = rest.sum(axis=others)
        total = weights.sum()
        out[: self.symbols] = weights / total if total > 0 else 1 / self.symbols
        return out


@dataclass(eq=False)
class TableCache:
    """Places and tokens that are held, and those of the last forward."""

    held: list[tuple[int, int]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.held)


def random_joint(symbols: int, places: int, seed: int, sharpness: float = 1.5) -> ProbArray:
    """Return a joint with normal log weights of this deviation."""
    weights = np.exp(sharpness * np.random.default_rng(seed).normal(size=(symbols,) * places))
    joint: ProbArray = weights / weights.sum()
    return joint

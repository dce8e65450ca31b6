"""ViSpec: a picture as a row or few, and beside all that follows (Kang et al. 2025, 2509.15235).

Learned queries attend to a picture's rows. What all but the last find stands in the context in its
place; what the last finds goes beside every row behind it, drafted ones too, through a matrix that
starts at zero: training starts from EAGLE-3. The drafter's context does not grow with a picture.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.methods.seeing.drafter import SeeingDrafter
from paceline.methods.seeing.sight import SeeingNetwork, Stood, Weigh
from paceline.models.config import ModelConfig
from paceline.models.families.base import heads_of
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Shapes


def look_shapes(config: ModelConfig, slots: int) -> Shapes:
    """Return the parameters of `look` at so many rows, queries included."""
    width, wide = config.hidden_size, config.heads * config.head_dim
    return {
        "look.norm": (width,),
        "look.slots": (slots, width),
        "look.qkv": (wide + 2 * config.kv_heads * config.head_dim, width),
        "look.o": (width, wide),
    }


def look(ops: Ops, config: ModelConfig, rows: Rows) -> Rows:
    """Return what rows find in one another; zeros where queries stand, which are learnt."""
    x = ops.norm(rows, "look.norm") + ops.weight("look.slots")
    found = ops.attend(0, ops.linear(x, ["look.qkv"]), heads_of(config, 0), "slots")
    return ops.linear(found, ["look.o"])


class ViSpec(SeeingNetwork):
    """`queries` look at a picture; the state is the layer's, and what stands beside it."""

    name: ClassVar[str] = "vispec"

    def __init__(
        self,
        config: ModelConfig,
        *,
        steps: int = 5,
        ffn_size: int = 0,
        picture: int = 64,
        queries: int = 2,
    ) -> None:
        super().__init__(config, steps=steps, ffn_size=ffn_size, picture=picture)
        require(1 <= picture <= 4096, "picture", picture, "1 to 4096")
        require(1 <= queries <= 64, "queries", queries, "1 to 64")
        self.queries = queries

    @property
    def kept(self) -> int:
        return self.queries - 1

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        looks = look_shapes(self.config, self.queries + self.picture)
        return super().shapes() | looks | {"beside.residual": (width, 2 * width)}

    def given(self, rows: LogitArray, question: LogitArray) -> LogitArray:
        return np.pad(rows, ((self.queries, 0), (0, 0)))

    def digest(self, ops: Ops, rows: Rows) -> Rows:
        return ops.slots(look(ops, self.config, rows), 1)

    def stood(self, said: Any, weigh: Weigh) -> Stood:
        found = self._first(said, self.queries)
        return Stood(found[..., : self.kept, :], found[..., self.kept, :])

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        width = self.config.hidden_size
        out = super().start(ops, features, tokens)
        _, row, _ = ops.split(features, (4 * width, width, 1))
        return ops.concat([out, ops.last(row)])

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        x, row = self._parts(ops, state)
        return ops.concat([self._layer(ops, self.beside(ops, x, row), tokens, "draft"), row])

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return super().logits(ops, self._parts(ops, state)[0], step)

    def beside(self, ops: Ops, x: Rows, row: Rows) -> Rows:
        return ops.linear(ops.concat([x, row]), ["beside.residual"], residual=x)

    def _parts(self, ops: Ops, state: Rows) -> list[Rows]:
        return ops.split(state, (self.config.hidden_size,) * 2)


class ViSpecDrafter(SeeingDrafter):
    name: ClassVar[str] = "vispec"
    paper = "after ViSpec, Kang et al. 2025, arXiv:2509.15235"

"""What MSD, ViSpec and SpecVLM share: an EAGLE-3 layer that reads a picture's own rows.

EAGLE-3 reads of a picture what the target made of it, which a cached prefix no longer has, and the
embedding of a token that stands for its rows. Here rows of the row store stand in the context, as
they are or made fewer by `digest`; before a picture stands the first token behind it. So pictures
are there in every turn, whatever of the prompt is cached. Positions count the rows that stand.

A context row has, behind the target's features, a row of the target's width and a flag. Where the
flag is 1 that row is all that is read: fusion and embedding are off. Where it is 0, as in texts,
these are what they are in EAGLE-3, to the bit, but for what a subclass adds of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from paceline.core.types import LogitArray
from paceline.models.config import ModelConfig
from paceline.models.ops import Ops, Rows
from paceline.networks.eagle3 import Eagle3

QUESTION = 16
"""Rows before the root whose mean hidden state stands for what is asked of a picture."""

_CERTAIN = 64.0  # a sigmoid of it is 1, and of its negative below any number that is added


class Stood(NamedTuple):
    """What stands for a picture, `[..., kept, width]`, and beside later rows, `[..., width]`."""

    rows: Any
    beside: Any


# From scores `[..., choices]` to shares of the same shape.
Weigh = Callable[[Any], Any]


class SeeingNetwork(Eagle3):
    """EAGLE-3's layer that is shown pictures of `picture` rows each; 0 leaves them out."""

    def __init__(
        self, config: ModelConfig, *, steps: int = 5, ffn_size: int = 0, picture: int = 64
    ) -> None:
        super().__init__(config, steps=steps, ffn_size=ffn_size)
        self.picture = picture
        self.more = config.hidden_size + 1

    @property
    def kept(self) -> int:
        """Rows that stand for a picture in the context."""
        return self.picture

    def given(self, rows: LogitArray, question: LogitArray) -> LogitArray:
        """Return what `digest` reads, float32 `[any, width]`, of a picture and a hidden state."""
        return rows

    def digest(self, ops: Ops, rows: Rows) -> Rows:
        return ops.slots(rows, 1)

    def stood(self, said: Any, weigh: Weigh) -> Stood:
        """Return what stands for pictures, of `digest`'s `[..., numbers]`, NumPy's or torch's."""
        return Stood(self._first(said, self.kept), 0 * said[..., : self.config.hidden_size])

    def _first(self, said: Any, count: int) -> Any:
        # The first rows of what a digest says.
        width = self.config.hidden_size
        return said[..., : count * width].reshape(*said.shape[:-1], count, width)

    def arranged(self, batch: Any, texts: Sequence[Any]) -> Any:
        from paceline.methods.seeing.lessons import arranged

        return arranged(self, batch, texts, QUESTION)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        width = self.config.hidden_size
        inner, _, row, flag = ops.split(features, (3 * width, width, width, 1))
        shown, hidden = ops.times(flag, _CERTAIN), ops.times(flag, -_CERTAIN)

        def of_text(x: Rows) -> Rows:
            return ops.times(ops.gate(x, hidden), 2.0)  # half of it without a picture

        fused = ops.linear(inner * ops.weight("scale"), ["fuse"])
        picture = ops.times(ops.gate(row, shown), 2.0) + ops.times(row, -1.0)
        x = of_text(self.beside(ops, fused, row)) + picture
        embedded = of_text(ops.norm(ops.embed(tokens), "embed_norm"))
        read = ops.concat([embedded, ops.norm(x, "hidden_norm")])
        return self._decode(ops, x, read, "last")

    def beside(self, ops: Ops, x: Rows, row: Rows) -> Rows:
        """Return what a text's row reads, of what it would and the row beside it."""
        return x

"""Block drafters that others publish: DFlash (Chen et al. 2026, arXiv:2602.06036), and DSpark.

The first slot of a block has the embedding of the root, the others that of a mask. Layers run over
the block alone; what the target's states give is injected as keys and values of every layer, the
same rows for each, which pass through none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames, heads_of
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import decoder_layer, family_shapes, with_biases


@dataclass(frozen=True, slots=True)
class MaskedBlock:
    """How a block is laid out.

    Attributes:
        slots: of a block, the root's included.
        mask: id of the token that stands in the others.
        anchored: the root's slot foretells the token after it; else the slots behind it foretell
            their own tokens.
        causal: numbers of layers in which a slot sees none behind it.
        rank: of the table that a slot's logits are moved by, after the token before; 0 for none.
        gated: the hidden state gates what the table says.
    """

    slots: int
    mask: int
    anchored: bool = False
    causal: frozenset[int] = frozenset()
    rank: int = 0
    gated: bool = False


class DFlash(Network):
    """Draft a block in one pass; `ffn_size` 0 takes the target's own.

    Parameters "root" and "masks", `[slots, width]`, put root and mask in their slots. Trained here,
    every slot has a mask of its own.
    """

    name: ClassVar[str] = "dflash"

    def __init__(
        self, config: ModelConfig, *, width: int = 7, layers: int = 2, ffn_size: int = 0
    ) -> None:
        require(1 <= layers <= 64, "layers", layers, "1 to 64")
        own = replace(config, layers=layers, qk_norm=True, ffn_size=ffn_size or config.ffn_size)
        super().__init__(own, steps=1, width=width)
        self.layers, self.ffn_size = layers, own.ffn_size  # type: ignore[misc]
        self.block = MaskedBlock(width + 1, 0)

    @property
    def rows(self) -> int:
        return self.block.slots

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        slots = dict.fromkeys(("root", "masks"), (self.rows, width))
        return {"scale": (self.feature_width,), **slots, **self._body()}

    def _body(self) -> Shapes:
        width = self.config.hidden_size
        ends: Shapes = {"fc": (width, self.feature_width), "hidden_norm": (width,)}
        return ends | {"norm": (width,)} | family_shapes(self.config, width)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        fused = ops.norm(ops.linear(features * ops.weight("scale"), ["fc"]), "hidden_norm")
        layers = [(LayerNames.of(i), heads_of(self.config, i)) for i in range(self.layers)]
        for index, (names, heads) in enumerate(layers):  # of which keys and values are read alone
            ops.attend(index, ops.linear(fused, names.qkv), heads, "last")
        x = ops.last(ops.embed(tokens)) * ops.weight("root") + ops.weight("masks")
        for index, (names, _) in enumerate(layers):
            sees: Sight = "draft" if index in self.block.causal else "block"
            x = decoder_layer(ops, self.config, names, x, sees, index)
        return x if self.block.anchored else _behind(ops, x, self.config.hidden_size, self.rows)


def _behind(ops: Ops, x: Rows, width: int, slots: int) -> Rows:
    # All slots but the first.
    _, others = ops.split(ops.slots(x, 1), (width, (slots - 1) * width))
    return ops.slots(others, slots - 1)


class PublishedDFlash(DFlash):
    """One whose block, and what it reads, are its publisher's."""

    def __init__(
        self, config: ModelConfig, block: MaskedBlock, read: int, present: Collection[str]
    ) -> None:
        """Set the shape; `read` numbers are read of a row of features, `present` are tensors."""
        Network.__init__(self, config, steps=1, width=block.slots - (not block.anchored))
        self.block, self.read, self.present = block, read, present
        self.layers = config.layers  # type: ignore[misc]

    @property
    def feature_width(self) -> int:
        return self.read

    def shapes(self) -> Shapes:
        return with_biases(self._body(), self.present)

    @property
    def mask(self) -> int:
        return self.block.mask

    def constants(
        self, mask: LogitArray, read: Callable[[str], LogitArray]
    ) -> dict[str, LogitArray]:
        """Return "root" and "masks", of the embedding of a mask, float32 `[1, width]`."""
        root = np.zeros((self.rows, self.config.hidden_size), np.float32)
        root[0] = 1
        return {"root": root, "masks": (1 - root) * mask}


class DSpark(PublishedDFlash):
    """Draft as DFlash, and move the logits of each slot by the token drafted before it.

    The state is one row: what the slots say, `[slot, drafted (+ hidden, if gated)]`, the next slot
    first, and moved.
    """

    name: ClassVar[str] = "dspark"

    def __init__(
        self,
        config: ModelConfig,
        block: MaskedBlock,
        read: int,
        present: Collection[str],
        drafted: int,
    ) -> None:
        """Set the shape; `drafted` is the size of the draft vocabulary."""
        super().__init__(config, block, read, present)
        self.steps, self.width, self.drafted = self.width, 1, drafted
        self.said = drafted + config.hidden_size * block.gated  # by a slot

    def shapes(self) -> Shapes:
        rank, width = self.block.rank, self.config.hidden_size
        out = super().shapes() | {
            "markov_in": (self.config.vocab_size, rank),
            "markov_out": (self.drafted, rank),
        }
        gate: Shapes = {"markov_gate": (rank, width + rank), "markov_gate.bias": (rank,)}
        return out | (gate if self.block.gated else {})

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = ops.norm(super().start(ops, features, tokens), "norm")
        said = ops.head(hidden)
        said = ops.slots(ops.concat([said, hidden]) if self.block.gated else said, 1)
        return self._moved(ops, said, ops.last(self._table(ops, tokens)))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        logits, _ = self._first(ops, state, self.drafted)
        return ops.slots(logits, 1)  # which makes them rows of their own, for those who read them

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        done, others = self._first(ops, state, self.said)
        return self._moved(ops, ops.concat([others, done]), self._table(ops, tokens))

    def _table(self, ops: Ops, tokens: Rows) -> Rows:
        return ops.embed(tokens, table="markov_in")

    def _first(self, ops: Ops, state: Rows, count: int) -> list[Rows]:
        return ops.split(state, (count, self.steps * self.said - count))

    def _moved(self, ops: Ops, state: Rows, before: Rows) -> Rows:
        logits, others = self._first(ops, state, self.drafted)
        if self.block.gated:
            hidden, _ = ops.split(others, (self.config.hidden_size, (self.steps - 1) * self.said))
            before = ops.gate(before, ops.linear(ops.concat([hidden, before]), ["markov_gate"]))
        return ops.concat([ops.linear(before, ["markov_out"], residual=logits), others])

"""A CTC head on the rows of Whisper's encoder: the whole transcript at once, then drafts of it.

Every fourth row says a token or a blank (Graves et al. 2006). What the head says is followed as a
text that is likely to be repeated. So is the CTC head of a speech LLM's encoder (Saon et al. 2026,
arXiv:2603.11243), by a relaxed rule; here the model verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.core.types import LogitArray
from paceline.methods.gad.transcript import TranscriptDrafter
from paceline.methods.networks.ctc import collapse, with_blank
from paceline.models.config import ModelConfig
from paceline.models.families.base import add_feed_forward
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import feed_forward_shapes, layer_names


class RowsCTC(Network):
    """Say a token or a blank of each row; `width` rows are read at once."""

    name: ClassVar[str] = "gad-ctc"
    trained_by: ClassVar[str] = "paceline train gad"

    def __init__(self, config: ModelConfig, *, width: int = 64, ffn_size: int = 0) -> None:
        super().__init__(config, steps=1, width=width)
        self.ffn_size = ffn_size or config.ffn_size
        self.overlap = width - 1

    @property
    def feature_width(self) -> int:
        return 2 * self.config.kv_heads * self.config.head_dim

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        return {
            "scale": (self.feature_width,),
            "fuse": (width, self.feature_width),
            **feed_forward_shapes("rows", self.config, self.ffn_size),
            "norm": (width,),
            "blank": (1, width),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self.read(ops, ops.last(features * ops.weight("scale"), self.width))

    def read(self, ops: Ops, rows: Rows) -> Rows:
        """Return the states of scaled rows, each for itself."""
        return add_feed_forward(ops, layer_names("rows"), ops.linear(rows, ["fuse"]))

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return with_blank(ops, state)


class GadCTCDrafter(TranscriptDrafter):
    name: ClassVar[str] = "gad-ctc"
    requires = "a Whisper; weights for it (paceline train gad)"
    paper = "after CTC drafts, Saon et al. 2026, arXiv:2603.11243"

    def transcript(self, rows: LogitArray, cache: Any = None) -> Sequence[int]:
        slots = self.said(rows)
        return [slots[at] for at in collapse(slots, -1)]

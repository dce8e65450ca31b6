"""A CTC head on the rows of Whisper's encoder: the whole transcript at once, then drafts of it.

Every fourth row says a token or a blank (Graves et al. 2006). Rows are read as the keys and values
that the decoder's last layer looks at, linear functions of them that are there in any case. What
the head says is followed as a text that is likely to be repeated. So is the CTC head of a speech
LLM's encoder (Saon et al. 2026, arXiv:2603.11243), by a relaxed rule; here the model verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self, cast

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Listens
from paceline.core.types import Budget, LogitArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.network.weights import weights_of
from paceline.engine.client_drafts import Follower
from paceline.errors import InvalidOption
from paceline.methods.gad.block import hearing
from paceline.methods.networks.ctc import collapse, with_blank
from paceline.models.config import ModelConfig
from paceline.models.families.base import add_feed_forward
from paceline.models.ops import Ops, Rows
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import feed_forward_shapes, layer_names
from paceline.networks.runner import ContextUpdate, NetworkTarget, Runner
from paceline.sampling.generation import Generation

EVERY = 4
"""Of the encoder's rows, which stand for 20 ms each, one in so many is read."""


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


def rows_of_sound(target: Listens, cache: object) -> LogitArray:
    """Return what the network reads of a text's sound, float32 `[rows, feature_width]`."""
    found = target.heard(cache, -1, EVERY)
    return found.reshape(len(found), -1)


class GadCTCDrafter(Drafter):
    """Draft what a transcript of the sound says next, which is written when a text begins."""

    name: ClassVar[str] = "gad-ctc"
    requires = "a Whisper; weights for it (paceline train gad)"
    paper = "after CTC drafts, Saon et al. 2026, arXiv:2603.11243"

    def __init__(self, target: Listens, runner: Runner) -> None:
        self._target, self._runner = target, runner
        self._followers: dict[int, Follower] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the weights of option `weights`, or those that ship; errors: `weights_of`."""
        target = hearing(context, cls.name)
        options = dict(context.options)
        given = options.pop("weights", None)
        if options:
            raise InvalidOption(f"drafter '{cls.name}' has no option {min(options)!r}: use weights")
        trained = weights_of(cls.name, given, context.model, context.target)
        return cls(target, cast(NetworkTarget, target).run_network(trained))

    @property
    def tolerates_gaps(self) -> bool:
        return True

    def open(self, sequence: Generation) -> None:
        rows = rows_of_sound(self._target, sequence.cache)
        self._followers[sequence.id] = Follower(self.transcript(rows))

    def transcript(self, rows: LogitArray) -> Sequence[int]:
        """Return the tokens that rows of a sound say."""
        whole = ContextUpdate(None, rows, [0] * len(rows))
        parts = [
            replace(each, cache=self._runner.open()) for each in whole.parts(self._runner.depth)
        ]
        said = self._runner.draft(parts, self._runner.depth)
        for each in parts:
            self._runner.release(each.cache)
        slots = [token for chain in said for token in chain.tokens]
        return [slots[at] for at in collapse(slots, -1)]

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        follower = self._followers[sequence.id]
        follower.read(sequence.tokens, sequence.prompt_length)
        chances = follower.reach()[: min(budget.nodes, budget.depth)]
        tokens = follower.next(len(chances))
        return trees.chain(tokens, self.name, scores=np.array(chances))

    def close(self, sequence: Generation) -> None:
        self._followers.pop(sequence.id, None)

"""Hidden transfer: pseudo hidden states of the tokens to come (Wu et al. 2024, arXiv:2404.12022).

Linear maps make, of the hidden states behind the newest token, a pseudo hidden state for each of
the positions that follow, as they would enter a layer high up in the target. These states run
through the layers of the target that are left, frozen, where they attend to the text and to one
another causally, and the target's LM head makes tokens of all of them at once. Only the maps, what
they read and a last norm are trained.

What differs from the paper. There the pseudo states join the very forward that verifies, behind
every node of the draft. Here they run behind the accepted node alone, in a pass of the drafter's
own: features hold all that enters the high layer, so that the last layers can be run again over
each new row of the text, with keys and values of the drafter's own that equal the target's. That
costs a tenth of a target of thirty layers, and leaves the target's graph and its bits as they are.
(Prompt tokens, `drafters.ppd`, do join the target's forward; but they enter below its first layer,
and a pseudo state would have to enter between two, made of another row of the same forward.) There
each token ahead has a layer of its own to start at; here all start at one, the lowest that few
layers follow. There a map reads the hidden state at that layer; here it also reads those of two
lower layers, the last one, and the embedding of the root, which is known by then.
"""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.models.config import feature_layers
from paceline.networks.base import Geometry, Network, Shapes
from paceline.networks.blocks import Attend
from paceline.networks.llama_layers import stack
from paceline.networks.ops import Ops, Rows
from paceline.options import require


class HiddenTransfer(Network):
    """Drafts `width` tokens in one pass of the target's last layers."""

    name: ClassVar[str] = "hidden-transfer"

    def __init__(self, geometry: Geometry, *, width: int = 4) -> None:
        """Size the network.

        Args:
            geometry: of the target, with the number of its layers.
            width: pseudo states, each of which says a token.

        Raises:
            InvalidOption: a size is out of range, or the number of layers is not known.
        """
        super().__init__(geometry, steps=1, width=width)
        count = geometry.target_layers
        require(count >= 1, "target_layers of a geometry", count, "1 or more for hidden transfer")
        self.above = count - feature_layers(count)[-1]
        self.layers = self.above  # type: ignore[misc]

    def settings(self) -> dict[str, Any]:
        """Number of pseudo states."""
        return {"width": self.width}

    def shapes(self) -> Shapes:
        """What the maps read, the maps side by side, which start as zero so that every pseudo state
        starts as a copy of the newest hidden state, and the last norm."""
        width = self.geometry.width
        return {
            "scale": (3 * width,),
            "state_norm": (width,),
            "embed_norm": (width,),
            "fuse": (width, 5 * width),
            "transfer.residual": (self.width * width, width),
            "high_spread": (width,),
            "norm": (width,),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        """The last layers over the text, then over the pseudo states behind each row of it."""
        width = self.geometry.width
        inner, _ = ops.split(features, (3 * width, width))
        high = ops.split(inner, (width, width, width))[2]
        # Through `x`, pseudo states hang on the text's rows in every layer, which are in the caches
        # then, whatever order a runtime computes in.
        x = self.last_layers(ops, high, ops.attend_context)
        embedded = ops.norm(ops.embed(tokens), "embed_norm")
        read = ops.concat([inner * ops.weight("scale"), ops.norm(x, "state_norm"), embedded])
        moved = ops.linear(ops.linear(ops.last(read), "fuse"), "transfer.residual")
        pseudo = ops.last(high) + ops.slots(moved, self.width) * ops.weight("high_spread")
        return self.last_layers(ops, pseudo, ops.attend_draft)

    def last_layers(self, ops: Ops, x: Rows, attend: Attend) -> Rows:
        """What leaves the target's last layer, before its norm, for what enters the high one."""
        shape = self.geometry
        return stack(ops, "target", shape, self.layers, shape.ffn_size, x, attend)

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        """By the target's LM head, after a norm."""
        return ops.head(ops.norm(state, "norm"))

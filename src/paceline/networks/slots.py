"""Parallel slots decoded in one pass, shared by the CTC and block-parallel drafters."""

from __future__ import annotations

from paceline.networks.base import Geometry, Shapes
from paceline.networks.blocks import Attend, decoder_layer, layer_shapes
from paceline.networks.ops import Ops, Rows


def slot_shapes(geometry: Geometry, slots: int, ffn_size: int) -> Shapes:
    """Return the parameters of `slots_behind`, and of the norm before the LM head."""
    width = geometry.width
    return {
        "scale": (4 * width,),
        "fuse": (width, 4 * width),
        "fuse_norm": (width,),
        "embed_norm": (width,),
        **layer_shapes("prefix", geometry, 2 * width, ffn_size),
        "slots": (slots, width),
        "slots_norm": (width,),
        **layer_shapes("block", geometry, width, ffn_size),
        "norm": (width,),
    }


def slots_behind(
    ops: Ops, geometry: Geometry, ffn_size: int, features: Rows, tokens: Rows, attend: Attend
) -> Rows:
    """Encode the context and decode the slots after each context row, `[..., slots, width]`.

    `attend` is the attention of slots: `ops.attend_draft` or `among_slots(ops)`.
    """
    fused = ops.linear(features * ops.weight("scale"), "fuse")
    embedded = ops.norm(ops.embed(tokens), "embed_norm")
    read = ops.concat([embedded, ops.norm(fused, "fuse_norm")])
    x = decoder_layer(ops, "prefix", geometry, ffn_size, fused, read, ops.attend_context)
    x = ops.last(x) + ops.weight("slots")
    return decoder_layer(ops, "block", geometry, ffn_size, x, ops.norm(x, "slots_norm"), attend)

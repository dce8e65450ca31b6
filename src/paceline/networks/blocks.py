"""Attention and feed-forward blocks shared by drafter networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from paceline.networks.base import Geometry, Shapes
from paceline.networks.ops import Ops, Rows

Attend: TypeAlias = Callable[[int, Rows, Rows, Rows], Rows]


def layer_shapes(name: str, geometry: Geometry, inputs: int, ffn_size: int) -> Shapes:
    """Return the parameters of `decoder_layer`; `inputs` is the width that attention reads."""
    return {
        **attention_shapes(name, geometry, inputs),
        **feed_forward_shapes(name, geometry, ffn_size),
    }


def attention_shapes(name: str, geometry: Geometry, inputs: int) -> Shapes:
    """Return the parameters of `attention`, which reads rows of width `inputs`."""
    wide, narrow = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    return {
        f"{name}.qkv": (wide + 2 * narrow, inputs),
        f"{name}.o.residual": (geometry.width, wide),
    }


def feed_forward_shapes(name: str, geometry: Geometry, ffn_size: int) -> Shapes:
    """Return the parameters of `feed_forward`."""
    return {
        f"{name}.ffn_norm": (geometry.width,),
        f"{name}.gate_up": (2 * ffn_size, geometry.width),
        f"{name}.down.residual": (geometry.width, ffn_size),
    }


def decoder_layer(
    ops: Ops,
    name: str,
    geometry: Geometry,
    ffn_size: int,
    x: Rows,
    read: Rows,
    attend: Attend,
    layer: int = 0,
) -> Rows:
    """Apply attention and a SwiGLU feed-forward block, each with a residual.

    `x` is the residual stream; `read`, `[..., inputs]`, is the attention input, already normed;
    `layer` is the index of the KV cache.
    """
    x = attention(ops, name, geometry, x, read, attend, layer)
    return feed_forward(ops, name, ffn_size, x)


def attention(
    ops: Ops, name: str, geometry: Geometry, x: Rows, read: Rows, attend: Attend, layer: int = 0
) -> Rows:
    """Apply attention with a residual; arguments as in `decoder_layer`."""
    wide, narrow = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    queries, keys, values = ops.split(ops.linear(read, f"{name}.qkv"), (wide, narrow, narrow))
    return x + ops.linear(attend(layer, queries, keys, values), f"{name}.o.residual")


def feed_forward(ops: Ops, name: str, ffn_size: int, x: Rows) -> Rows:
    """Apply a SwiGLU feed-forward block with a residual; arguments as in `decoder_layer`."""
    both = ops.linear(ops.norm(x, f"{name}.ffn_norm"), f"{name}.gate_up")
    gate, up = ops.split(both, (ffn_size, ffn_size))
    return x + ops.linear(ops.silu(gate) * up, f"{name}.down.residual")


def among_slots(ops: Ops) -> Attend:
    """Return attention among slots alone, without a cache, for `decoder_layer`."""

    def attend(layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        return ops.attend_slots(queries, keys, values)

    return attend


def last_hidden(ops: Ops, geometry: Geometry, features: Rows) -> Rows:
    """Return the target's last hidden states, `[..., width]`, from features."""
    return ops.split(features, (3 * geometry.width, geometry.width))[1]


# Stack of Llama decoder layers, as `models.families` has them.


def stack_shapes(name: str, geometry: Geometry, count: int, ffn_size: int) -> Shapes:
    """Return the parameters of `stack`: `count` layers, named `name.0`, `name.1` and so on."""
    out: Shapes = {}
    for layer in range(count):
        out[f"{name}.{layer}.norm"] = (geometry.width,)
        out |= layer_shapes(f"{name}.{layer}", geometry, geometry.width, ffn_size)
    return out


def stack(
    ops: Ops, name: str, geometry: Geometry, count: int, ffn_size: int, x: Rows, attend: Attend
) -> Rows:
    """Apply the layers to the residual stream `x`, `[..., width]`, with the first KV caches."""
    for layer in range(count):
        each = f"{name}.{layer}"
        read = ops.norm(x, f"{each}.norm")
        x = decoder_layer(ops, each, geometry, ffn_size, x, read, attend, layer)
    return x


# Parallel slots decoded in one pass, shared by the CTC and block-parallel drafters.


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

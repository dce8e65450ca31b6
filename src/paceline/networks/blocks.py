"""Attention and feed-forward blocks shared by drafter networks."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.models.families.base import LayerNames, add_attention, add_feed_forward
from paceline.models.ops import Heads, Ops, Rows, Sight
from paceline.networks.base import Geometry, Shapes


def layer_shapes(name: str, geometry: Geometry, inputs: int, ffn_size: int) -> Shapes:
    """Return the parameters of `decoder_layer`; `inputs` is the width that attention reads."""
    return {
        **attention_shapes(name, geometry, inputs),
        **feed_forward_shapes(name, geometry, ffn_size),
    }


def attention_shapes(name: str, geometry: Geometry, inputs: int) -> Shapes:
    """Return the parameters of attention, which reads rows of width `inputs`."""
    wide, narrow = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
    return {
        f"{name}.qkv": (wide + 2 * narrow, inputs),
        f"{name}.o.residual": (geometry.width, wide),
    }


def feed_forward_shapes(name: str, geometry: Geometry, ffn_size: int) -> Shapes:
    """Return the parameters of `add_feed_forward`."""
    return {
        f"{name}.ffn_norm": (geometry.width,),
        f"{name}.gate_up": (2 * ffn_size, geometry.width),
        f"{name}.down.residual": (geometry.width, ffn_size),
    }


def layer_names(name: str, norm: str | None = None) -> LayerNames:
    """Return the names of `layer_shapes`; `norm` is that of what attention reads."""
    return LayerNames(
        norm,
        [f"{name}.qkv"],
        f"{name}.o.residual",
        f"{name}.ffn_norm",
        [f"{name}.gate_up"],
        f"{name}.down.residual",
    )


def decoder_layer(
    ops: Ops,
    names: LayerNames,
    heads: Heads,
    x: Rows,
    sees: Sight,
    layer: int = 0,
    *,
    read: Rows | None = None,
) -> Rows:
    """Apply a layer of Llama; arguments as in `add_attention`."""
    return add_feed_forward(ops, names, add_attention(ops, names, heads, x, sees, layer, read=read))


def before(sees: Sight) -> Sight:
    """Return what a layer sees whose results go on to one that sees `sees`."""
    return "context" if sees == "last" else sees


def last_hidden(ops: Ops, geometry: Geometry, features: Rows) -> Rows:
    """Return the target's last hidden states, `[..., width]`, from features."""
    return ops.split(features, (3 * geometry.width, geometry.width))[1]


def stack_shapes(name: str, geometry: Geometry, count: int, ffn_size: int) -> Shapes:
    """Return the parameters of `count` layers, named `name.0`, `name.1` and so on."""
    out: Shapes = {}
    for layer in range(count):
        out[f"{name}.{layer}.norm"] = (geometry.width,)
        out |= layer_shapes(f"{name}.{layer}", geometry, geometry.width, ffn_size)
    return out


def stack_names(name: str, count: int) -> list[LayerNames]:
    """Return the names of `stack_shapes`, layer by layer."""
    return [layer_names(f"{name}.{layer}", f"{name}.{layer}.norm") for layer in range(count)]


def stack(ops: Ops, names: Sequence[LayerNames], heads: Heads, x: Rows, sees: Sight) -> Rows:
    """Apply layers to the residual stream `x`, `[..., width]`, with the first KV caches."""
    for layer, each in enumerate(names):
        here = sees if layer + 1 == len(names) else before(sees)
        x = decoder_layer(ops, each, heads, x, here, layer)
    return x


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


def slots_behind(ops: Ops, heads: Heads, features: Rows, tokens: Rows, sees: Sight) -> Rows:
    """Encode the context and decode the slots after each context row, `[..., slots, width]`."""
    fused = ops.linear(features * ops.weight("scale"), ["fuse"])
    embedded = ops.norm(ops.embed(tokens), "embed_norm")
    read = ops.concat([embedded, ops.norm(fused, "fuse_norm")])
    x = decoder_layer(ops, layer_names("prefix"), heads, fused, "last", read=read) + ops.weight(
        "slots"
    )
    return decoder_layer(ops, layer_names("block", "slots_norm"), heads, x, sees)

"""Attention and feed-forward blocks shared by drafter networks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.core.options import require
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.families.base import LayerNames, add_attention, add_feed_forward
from paceline.models.ops import Ops, Rows, Sight
from paceline.networks.base import Shapes


def layer_shapes(name: str, config: ModelConfig, inputs: int, ffn_size: int) -> Shapes:
    """Return the parameters of `decoder_layer`; `inputs` is the width that attention reads."""
    return {
        **attention_shapes(name, config, inputs),
        **feed_forward_shapes(name, config, ffn_size),
    }


def attention_shapes(name: str, config: ModelConfig, inputs: int) -> Shapes:
    """Return the parameters of attention, which reads rows of width `inputs`."""
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        f"{name}.qkv": (wide + 2 * narrow, inputs),
        f"{name}.o.residual": (config.hidden_size, wide),
    }


def feed_forward_shapes(name: str, config: ModelConfig, ffn_size: int) -> Shapes:
    """Return the parameters of `add_feed_forward`."""
    return {
        f"{name}.ffn_norm": (config.hidden_size,),
        f"{name}.gate_up": (2 * ffn_size, config.hidden_size),
        f"{name}.down.residual": (config.hidden_size, ffn_size),
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


def family_shapes(config: ModelConfig, first: int) -> Shapes:
    """Return the parameters of layers with families' names, of which the first reads `first`."""
    out: Shapes = {}
    width = config.hidden_size
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for index in range(config.layers):
        name, inputs = f"layers.{index}", width if index else first
        out |= {f"{name}.q": (wide, inputs), f"{name}.o": (width, wide)}
        out |= {f"{name}.{part}": (narrow, inputs) for part in "kv"}
        out |= {f"{name}.{part}": (config.ffn_size, width) for part in ("gate", "up")}
        out[f"{name}.down"] = (width, config.ffn_size)
        out |= {f"{name}.{part}": (width,) for part in ("attention_norm", "ffn_norm")}
        if config.qk_norm:
            out |= {f"{name}.{part}_norm": (config.head_dim,) for part in "qk"}
    return out


def with_biases(shapes: Shapes, present: Collection[str]) -> Shapes:
    """Return parameters and those of their biases that are `present`."""
    biased = [each for each in shapes if f"{each}.bias" in present]
    return shapes | {f"{each}.bias": shapes[each][:1] for each in biased}


def decoder_layer(
    ops: Ops,
    config: ModelConfig,
    names: LayerNames,
    x: Rows,
    sees: Sight,
    layer: int = 0,
    *,
    read: Rows | None = None,
) -> Rows:
    """Apply a layer of Llama; arguments as in `add_attention`."""
    return add_feed_forward(
        ops, names, add_attention(ops, config, names, x, sees, layer, read=read)
    )


def before(sees: Sight) -> Sight:
    """Return what a layer sees whose results go on to one that sees `sees`."""
    return "context" if sees == "last" else sees


def last_hidden(ops: Ops, config: ModelConfig, features: Rows) -> Rows:
    """Return the target's last hidden states, `[..., width]`, from features."""
    return ops.split(features, (3 * config.hidden_size, config.hidden_size))[1]


def layers_above(config: ModelConfig, use: str) -> int:
    """Return how many of the target's layers the high features enter; `use` names who runs them.

    Raises InvalidOption if the number of layers is unknown.
    """
    count = config.layers
    require(count >= 1, "target_layers of a geometry", count, f"1 or more for {use}")
    return count - feature_layers(count)[-1]


def stack_shapes(name: str, config: ModelConfig, count: int, ffn_size: int) -> Shapes:
    """Return the parameters of `count` layers, named `name.0`, `name.1` and so on."""
    out: Shapes = {}
    for layer in range(count):
        out[f"{name}.{layer}.norm"] = (config.hidden_size,)
        out |= layer_shapes(f"{name}.{layer}", config, config.hidden_size, ffn_size)
    return out


def stack_names(name: str, count: int) -> list[LayerNames]:
    """Return the names of `stack_shapes`, layer by layer."""
    return [layer_names(f"{name}.{layer}", f"{name}.{layer}.norm") for layer in range(count)]


def stack(ops: Ops, config: ModelConfig, names: Sequence[LayerNames], x: Rows, sees: Sight) -> Rows:
    """Apply layers to the residual stream `x`, `[..., width]`, with the first KV caches."""
    for layer, each in enumerate(names):
        here = sees if layer + 1 == len(names) else before(sees)
        x = decoder_layer(ops, config, each, x, here, layer)
    return x


def opened_shapes(config: ModelConfig, slots: int, ffn_size: int) -> Shapes:
    """Return the parameters of `opened_slots`."""
    width = config.hidden_size
    return {
        "scale": (4 * width,),
        "fuse": (width, 4 * width),
        "fuse_norm": (width,),
        "embed_norm": (width,),
        **layer_shapes("prefix", config, 2 * width, ffn_size),
        "slots": (slots, width),
    }


def opened_slots(ops: Ops, config: ModelConfig, features: Rows, tokens: Rows) -> Rows:
    """Encode the context and return the slots after each row of it, `[..., slots, width]`."""
    fused = ops.linear(features * ops.weight("scale"), ["fuse"])
    embedded = ops.norm(ops.embed(tokens), "embed_norm")
    read = ops.concat([embedded, ops.norm(fused, "fuse_norm")])
    prefix = layer_names("prefix")
    return decoder_layer(ops, config, prefix, fused, "last", read=read) + ops.weight("slots")


def slot_shapes(config: ModelConfig, slots: int, ffn_size: int) -> Shapes:
    """Return the parameters of `slots_behind`, and of the norm before the LM head."""
    return {
        **opened_shapes(config, slots, ffn_size),
        "slots_norm": (config.hidden_size,),
        **layer_shapes("block", config, config.hidden_size, ffn_size),
        "norm": (config.hidden_size,),
    }


def slots_behind(ops: Ops, config: ModelConfig, features: Rows, tokens: Rows, sees: Sight) -> Rows:
    """Encode the context and decode the slots after each context row, `[..., slots, width]`."""
    x = opened_slots(ops, config, features, tokens)
    return decoder_layer(ops, config, layer_names("block", "slots_norm"), x, sees)

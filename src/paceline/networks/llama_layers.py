"""Stack of Llama decoder layers, as `models.llama` computes them."""

from __future__ import annotations

from paceline.networks.base import Geometry, Shapes
from paceline.networks.blocks import Attend, decoder_layer, layer_shapes
from paceline.networks.ops import Ops, Rows


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

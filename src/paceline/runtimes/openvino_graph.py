"""The Llama-family network as an OpenVINO graph over a ragged batch of rows.

Rows are independent everywhere but in attention, which is handed in: it takes the rows' queries,
keys and values and gives what they attended to (`openvino_paths`, `openvino_plugin`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from paceline.models.config import ModelConfig, feature_layers
from paceline.runtimes.openvino_nodes import (
    Inputs,
    Tensors,
    embed,
    gather,
    ints,
    linear,
    rms_norm,
    split,
)

Attend = Callable[[Any, int], Any]
"""From `[rows, 1, (heads + 2 * kv_heads) * head_dim]`, queries, keys and values side by side, and
the number of the layer, to `[rows, 1, heads * head_dim]`."""


class _Builder:
    """What the network's layers have in common."""

    def __init__(self, config: ModelConfig, tensors: Tensors, attend: Attend) -> None:
        self.config = config
        self.tensors = tensors
        self.attend = attend

    def linear(self, x: Any, name: str) -> Any:
        out = linear(x, self.tensors, name)
        out.set_friendly_name(name)  # by which a profile knows it
        return out

    def norm(self, x: Any, name: str) -> Any:
        return rms_norm(x, self.tensors[name].reshape(1, 1, -1), self.config.norm_eps)

    def attention(self, x: Any, layer: int) -> Any:
        qkv = self.linear(x, f"layers.{layer}.qkv")
        return self.linear(self.attend(qkv, layer), f"layers.{layer}.o")

    def feed_forward(self, x: Any, layer: int) -> Any:
        width = self.config.ffn_size
        gate, up = split(self.linear(x, f"layers.{layer}.gate_up"), (width, width))
        return self.linear(op.multiply(op.swish(gate), up), f"layers.{layer}.down")


def build(
    config: ModelConfig, tensors: Tensors, make_attend: Callable[[Inputs], Attend]
) -> ov.Model:
    """The graph of a model.

    Inputs beside those of attention, int32: `input_ids [rows]`, `logit_rows [n]` (rows whose logits
    are wanted), `feature_rows [m]` (those whose features are).

    Outputs, float32: `logits [n, vocabulary]`, `hidden [n, hidden_size]`, `features [m, 4 *
    hidden_size]` (`target.Output.features`).

    Args:
        config: of the model.
        tensors: its weights, see `openvino_weights.prepare`.
        make_attend: makes attention, and adds the inputs that it needs.
    """
    inputs = Inputs()
    net = _Builder(config, tensors, make_attend(inputs))
    x = embed(op.unsqueeze(inputs.add("input_ids", np.int32, [-1]), ints(1)), tensors)
    picked = inputs.add("feature_rows", np.int32, [-1])
    streams = {}
    for layer in range(config.layers):
        if layer in feature_layers(config.layers):
            streams[layer] = gather(x, picked)
        x = op.add(x, net.attention(net.norm(x, f"layers.{layer}.attention_norm"), layer))
        x = op.add(x, net.feed_forward(net.norm(x, f"layers.{layer}.ffn_norm"), layer))
    wanted = gather(x, inputs.add("logit_rows", np.int32, [-1]))
    hidden = net.norm(wanted, "norm")
    head = "embed" if "lm_head.weight" not in tensors else "lm_head"
    logits = op.reshape(net.linear(hidden, head), ints(-1, config.vocab_size), False)
    hidden = op.reshape(hidden, ints(-1, config.hidden_size), False)
    parts = [streams[layer] for layer in feature_layers(config.layers)]
    parts.append(net.norm(gather(x, picked), "norm"))
    features = op.reshape(op.concat(parts, -1), ints(-1, 4 * config.hidden_size), False)
    outputs = {"logits": logits, "hidden": hidden, "features": features}
    for name, node in outputs.items():
        node.output(0).get_tensor().set_names({name})
    return ov.Model([*map(op.result, outputs.values())], inputs.parameters, "paceline")

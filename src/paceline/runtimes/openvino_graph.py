"""The Llama-family network as an OpenVINO graph over a ragged batch of rows.

Rows are independent everywhere but in attention, which is handed in: it takes the rows' queries,
keys and values and gives what they attended to (`openvino_plugin`).
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


def build(
    config: ModelConfig,
    tensors: Tensors,
    make_attend: Callable[[Inputs], Attend],
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
    attend = make_attend(inputs)

    def norm(x: Any, name: str) -> Any:
        return rms_norm(x, tensors[name].reshape(1, 1, -1), config.norm_eps)

    def product(x: Any, name: str) -> Any:
        out = linear(x, tensors, name)
        out.set_friendly_name(name)  # by which a profile knows it
        return out

    x = embed(op.unsqueeze(inputs.add("input_ids", np.int32, [-1]), ints(1)), tensors)
    picked = inputs.add("feature_rows", np.int32, [-1])
    streams = {}
    for layer in range(config.layers):
        if layer in feature_layers(config.layers):
            streams[layer] = gather(x, picked)
        name = f"layers.{layer}"
        attended = attend(product(norm(x, f"{name}.attention_norm"), f"{name}.qkv"), layer)
        x = op.add(x, product(attended, f"{name}.o"))
        both = product(norm(x, f"{name}.ffn_norm"), f"{name}.gate_up")
        gate, up = split(both, (config.ffn_size, config.ffn_size))
        x = op.add(x, product(op.multiply(op.swish(gate), up), f"{name}.down"))
    wanted = gather(x, inputs.add("logit_rows", np.int32, [-1]))
    hidden = norm(wanted, "norm")
    head = "lm_head" if "lm_head.weight" in tensors else "embed"
    logits = op.reshape(product(hidden, head), ints(-1, config.vocab_size), False)
    hidden = op.reshape(hidden, ints(-1, config.hidden_size), False)
    parts = [streams[layer] for layer in feature_layers(config.layers)]
    parts.append(norm(gather(x, picked), "norm"))
    features = op.reshape(op.concat(parts, -1), ints(-1, 4 * config.hidden_size), False)
    outputs = {"logits": logits, "hidden": hidden, "features": features}
    for name, node in outputs.items():
        node.output(0).get_tensor().set_names({name})
    return ov.Model([*map(op.result, outputs.values())], inputs.parameters, "paceline")

"""The Llama-family network as an OpenVINO graph over a ragged batch of rows.

Rows are independent everywhere but in attention, so the graph runs projections, norms and
feed-forward layers over *dense rows* (each committed or drafted token once) and attention over
*attention rows*: two gathers per layer spread dense rows over every root-to-leaf path that holds
them and collect one result per dense row. A branch then sees its keys without gaps, in the same
order and grouping as plain decoding would, and its logits are the same numbers, while only the
attention (about a seventh of a step) is computed more than once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from paceline.models.config import ModelConfig, feature_layers, inverse_frequencies
from paceline.runtimes.openvino_batch import Shape
from paceline.runtimes.openvino_nodes import (
    Inputs,
    Paging,
    Rotation,
    embed,
    gather,
    ints,
    linear,
    paged_attention,
    rms_norm,
    split,
)
from paceline.runtimes.paged_cache import BLOCK
from paceline.types import LogitArray

Tensors = dict[str, np.ndarray]
"""Prepared weights, see `openvino_weights.prepare`."""


class _Builder:
    """The network's inputs, and what its layers have in common."""

    def __init__(self, config: ModelConfig, tensors: Tensors, direct: bool) -> None:
        self.direct = direct
        self.config = config
        self.tensors = tensors
        self.inputs = add = Inputs()
        self.paging = Paging(
            add.add("past_lens", np.int32, [-1]),
            add.add("subsequence_begins", np.int32, [-1]),
            add.add("block_indices", np.int32, [-1]),
            add.add("block_indices_begins", np.int32, [-1]),
            add.add("max_context_len", np.int32, []),
            add.add("qq_bias", np.uint8, [-1]),
            add.add("qq_bias_begins", np.int32, [-1]),
        )
        self.attention_rows = add.add("attention_rows", np.int32, [-1])
        self.dense_rows = add.add("dense_rows", np.int32, [-1])
        positions = self.spread(add.add("positions", np.int32, [-1]))
        self.rotate = Rotation(inverse_frequencies(config), config.max_context, positions)

    def spread(self, rows: Any) -> Any:
        """Attention rows of dense rows."""
        return rows if self.direct else gather(rows, self.attention_rows)

    def collect(self, rows: Any) -> Any:
        """Dense rows of attention rows."""
        return rows if self.direct else gather(rows, self.dense_rows)

    def linear(self, x: Any, name: str) -> Any:
        out = linear(x, self.tensors, name)
        out.set_friendly_name(name)  # by which a profile knows it
        return out

    def norm(self, x: Any, name: str) -> Any:
        return rms_norm(x, self.tensors[name].reshape(1, 1, -1), self.config.norm_eps)

    def heads(self, x: Any, count: int, norm: LogitArray | None) -> Any:
        """Split into heads, norm them if the family does, rotate, and flatten again."""
        x = op.reshape(x, ints(-1, count, 1, self.config.head_dim), False)
        if norm is not None:
            x = rms_norm(x, norm.reshape(1, 1, 1, -1), self.config.norm_eps)
        return op.reshape(self.rotate(x), ints(-1, count * self.config.head_dim), False)

    def attention(self, x: Any, layer: int) -> Any:
        c = self.config
        name = f"layers.{layer}"
        qkv = self.spread(self.linear(x, f"{name}.qkv"))
        widths = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        queries, keys, values = split(qkv, widths)
        query = self.heads(queries, c.heads, self.tensors.get(f"{name}.q_norm"))
        key = self.heads(keys, c.kv_heads, self.tensors.get(f"{name}.k_norm"))
        value = op.reshape(values, ints(-1, widths[2]), False)
        shape = [-1, c.kv_heads, BLOCK, c.head_dim]
        caches = [
            self.inputs.add(f"{kind}_cache.{layer}", np.float32, shape) for kind in ("key", "value")
        ]
        attended = paged_attention(
            [query, key, value, *caches], self.paging, c.heads, c.kv_heads, c.head_dim
        )
        collected = self.collect(attended)
        return self.linear(op.reshape(collected, ints(-1, 1, widths[0]), False), f"{name}.o")

    def feed_forward(self, x: Any, layer: int) -> Any:
        width = self.config.ffn_size
        gate, up = split(self.linear(x, f"layers.{layer}.gate_up"), (width, width))
        return self.linear(op.multiply(op.swish(gate), up), f"layers.{layer}.down")


def build(config: ModelConfig, tensors: Tensors, direct: bool = False) -> ov.Model:
    """The graph of a model; if `direct`, attention rows are the dense rows: nothing is gathered.

    Inputs beside the KV caches (int32 unless noted): `input_ids [dense]`, `positions [dense]`,
    `attention_rows [attention]` (the dense row that each attention row repeats), `dense_rows
    [dense]` (an attention row that computes each dense row), `logit_rows [n]` (dense rows whose
    logits are wanted), `feature_rows [m]` (those whose features are), `past_lens [s]`,
    `subsequence_begins [s + 1]`, `block_indices`, `block_indices_begins [s + 1]`,
    `max_context_len []`, `qq_bias` uint8 (flattened 0/1 mask per subsequence, or empty) and
    `qq_bias_begins [s + 1]`.

    Outputs, float32: `logits [n, vocabulary]`, `hidden [n, hidden_size]`, `features [m, 4 *
    hidden_size]` (`target.Output.features`).
    """
    net = _Builder(config, tensors, direct)
    x = embed(op.unsqueeze(net.inputs.add("input_ids", np.int32, [-1]), ints(1)), tensors)
    picked = net.inputs.add("feature_rows", np.int32, [-1])
    streams = {}
    for layer in range(config.layers):
        if layer in feature_layers(config.layers):
            streams[layer] = gather(x, picked)
        x = op.add(x, net.attention(net.norm(x, f"layers.{layer}.attention_norm"), layer))
        x = op.add(x, net.feed_forward(net.norm(x, f"layers.{layer}.ffn_norm"), layer))
    wanted = gather(x, net.inputs.add("logit_rows", np.int32, [-1]))
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
    return ov.Model([*map(op.result, outputs.values())], net.inputs.parameters, "paceline")


def fix_rows(graph: ov.Model, shape: Shape) -> ov.Model:
    """A copy of `graph` for exactly so many dense and attention rows."""
    fixed = graph.clone()
    shapes = {port.get_any_name(): port.get_partial_shape() for port in fixed.inputs}
    for name in ("input_ids", "positions", "dense_rows"):
        shapes[name] = ov.PartialShape([shape.dense])
    shapes["attention_rows"] = ov.PartialShape([shape.attention])
    fixed.reshape(shapes)
    return fixed

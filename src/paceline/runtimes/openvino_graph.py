"""The Llama-family network as an OpenVINO graph over a ragged batch of rows.

Rows are independent everywhere but in attention, so the graph runs projections, norms and
feed-forward layers over *dense rows* (each committed or drafted token once) and attention over
*attention rows*: two gathers per layer spread dense rows over every root-to-leaf path that holds
them and collect one result per dense row. A branch then sees its keys without gaps, in the same
order and grouping as plain decoding would, and its logits are the same numbers, while only the
attention (about a seventh of a step) is computed more than once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op
from openvino.op import _PagedAttentionExtension as PagedAttention

from paceline.models.config import ModelConfig, feature_layers, inverse_frequencies
from paceline.runtimes.openvino_batch import Shape
from paceline.runtimes.paged_cache import BLOCK
from paceline.runtimes.quantise import INT4_GROUP
from paceline.types import LogitArray

Tensors = dict[str, np.ndarray]
"""Prepared weights, see `openvino_weights.prepare`."""


def _ints(*values: int) -> Any:
    return op.constant(np.array(values, dtype=np.int64))


def _scalar(value: float, dtype: type[np.generic] = np.float32) -> Any:
    return op.constant(np.array(value, dtype=dtype))


def _gather(data: Any, rows: Any) -> Any:
    return op.gather(data, rows, _scalar(0, np.int64))


class _Builder:
    """Collects the graph's inputs while the network is written down."""

    def __init__(self, config: ModelConfig, tensors: Tensors, direct: bool) -> None:
        self.direct = direct
        self.config = config
        self.tensors = tensors
        self.parameters: list[Any] = []
        self.attention_inputs = [
            self.input("past_lens", np.int32, [-1]),
            self.input("subsequence_begins", np.int32, [-1]),
            self.input("block_indices", np.int32, [-1]),
            self.input("block_indices_begins", np.int32, [-1]),
        ]
        self.max_context_len = self.input("max_context_len", np.int32, [])
        self.bias_inputs = [
            self.input("qq_bias", np.uint8, [-1]),
            self.input("qq_bias_begins", np.int32, [-1]),
        ]
        self.attention_rows = self.input("attention_rows", np.int32, [-1])
        self.dense_rows = self.input("dense_rows", np.int32, [-1])
        positions = self.spread(self.input("positions", np.int32, [-1]))
        angles = np.arange(config.max_context)[:, None] * inverse_frequencies(config)[None]
        angles = np.concatenate([angles, angles], axis=1)
        self.cos = self._rotary_table(np.cos(angles), positions)
        self.sin = self._rotary_table(np.sin(angles), positions)

    def _rotary_table(self, table: np.ndarray, positions: Any) -> Any:
        rows = _gather(op.constant(table.astype(np.float32)), positions)
        return op.reshape(rows, _ints(-1, 1, 1, self.config.head_dim), False)

    def input(self, name: str, dtype: type[np.generic], shape: list[int]) -> Any:
        parameter = op.parameter(shape, dtype)
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
        self.parameters.append(parameter)
        return parameter

    def spread(self, rows: Any) -> Any:
        """Attention rows of dense rows."""
        return rows if self.direct else _gather(rows, self.attention_rows)

    def collect(self, rows: Any) -> Any:
        """Dense rows of attention rows."""
        return rows if self.direct else _gather(rows, self.dense_rows)

    def linear(self, x: Any, name: str) -> Any:
        """`x` times the transposed matrix `name`, plus its bias if it has one."""
        out = op.matmul(x, self.matrix(name), False, True)
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else op.add(out, op.constant(bias.reshape(1, 1, -1)))

    def matrix(self, name: str) -> Any:
        weight = self.tensors[f"{name}.weight"]
        if weight.dtype == np.float32:
            return op.constant(weight, shared_memory=True)
        scale = self.tensors[f"{name}.scale"]
        if weight.dtype == np.int8:
            return op.multiply(
                op.convert(op.constant(weight, shared_memory=True), "f32"), op.constant(scale)
            )
        rows, groups, _ = scale.shape
        nibbles = functools.partial(ov.Tensor, type=ov.Type.u4)
        codes = op.constant(nibbles(weight, shape=ov.Shape([rows, groups, INT4_GROUP])))
        zero = op.constant(self.tensors[f"{name}.zero"])
        centred = op.subtract(op.convert(codes, "f32"), zero)
        return op.reshape(op.multiply(centred, op.constant(scale)), _ints(rows, -1), False)

    def embed(self, ids: Any) -> Any:
        """float32 `[rows, 1, hidden]`: rows are gathered before they are expanded."""
        ids = op.unsqueeze(ids, _ints(1))
        rows = _gather(op.constant(self.tensors["embed.weight"], shared_memory=True), ids)
        if self.tensors["embed.weight"].dtype == np.float32:
            return rows
        scale = _gather(op.constant(self.tensors["embed.scale"]), ids)
        return op.multiply(op.convert(rows, "f32"), scale)

    def rms_norm(self, x: Any, weight: LogitArray) -> Any:
        square = op.power(x, _scalar(2.0))
        mean = op.add(op.reduce_mean(square, _ints(-1), True), _scalar(self.config.norm_eps))
        scaled = op.multiply(x, op.divide(_scalar(1.0), op.sqrt(mean)))
        return op.multiply(scaled, op.constant(weight))

    def rotate(self, x: Any) -> Any:
        """Rotary positions on `[rows, heads, 1, head_dim]`, in the form the plugin fuses."""
        half = self.config.head_dim // 2
        halves = op.variadic_split(x, _scalar(3, np.int64), _ints(half, half))
        rotated = op.concat([op.multiply(halves.output(1), _scalar(-1.0)), halves.output(0)], -1)
        return op.add(op.multiply(x, self.cos), op.multiply(rotated, self.sin))

    def heads(self, x: Any, count: int, norm: LogitArray | None) -> Any:
        """Split into heads, norm them if the family does, rotate, and flatten again."""
        x = op.reshape(x, _ints(-1, count, 1, self.config.head_dim), False)
        if norm is not None:
            x = self.rms_norm(x, norm.reshape(1, 1, 1, -1))
        return op.reshape(self.rotate(x), _ints(-1, count * self.config.head_dim), False)

    def attention(self, x: Any, layer: int) -> Any:
        c = self.config
        name = f"layers.{layer}"
        qkv = self.spread(self.linear(x, f"{name}.qkv"))
        widths = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        parts = op.variadic_split(qkv, _scalar(-1, np.int64), _ints(*widths))
        query = self.heads(parts.output(0), c.heads, self.tensors.get(f"{name}.q_norm"))
        key = self.heads(parts.output(1), c.kv_heads, self.tensors.get(f"{name}.k_norm"))
        value = op.reshape(parts.output(2), _ints(-1, widths[2]), False)
        shape = [-1, c.kv_heads, BLOCK, c.head_dim]
        caches = [
            self.input(f"{kind}_cache.{layer}", np.float32, shape) for kind in ("key", "value")
        ]
        attended = self.paged_attention([query, key, value, *caches])
        collected = self.collect(attended)
        return self.linear(op.reshape(collected, _ints(-1, 1, widths[0]), False), f"{name}.o")

    def paged_attention(self, tensors: list[Any]) -> Any:
        """The plugin's attention over blocks. Empty inputs switch off features not used here:
        sliding window, ALiBi, score output, cache rotation, sparse attention, sinks, eviction."""

        def empty(dtype: type[np.generic], rank: int = 1) -> Any:
            return op.constant(np.zeros((0,) * rank, dtype=dtype))

        no_ints, no_floats = empty(np.int32), empty(np.float32)
        zero = _scalar(0, np.int32)
        inputs = [
            *tensors,
            *self.attention_inputs,
            _scalar(self.config.head_dim**-0.5),
            zero,  # sliding window
            no_floats,  # ALiBi slopes
            self.max_context_len,
            no_ints,  # score aggregation window
            *(no_ints, empty(np.int32, 2), empty(np.float32, 2)),  # cache rotation
            *(no_floats, zero, zero),  # sparse attention
            empty(np.float32, 4),  # sinks
            *(zero, no_ints, no_ints, no_ints),  # eviction
            no_ints,  # token types
            *self.bias_inputs,
        ]
        node = PagedAttention([each.output(0) for each in inputs])
        info = node.get_rt_info()
        for kind in ("k", "v"):
            info[f"num_{kind}_heads"] = self.config.kv_heads
            info[f"{kind}_head_size"] = self.config.head_dim
        return op.reshape(
            node.output(0), _ints(-1, self.config.heads * self.config.head_dim), False
        )

    def feed_forward(self, x: Any, layer: int) -> Any:
        width = self.config.ffn_size
        both = self.linear(x, f"layers.{layer}.gate_up")
        gate, up = op.variadic_split(both, _scalar(-1, np.int64), _ints(width, width)).outputs()
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
    x = net.embed(net.input("input_ids", np.int32, [-1]))

    def norm(x: Any, name: str) -> Any:
        return net.rms_norm(x, tensors[name].reshape(1, 1, -1))

    picked = net.input("feature_rows", np.int32, [-1])
    streams = {}
    for layer in range(config.layers):
        if layer in feature_layers(config.layers):
            streams[layer] = _gather(x, picked)
        x = op.add(x, net.attention(norm(x, f"layers.{layer}.attention_norm"), layer))
        x = op.add(x, net.feed_forward(norm(x, f"layers.{layer}.ffn_norm"), layer))
    wanted = _gather(x, net.input("logit_rows", np.int32, [-1]))
    hidden = norm(wanted, "norm")
    head = "embed" if "lm_head.weight" not in tensors else "lm_head"
    logits = op.reshape(net.linear(hidden, head), _ints(-1, config.vocab_size), False)
    hidden = op.reshape(hidden, _ints(-1, config.hidden_size), False)
    parts = [
        *(streams[each] for each in feature_layers(config.layers)),
        norm(_gather(x, picked), "norm"),
    ]
    features = op.reshape(op.concat(parts, -1), _ints(-1, 4 * config.hidden_size), False)
    outputs = {"logits": logits, "hidden": hidden, "features": features}
    for name, node in outputs.items():
        node.output(0).get_tensor().set_names({name})
    return ov.Model([*map(op.result, outputs.values())], net.parameters, "paceline")


def fix_rows(graph: ov.Model, shape: Shape) -> ov.Model:
    """A copy of `graph` for exactly so many dense and attention rows."""
    fixed = graph.clone()
    shapes = {port.get_any_name(): port.get_partial_shape() for port in fixed.inputs}
    for name in ("input_ids", "positions", "dense_rows"):
        shapes[name] = ov.PartialShape([shape.dense])
    shapes["attention_rows"] = ov.PartialShape([shape.attention])
    fixed.reshape(shapes)
    return fixed

"""Llama-family target as an OpenVINO graph over a ragged batch of rows, and shared graph nodes.

Rows are independent everywhere but in attention, which the caller supplies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op
from openvino.op import _PagedAttentionExtension as PagedAttention

from paceline.core.types import LogitArray, ProbArray
from paceline.models.config import ModelConfig, feature_layers
from paceline.runtimes.weights import INT4_GROUP

# Graph nodes that the target's network and drafter networks share.

# Packed weights by name: `NAME.weight` and, but for float32, `NAME.scale`.
Tensors = Mapping[str, np.ndarray]


def ints(*values: int) -> Any:
    return op.constant(np.array(values, dtype=np.int64))


def scalar(value: float, dtype: type[np.generic] = np.float32) -> Any:
    return op.constant(np.array(value, dtype=dtype))


def gather(data: Any, rows: Any) -> Any:
    return op.gather(data, rows, scalar(0, np.int64))


def split(x: Any, sizes: Sequence[int]) -> list[Any]:
    return list(op.variadic_split(x, scalar(-1, np.int64), ints(*sizes)).outputs())


class Inputs:
    """Parameters of a graph under construction."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []

    def add(self, name: str, dtype: type[np.generic], shape: list[int]) -> Any:
        parameter = op.parameter(shape, dtype)
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
        self.parameters.append(parameter)
        return parameter


def matrix(tensors: Tensors, name: str) -> Any:
    """Return a dequantized weight; the plugin keeps it compressed."""
    weight = tensors[f"{name}.weight"]
    if weight.dtype == np.float32:
        return op.constant(weight, shared_memory=True)
    scale = tensors[f"{name}.scale"]
    if weight.dtype == np.int8:
        return op.multiply(
            op.convert(op.constant(weight, shared_memory=True), "f32"), op.constant(scale)
        )
    rows, groups, _ = scale.shape
    nibbles = functools.partial(ov.Tensor, type=ov.Type.u4)
    codes = op.constant(nibbles(weight, shape=ov.Shape([rows, groups, INT4_GROUP])))
    zero = op.constant(tensors[f"{name}.zero"])
    centred = op.subtract(op.convert(codes, "f32"), zero)
    return op.reshape(op.multiply(centred, op.constant(scale)), ints(rows, -1), False)


def linear(x: Any, tensors: Tensors, name: str) -> Any:
    """Return `x` times the transposed matrix `name`, plus its bias if it has one."""
    out = op.matmul(x, matrix(tensors, name), False, True)
    bias = tensors.get(f"{name}.bias")
    return out if bias is None else op.add(out, op.constant(bias.reshape(1, 1, -1)))


def embed(ids: Any, tensors: Tensors) -> Any:
    """Return embeddings of token ids, float32 `[..., width]`, dequantized after the gather.

    Ids from the vocabulary size on name rows of "embed.extra", float32 `[m, width]`, if present.
    """
    extra = tensors.get("embed.extra")
    if extra is None:
        return _embed(ids, tensors)
    size = scalar(len(tensors["embed.weight"]), np.int32)
    rows = _embed(op.minimum(ids, op.subtract(size, scalar(1, np.int32))), tensors)
    others = gather(op.constant(extra), op.maximum(op.subtract(ids, size), scalar(0, np.int32)))
    return op.select(op.unsqueeze(op.less(ids, size), ints(-1)), rows, others)


def _embed(ids: Any, tensors: Tensors) -> Any:
    rows = gather(op.constant(tensors["embed.weight"], shared_memory=True), ids)
    if tensors["embed.weight"].dtype == np.float32:
        return rows
    scale = gather(op.constant(tensors["embed.scale"]), ids)
    return op.multiply(op.convert(rows, "f32"), scale)


def rms_norm(x: Any, weight: LogitArray, eps: float) -> Any:
    """Return the RMS norm over the last axis; `weight` has the rank of `x`."""
    square = op.power(x, scalar(2.0))
    mean = op.add(op.reduce_mean(square, ints(-1), True), scalar(eps))
    scaled = op.multiply(x, op.divide(scalar(1.0), op.sqrt(mean)))
    return op.multiply(scaled, op.constant(weight))


class Rotation:
    """Rotary embedding (RoPE) of some rows, in the form that the plugin fuses."""

    def __init__(self, frequencies: ProbArray, max_context: int, positions: Any) -> None:
        """Look up angles: `frequencies` `[head_dim // 2]` in radians per position,
        `positions` int32 `[rows]` below `max_context`.
        """
        angles = np.arange(max_context)[:, None] * frequencies[None]
        angles = np.concatenate([angles, angles], axis=1)
        self._half = len(frequencies)
        self._cos = self._rows(np.cos(angles), positions)
        self._sin = self._rows(np.sin(angles), positions)

    def _rows(self, table: np.ndarray, positions: Any) -> Any:
        rows = gather(op.constant(table.astype(np.float32)), positions)
        return op.reshape(rows, ints(-1, 1, 1, 2 * self._half), False)

    def __call__(self, x: Any) -> Any:
        """Rotate `[rows, heads, 1, head_dim]`."""
        halves = op.variadic_split(x, scalar(3, np.int64), ints(self._half, self._half))
        rotated = op.concat([op.multiply(halves.output(1), scalar(-1.0)), halves.output(0)], -1)
        return op.add(op.multiply(x, self._cos), op.multiply(rotated, self._sin))


@dataclass(frozen=True, slots=True)
class Paging:
    """Paged attention inputs of a ragged batch: block tables and subsequences."""

    past_lens: Any
    subsequence_begins: Any
    block_indices: Any
    block_indices_begins: Any
    max_context_len: Any
    qq_bias: Any
    qq_bias_begins: Any


def paged_attention(
    tensors: Sequence[Any], paging: Paging, heads: int, kv_heads: int, head_dim: int, reach: int = 0
) -> Any:
    """Return the plugin's paged attention: `[rows, heads * head_dim]`.

    Empty inputs switch off ALiBi, score output, cache rotation, sparse attention, sinks and
    eviction.

    Args:
        tensors: flat queries, keys and values of the rows, and the key and value caches, into which
            the rows are written.
        paging: block tables.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        reach: sliding window in keys, the row's own included; 0 for all.
    """

    def empty(dtype: type[np.generic], rank: int = 1) -> Any:
        return op.constant(np.zeros((0,) * rank, dtype=dtype))

    no_ints, no_floats = empty(np.int32), empty(np.float32)
    zero = scalar(0, np.int32)
    inputs = [
        *tensors,
        paging.past_lens,
        paging.subsequence_begins,
        paging.block_indices,
        paging.block_indices_begins,
        scalar(head_dim**-0.5),
        scalar(reach, np.int32),  # sliding window
        no_floats,  # ALiBi slopes
        paging.max_context_len,
        no_ints,  # score aggregation window
        *(no_ints, empty(np.int32, 2), empty(np.float32, 2)),  # cache rotation
        *(no_floats, zero, zero),  # sparse attention
        empty(np.float32, 4),  # sinks
        *(zero, no_ints, no_ints, no_ints),  # eviction
        no_ints,  # token types
        paging.qq_bias,
        paging.qq_bias_begins,
    ]
    node = PagedAttention([each.output(0) if hasattr(each, "output") else each for each in inputs])
    info = node.get_rt_info()
    for kind in ("k", "v"):
        info[f"num_{kind}_heads"] = kv_heads
        info[f"{kind}_head_size"] = head_dim
    return op.reshape(node.output(0), ints(-1, heads * head_dim), False)


# From queries, keys and values side by side, `[rows, 1, (heads + 2 * kv_heads) * head_dim]`, and
# the layer's number, to `[rows, 1, heads * head_dim]`.
Attend = Callable[[Any, int], Any]


def build(
    config: ModelConfig,
    tensors: Tensors,
    make_attend: Callable[[Inputs], Attend],
) -> ov.Model:
    """Build the graph of a target.

    Inputs beside those of attention, int32: `input_ids [rows]`, `logit_rows [n]` (rows that need
    logits), `feature_rows [m]` (rows that need features).

    Outputs, float32: `logits [n, vocabulary]`, `hidden [n, hidden_size]`, `features [m, 4 *
    hidden_size]`.

    Args:
        config: shape of the model.
        tensors: prepared weights.
        make_attend: builds attention and adds its inputs.
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


# The one OpenVINO core of this process.


@functools.cache
def core() -> ov.Core:
    """Return the process's OpenVINO core, which is never destroyed.

    Its plugin gives the creating thread a signal stack and frees it on destruction, in whatever
    thread that happens; a later Ctrl-C would run on freed memory.
    """
    return ov.Core()

"""The parts of a decoder layer around attention, as nodes: the plugin's, or products of our own.

Our own products are fused with the norm before and the sum behind them, take few rows at almost the
price of one, and read their matrices where they lie: compiled instances for several numbers of rows
share one copy, which stays in the processor's cache when their number changes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from openvino import opset15 as op

from paceline.models.config import ModelConfig
from paceline.runtimes.openvino_native import Operations
from paceline.runtimes.openvino_nodes import Tensors, linear, rms_norm, split
from paceline.runtimes.quantise import Precision

_LANES, _GROUP = 16, 64
"""Rows of a matrix that are multiplied together; activations that share a scale."""


class Layers(Protocol):
    """Nodes `[rows, 1, width]` to nodes."""

    bytes_per_instance: int
    """What the matrices take in every compiled instance."""

    def into_attention(self, x: Any, layer: int) -> Any:
        """Queries, keys and values side by side."""
        ...

    def out_of_attention(self, attended: Any, x: Any, layer: int) -> Any:
        """The stream `x` with what was attended to."""
        ...

    def feed_forward(self, x: Any, layer: int) -> Any:
        """The stream `x` with what the feed-forward part adds."""
        ...

    def head(self, hidden: Any) -> Any:
        """Logits of normed hidden states."""
        ...


class PluginLayers:
    """Products and all else by the plugin."""

    def __init__(self, config: ModelConfig, tensors: Tensors) -> None:
        """Take a model's weights."""
        self.bytes_per_instance = sum(array.nbytes for array in tensors.values())
        self._config = config
        self._tensors = tensors

    def _linear(self, x: Any, name: str) -> Any:
        out = linear(x, self._tensors, name)
        out.set_friendly_name(name)  # by which a profile knows it
        return out

    def _norm(self, x: Any, name: str) -> Any:
        return rms_norm(x, self._tensors[name].reshape(1, 1, -1), self._config.norm_eps)

    def into_attention(self, x: Any, layer: int) -> Any:
        """A norm and a product."""
        normed = self._norm(x, f"layers.{layer}.attention_norm")
        return self._linear(normed, f"layers.{layer}.qkv")

    def out_of_attention(self, attended: Any, x: Any, layer: int) -> Any:
        """A product and a sum."""
        return op.add(x, self._linear(attended, f"layers.{layer}.o"))

    def feed_forward(self, x: Any, layer: int) -> Any:
        """A norm, SwiGLU and a sum."""
        width = self._config.ffn_size
        both = self._linear(self._norm(x, f"layers.{layer}.ffn_norm"), f"layers.{layer}.gate_up")
        gate, up = split(both, (width, width))
        return op.add(x, self._linear(op.multiply(op.swish(gate), up), f"layers.{layer}.down"))

    def head(self, hidden: Any) -> Any:
        """A product."""
        return self._linear(hidden, head_name(self._tensors))


class OwnLayers:
    """Products of our own. Must outlive what was compiled of its nodes: the matrices are here."""

    def __init__(self, config: ModelConfig, tensors: Tensors, operations: Operations) -> None:
        """Pack a model's int8 matrices."""
        self.bytes_per_instance = 0
        self._eps = float(config.norm_eps)
        self._operations = operations
        self._kept: list[npt.NDArray[Any]] = []
        names = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
        products = [name for name in names if name.startswith("layers.")] + [head_name(tensors)]
        self._matrices = {name: self._packed(tensors, name) for name in products}
        self._norms = {
            name: self._address(tensors[name])
            for name in tensors
            if name.endswith(("attention_norm", "ffn_norm"))
        }

    def into_attention(self, x: Any, layer: int) -> Any:
        """One node."""
        return self._product(f"layers.{layer}.qkv", [x], norm=f"layers.{layer}.attention_norm")

    def out_of_attention(self, attended: Any, x: Any, layer: int) -> Any:
        """One node."""
        return self._product(f"layers.{layer}.o", [attended, x])

    def feed_forward(self, x: Any, layer: int) -> Any:
        """Two nodes."""
        name = f"layers.{layer}"
        inner = self._product(f"{name}.gate_up", [x], norm=f"{name}.ffn_norm", gated=True)
        return self._product(f"{name}.down", [inner, x])

    def head(self, hidden: Any) -> Any:
        """One node."""
        name = next(reversed(self._matrices))
        return self._product(name, [hidden])

    def _product(
        self, name: str, inputs: list[Any], norm: str | None = None, gated: bool = False
    ) -> Any:
        attributes = {
            **self._matrices[name],
            "norm": self._norms[norm] if norm else 0,
            "eps": self._eps,
            "gated": gated,
        }
        node = self._operations.node("Product", inputs, attributes)
        node.set_friendly_name(name)
        return node

    def _packed(self, tensors: Tensors, name: str) -> dict[str, int]:
        """Addresses of a matrix as `native/product.hpp` wants it."""
        weight = tensors[f"{name}.weight"]
        outputs, inputs = weight.shape
        blocks = weight.reshape(outputs // _LANES, _LANES, inputs // _GROUP, _GROUP // 4, 4)
        sums = -blocks.sum(axis=(3, 4), dtype=np.int16).swapaxes(1, 2)
        bias = tensors.get(f"{name}.bias")
        return {
            "outputs": outputs,
            "inputs": inputs,
            "weights": self._address(blocks.transpose(0, 2, 3, 1, 4)),
            "sums": self._address(sums),
            "scales": self._address(tensors[f"{name}.scale"].ravel()),
            "bias": 0 if bias is None else self._address(bias),
        }

    def _address(self, array: npt.NDArray[Any]) -> int:
        """Of a copy at the begin of a cache line, kept here."""
        room = np.empty(array.nbytes + 64, dtype=np.uint8)
        begin = -room.ctypes.data % 64
        copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        self._kept.append(room)
        return int(copy.ctypes.data)


def own_layers(
    config: ModelConfig, tensors: Tensors, precision: Precision, operations: Operations | None
) -> OwnLayers | None:
    """Products of our own, for int8 matrices of fitting sizes where the processor can."""
    if precision != "int8" or operations is None or not operations.products:
        return None
    matrices = [array for name, array in tensors.items() if name.endswith(".weight")]
    fit = all(
        rows % _LANES == 0 and columns % _GROUP == 0
        for rows, columns in (matrix.shape for matrix in matrices)
    )
    gates = config.ffn_size % _LANES == 0
    return OwnLayers(config, tensors, operations) if fit and gates else None


def head_name(tensors: Tensors) -> str:
    """The matrix that makes logits."""
    return "lm_head" if "lm_head.weight" in tensors else "embed"

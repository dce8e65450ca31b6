"""Our own products: right against plain NumPy, and the same bits for a row in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino as ov
from openvino import opset15 as op
from tests.runtimes import tiny_openvino

from paceline.runtimes.openvino_core import core
from paceline.runtimes.openvino_layers import OwnLayers, own_layers
from paceline.runtimes.openvino_native import operations
from paceline.runtimes.quantise import pack

NODES = operations()
pytestmark = pytest.mark.skipif(
    NODES is not None and not NODES.products, reason="this processor lacks AVX-512 VNNI"
)
GROUP = 64
RNG = np.random.default_rng(2)


def tensors(outputs: int, inputs: int, bias: bool = False) -> dict[str, Any]:
    """One matrix, and a norm for its inputs."""
    packed = pack(RNG.standard_normal((outputs, inputs)).astype(np.float32), "int8")
    out = {f"layers.0.m.{part}": array for part, array in packed.items()}
    out |= {"embed.weight": packed["weight"][:16], "embed.scale": packed["scale"][:16]}
    out["layers.0.ffn_norm"] = (1 + 0.1 * RNG.standard_normal(inputs)).astype(np.float32)
    if bias:
        out["layers.0.m.bias"] = RNG.standard_normal(outputs).astype(np.float32)
    return out


class Product:
    """The operation alone."""

    def __init__(self, parts: dict[str, Any], *, norm: bool, gated: bool, residual: bool) -> None:
        assert NODES is not None, "these tests need a C++ compiler"
        self.layers = OwnLayers(tiny_openvino.config(), parts, NODES)
        outputs, inputs = parts["layers.0.m.weight"].shape
        widths = [inputs, outputs] if residual else [inputs]
        given = [op.parameter([-1, 1, width], np.float32) for width in widths]
        named = "layers.0.ffn_norm" if norm else None
        node = self.layers._product("layers.0.m", given, norm=named, gated=gated)
        model = ov.Model([op.result(node)], given)
        options = {"INFERENCE_PRECISION_HINT": "f32"}
        self.request = core().compile_model(model, "CPU", options).create_infer_request()

    def __call__(self, x: Any, residual: Any = None) -> Any:
        given = [x] if residual is None else [x, residual]
        for index, each in enumerate(given):
            self.request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(each[:, None])))
        self.request.infer()
        return self.request.get_output_tensor(0).data[:, 0].copy()


def plain(parts: dict[str, Any], x: Any, *, norm: bool, gated: bool, residual: Any) -> Any:
    x = x.astype(np.float64)
    if norm:
        eps = tiny_openvino.config().norm_eps
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * parts["layers.0.ffn_norm"]
    groups = x.reshape(len(x), -1, GROUP)
    step = np.abs(groups).max(-1, keepdims=True) / 127
    x = (np.rint(groups / np.where(step == 0, 1, step)) * step).reshape(x.shape)
    weight = parts["layers.0.m.weight"].astype(np.float64) * parts["layers.0.m.scale"]
    out = x @ weight.T + parts.get("layers.0.m.bias", 0.0)
    if gated:
        gate, other = np.split(out, 2, axis=-1)
        out = gate / (1 + np.exp(-gate)) * other
    return out if residual is None else out + residual


CASES = {
    "plain": (96, 128, False, False, False, False),
    "odd number of blocks": (48, 64, False, False, False, False),
    "norm": (160, 192, False, True, False, False),
    "gated": (224, 128, False, True, True, False),
    "residual": (64, 320, False, False, False, True),
    "bias": (96, 64, True, True, False, False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 41])
def test_it_is_the_plain_product(case: str, rows: int) -> None:
    outputs, inputs, bias, norm, gated, residual = CASES[case]
    parts = tensors(outputs, inputs, bias)
    x = RNG.standard_normal((rows, inputs)).astype(np.float32)
    added = RNG.standard_normal((rows, outputs)).astype(np.float32) if residual else None
    made = Product(parts, norm=norm, gated=gated, residual=residual)
    expected = plain(parts, x, norm=norm, gated=gated, residual=added)
    found = made(x, added)
    # A number half-way between two steps may be rounded to either: those rows are few.
    off = np.abs(found - expected) > 1e-4 * np.abs(expected).max()
    assert off.any(axis=1).mean() <= 0.2
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_company_changes_no_bit(case: str) -> None:
    outputs, inputs, bias, norm, gated, residual = CASES[case]
    parts = tensors(outputs, inputs, bias)
    made = Product(parts, norm=norm, gated=gated, residual=residual)
    x = RNG.standard_normal((41, inputs)).astype(np.float32)
    x[5] = 0  # rounds to nothing
    added = RNG.standard_normal((41, outputs)).astype(np.float32) if residual else None
    whole = made(x, added)
    for begin, end in ((0, 1), (5, 6), (7, 9), (10, 13), (13, 17), (20, 25), (25, 31), (30, 41)):
        part = made(x[begin:end], None if added is None else added[begin:end])
        assert np.array_equal(part, whole[begin:end])


def test_large_numbers_and_zeros_stay_finite() -> None:
    parts = tensors(64, 64)
    made = Product(parts, norm=True, gated=True, residual=False)
    x = np.zeros((3, 64), np.float32)
    x[1], x[2] = 1e18, RNG.standard_normal(64) * 1e-18
    assert np.isfinite(made(x)).all()


def test_other_sizes_and_precisions_are_left_to_the_plugin() -> None:
    nodes, config = NODES, tiny_openvino.config()
    assert own_layers(config, tensors(96, 128), "int8", nodes) is not None
    assert own_layers(config, tensors(96, 128), "int4", nodes) is None
    assert own_layers(config, tensors(96, 96), "int8", nodes) is None
    assert own_layers(config, tensors(40, 128), "int8", nodes) is None
    assert own_layers(config, tensors(96, 128), "int8", None) is None

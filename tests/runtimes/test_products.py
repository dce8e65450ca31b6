"""Our own products: right against plain NumPy, and the same bits for a row in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.native.library import has_int8_products
from paceline.native.packed import Packed, fits, quantize_int4
from paceline.native.program import Program
from paceline.runtimes.weights import pack

WHOLE = pytest.mark.skipif(not has_int8_products(), reason="needs a C++ compiler and AVX-512 VNNI")
TEMPERATURE_KINDS = [pytest.param("int8", marks=WHOLE), pytest.param("int4", marks=WHOLE), "fp32"]
GROUP = 64
EPS = 1e-5
RNG = np.random.default_rng(2)


def tensors(kind: Any, outputs: int, inputs: int, bias: bool = False) -> dict[str, Any]:
    """One matrix, and a norm for its inputs."""
    matrix = RNG.standard_normal((outputs, inputs)).astype(np.float32)
    packed = quantize_int4(matrix) if kind == "int4" else pack(matrix, kind)
    out = {f"m.{part}": array for part, array in packed.items()}
    out["norm"] = (1 + 0.1 * RNG.standard_normal(inputs)).astype(np.float32)
    if bias:
        out["m.bias"] = RNG.standard_normal(outputs).astype(np.float32)
    return out


class Product:
    """The operation alone; a residual is added where it lies."""

    def __init__(
        self, parts: dict[str, Any], *, norm: bool, gated: bool, residual: bool, threads: int = 2
    ) -> None:
        packed = Packed()
        matrix = packed.matrix(parts, "m", gated=gated)
        self.threads = threads
        self.program = Program(packed)
        self.x = self.program.buffer("rows", matrix.inputs)
        wide = matrix.outputs // 2 if gated else matrix.outputs
        around = self.program.buffer("rows", wide + 32)
        self.out = around.part(16, wide)
        self.around = around
        weights = parts["norm"] if norm else None
        added = self.out if residual else None
        options = {"norm": weights, "eps": EPS, "residual": added}
        self.program.product("m", matrix, self.x, self.out, **options)

    def __call__(self, x: Any, residual: Any = None) -> Any:
        rows = {"rows": len(x)}
        self.program.run(rows, {}, self.threads)  # makes room for the rows
        self.program.read(self.x, len(x))[:] = x
        around = self.program.read(self.around, len(x))
        around[:] = 7.0
        if residual is not None:
            around[:, 16:-16] = residual
        self.program.run(rows, {}, self.threads)
        assert (around[:, :16] == 7).all()
        assert (around[:, -16:] == 7).all()
        return around[:, 16:-16].copy()


def plain(parts: dict[str, Any], x: Any, *, norm: bool, gated: bool, residual: Any) -> Any:
    x = x.astype(np.float64)
    if norm:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * parts["norm"]
    weight = parts["m.weight"].astype(np.float64) * parts.get("m.scale", 1.0)
    if "m.steps" in parts:
        weight *= np.repeat(parts["m.steps"].astype(np.float64), GROUP, axis=1)
    if "m.scale" in parts or "m.steps" in parts:
        groups = x.reshape(len(x), -1, GROUP)
        step = np.abs(groups).max(-1, keepdims=True) / 127
        x = (np.rint(groups / np.where(step == 0, 1, step)) * step).reshape(x.shape)
    out = x @ weight.T + parts.get("m.bias", 0.0)
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


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 12, 13, 16, 41])
def test_it_is_the_plain_product(kind: str, case: str, rows: int) -> None:
    outputs, inputs, bias, norm, gated, residual = CASES[case]
    parts = tensors(kind, outputs, inputs, bias)
    x = RNG.standard_normal((rows, inputs)).astype(np.float32)
    added = RNG.standard_normal((rows, outputs)).astype(np.float32) if residual else None
    made = Product(parts, norm=norm, gated=gated, residual=residual)
    expected = plain(parts, x, norm=norm, gated=gated, residual=added)
    found = made(x, added)
    # A number half-way between two steps may be rounded to either: those rows are few.
    off = np.abs(found - expected) > 1e-4 * np.abs(expected).max()
    assert off.any(axis=1).mean() <= 0.2
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
@pytest.mark.parametrize("case", CASES)
def test_company_and_threads_change_no_bit(kind: str, case: str) -> None:
    outputs, inputs, bias, norm, gated, residual = CASES[case]
    parts = tensors(kind, outputs, inputs, bias)
    made = Product(parts, norm=norm, gated=gated, residual=residual)
    x = RNG.standard_normal((41, inputs)).astype(np.float32)
    x[5] = 0  # rounds to nothing
    added = RNG.standard_normal((41, outputs)).astype(np.float32) if residual else None
    whole = made(x, added)
    for threads in (1, 5):
        other = Product(parts, norm=norm, gated=gated, residual=residual, threads=threads)
        assert np.array_equal(other(x, added), whole)
    for rows in range(1, 41):  # in one pass over the weights, and in several
        begin = 7 * rows % (42 - rows)
        end = begin + rows
        part = made(x[begin:end], None if added is None else added[begin:end])
        assert np.array_equal(part, whole[begin:end])


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
def test_threads_may_change_from_run_to_run(kind: str) -> None:
    """Threads that rest for a while take no part of a loop of long ago."""
    parts = tensors(kind, 96, 128)
    made = [
        Product(parts, norm=True, gated=False, residual=False, threads=threads)
        for threads in (2, 1, 4, 2, 3)
    ]
    x = RNG.standard_normal((9, 128)).astype(np.float32)
    expected = made[1](x)
    for turn in range(300):
        assert np.array_equal(made[turn % len(made)](x), expected)


class FeedForward:
    """Two products, the second of what the first makes."""

    def __init__(self, kind: Any, threads: int, rounded: bool) -> None:
        rng = np.random.default_rng(7)
        packed, self.threads = Packed(), threads
        self.program = program = Program(packed)
        self.x = program.buffer("rows", 128)
        inner = program.buffer("rows", 320, rounded=rounded)
        self.out = program.buffer("rows", 96)
        for name, (outputs, inputs), (at, to) in (
            ("gate_up", (640, 128), (self.x, inner)),
            ("down", (96, 320), (inner, self.out)),
        ):
            weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
            made = quantize_int4(weight) if kind == "int4" else pack(weight, kind)
            parts = {f"{name}.{part}": array for part, array in made.items()}
            matrix = packed.matrix(parts, name, gated=name == "gate_up")
            program.product(name, matrix, at, to)

    def __call__(self, x: Any) -> Any:
        self.program.run({"rows": len(x)}, {}, self.threads)  # makes room for the rows
        self.program.read(self.x, len(x))[:] = x
        self.program.run({"rows": len(x)}, {}, self.threads)
        return self.program.read(self.out, len(x)).copy()


@WHOLE
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_rows_rounded_where_they_are_made_are_the_same(kind: str, threads: int) -> None:
    handed, rounded = FeedForward(kind, threads, False), FeedForward(kind, threads, True)
    for rows in (1, 2, 8, 9, 40, 3):
        x = RNG.standard_normal((rows, 128)).astype(np.float32)
        assert np.array_equal(handed(x), rounded(x))
        assert not np.array_equal(handed(2 * x), rounded(x))


class Normed:
    """A product onto a stream, and behind a norm of that another."""

    def __init__(self, kind: Any, threads: int, rounded: bool) -> None:
        rng = np.random.default_rng(8)
        packed, self.threads = Packed(), threads
        self.program = program = Program(packed)
        self.x, self.stream = program.buffer("rows", 128), program.buffer("rows", 320)
        normed = program.buffer("rows", 320, rounded=True) if rounded else self.stream
        self.out = program.buffer("rows", 64)
        norm = (1 + 0.1 * rng.standard_normal(320)).astype(np.float32)
        parts: dict[str, Any] = {}
        for name, shape in (("down", (320, 128)), ("up", (64, 320))):
            weight = rng.standard_normal(shape).astype(np.float32)
            made = quantize_int4(weight) if kind == "int4" else pack(weight, kind)
            parts |= {f"{name}.{part}": array for part, array in made.items()}
        down, up = packed.matrix(parts, "down"), packed.matrix(parts, "up")
        behind = (normed, norm) if rounded else None
        program.product("down", down, self.x, self.stream, residual=self.stream, behind=behind)
        program.product("up", up, normed, self.out, norm=norm, eps=EPS)

    def __call__(self, x: Any, stream: Any) -> tuple[Any, Any]:
        rows = {"rows": len(x)}
        self.program.run(rows, {}, self.threads)  # makes room for the rows
        self.program.read(self.x, len(x))[:] = x
        self.program.read(self.stream, len(x))[:] = stream
        self.program.run(rows, {}, self.threads)
        found = (self.stream, self.out)
        return tuple(self.program.read(of, len(x)).copy() for of in found)  # type: ignore[return-value]


@WHOLE
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rows_rounded_for_a_norm(kind: str) -> None:
    """Nearly what they are if they are normed first, and the same bits in any company."""
    x = RNG.standard_normal((41, 128)).astype(np.float32)
    before = 5 * RNG.standard_normal((41, 320)).astype(np.float32)
    before[7] = 0
    stream, out = Normed(kind, 2, True)(x, before)
    same, near = Normed(kind, 2, False)(x, before)
    assert np.array_equal(stream, same)
    off = np.abs(out - near) > 1e-4 * np.abs(near).max()  # numbers half-way between two steps
    assert off.any(axis=1).mean() <= 0.2
    np.testing.assert_allclose(out, near, rtol=0, atol=0.03 * np.abs(near).max())
    for threads in (1, 2, 3, 5):
        made = Normed(kind, threads, True)
        for begin, end in ((0, 41), (3, 4), (7, 9), (10, 18), (20, 29), (0, 41)):
            _, part = made(x[begin:end], before[begin:end])
            assert np.array_equal(part, out[begin:end])


@WHOLE
def test_rounded_rows_know_what_they_are_for() -> None:
    packed = Packed()
    parts = tensors("int8", 64, 64)
    matrix, norm = packed.matrix(parts, "m"), parts["norm"]
    program = Program(packed)
    floats, rounded, normed = (
        program.buffer("rows", 64, rounded=rounded) for rounded in (False, True, True)
    )
    program.product("m", matrix, floats, rounded)
    program.product("m", matrix, floats, floats, behind=(normed, norm))
    with pytest.raises(ValueError, match="'m' reads rows that are rounded for another"):
        program.product("m", matrix, rounded, floats, norm=norm)
    with pytest.raises(ValueError, match="'m' reads rows that are rounded for another"):
        program.product("m", matrix, normed, floats)


@WHOLE
def test_rounded_rows_are_for_products_alone() -> None:
    program = Program(Packed())
    with pytest.raises(ValueError, match="groups of 64 numbers, not 96"):
        program.buffer("rows", 96, rounded=True)
    rounded = program.buffer("rows", 128, rounded=True)
    program.gather(rounded, None, program.buffer("rows", 128))
    with pytest.raises(ValueError, match="for matmuls alone"):
        program.run({"rows": 2}, {}, 2)


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
def test_large_numbers_and_zeros_stay_finite(kind: str) -> None:
    made = Product(tensors(kind, 64, 64), norm=True, gated=True, residual=False)
    x = np.zeros((3, 64), np.float32)
    x[1], x[2] = 1e18, RNG.standard_normal(64) * 1e-18
    assert np.isfinite(made(x)).all()


def test_what_they_take() -> None:
    assert fits(np.zeros((96, 128), np.int8))
    assert not fits(np.zeros((96, 96), np.int8))
    assert not fits(np.zeros((40, 128), np.int8))
    assert fits(np.zeros((96, 50), np.float32))


def test_four_bits_are_the_nearest_steps() -> None:
    matrix = RNG.standard_normal((32, 192)).astype(np.float32)
    matrix[3, 64:128] = 0
    made = quantize_int4(matrix)
    steps = np.repeat(made["steps"].astype(np.float32), GROUP, axis=1)
    off = np.abs(made["weight"] * steps - matrix)
    # The largest number is a whole step, and on the other side there are seven steps, not eight.
    reach = np.abs(matrix.reshape(32, -1, GROUP)).max(axis=2)
    whole = np.repeat(reach, GROUP, axis=1) / 8
    near = np.abs(matrix) < 7.4 * whole
    assert (off[near] <= 0.51 * whole[near]).all()
    assert (off <= 1.01 * whole).all()
    assert not made["weight"][3, 64:128].any()
    assert made["weight"].min() == -8

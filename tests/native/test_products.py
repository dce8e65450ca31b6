"""Products in every format: the bits of the reference, the same for a row in any company."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from tests.helpers.packed_rows import read_rows
from tests.native import formats

from paceline.native.packed import Packed
from paceline.native.program import GATES, Program
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import ReferenceOps

EPS = 1e-5
RNG = np.random.default_rng(2)
every_kind = pytest.mark.parametrize("kind", formats.ALL)
SOME = ("F32", "Q8_0", "Q4_1", "Q6_K", "MXFP4", "Q2_K")


class Product:
    """The operation alone, between columns that it must leave as they are."""

    def __init__(
        self,
        kind: str,
        outputs: tuple[int, ...],
        cells: int = 1,
        *,
        norm: bool = False,
        gate: str = "",
        residual: bool = False,
        bias: bool = False,
        scale: float = 1.0,
        threads: int = 2,
    ) -> None:
        inputs, self.threads = formats.inputs_of(kind, cells), threads
        rng = np.random.default_rng(5)
        packed, matrices = Packed(), []
        self.known: dict[str, Any] = {}
        for index, each in enumerate(outputs):
            raw, _ = formats.blocks(kind, each, inputs, index)
            own = rng.standard_normal(each).astype(np.float32) if bias else None
            matrices.append(packed.matrix(kind, raw, inputs, bias=own))
            self.known |= {f"{index}": matrix(kind, raw), f"{index}.bias": own}
        self.inputs, self.scale, self.gate = inputs, scale, gate
        self.norm = (1 + 0.1 * rng.standard_normal(inputs)).astype(np.float32) if norm else None
        self.known["norm"] = self.norm
        self.width = outputs[0] if gate else sum(outputs)
        self.program = Program(packed)
        self.x = self.program.buffer("rows", inputs)
        self.around = self.program.buffer("rows", self.width + 32)
        out = self.around.part(16, self.width)
        self.program.product(
            "m",
            matrices,
            self.x,
            out,
            norm=self.norm,
            eps=EPS,
            scale=scale,
            residual=out if residual else None,
            gate=GATES[gate] if gate else 0,
        )

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

    def expected(self, x: Any, residual: Any = None) -> Any:
        """By the reference, for which this is `Formats`."""
        ops: Any = ReferenceOps(self, self.vector, EPS, None)
        names = [name for name in self.known if name.isdigit()]
        norm = None if self.norm is None else "norm"
        if self.gate:
            return ops.gated(x, names, activation=self.gate, norm=norm)
        return ops.linear(x, names, norm=norm, scale=self.scale, residual=residual)

    def vector(self, name: str) -> Any:
        return self.known[name]

    required = vector

    def parts(self, names: Any, *, pair: bool = False) -> Any:
        return names

    def bias(self, name: str) -> Any:
        return self.known.get(f"{name}.bias")


CASES: dict[str, dict[str, Any]] = {
    "plain": {"outputs": (96,)},
    "one output": {"outputs": (1,)},
    "no whole tiles": {"outputs": (41,), "cells": 3},
    "three": {"outputs": (64, 32, 32), "bias": True},
    "norm": {"outputs": (160,), "norm": True, "cells": 2},
    "silu": {"outputs": (96, 96), "norm": True, "gate": "silu"},
    "gelu": {"outputs": (96, 96), "gate": "gelu", "cells": 2},
    "residual": {"outputs": (64,), "residual": True, "scale": 0.25, "cells": 5},
}


def rows_for(made: Product, count: int, residual: bool) -> tuple[Any, Any]:
    x = RNG.standard_normal((count, made.inputs)).astype(np.float32)
    return x, RNG.standard_normal((count, made.width)).astype(np.float32) if residual else None


@every_kind
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_product_of_the_reference(kind: str, case: str) -> None:
    made = Product(kind, **CASES[case])
    x, added = rows_for(made, 41, CASES[case].get("residual", False))
    expected = made.expected(x, added)
    for count in (1, 2, 3, 4, 7, 8, 9, 13, 41):
        found = made(x[:count], None if added is None else added[:count])
        assert np.array_equal(found, expected[:count])


@every_kind
@pytest.mark.parametrize("case", ["three", "silu", "residual"])
def test_company_and_threads_change_no_bit(kind: str, case: str) -> None:
    options = CASES[case]
    made = Product(kind, **options)
    x, added = rows_for(made, 41, options.get("residual", False))
    x[5] = 0  # rounds to nothing
    whole = made(x, added)
    for threads in (1, 5):
        assert np.array_equal(Product(kind, **options, threads=threads)(x, added), whole)
    for rows in range(1, 41):  # in one pass over the weights, and in several
        begin = 7 * rows % (42 - rows)
        part = slice(begin, begin + rows)
        assert np.array_equal(made(x[part], None if added is None else added[part]), whole[part])


@every_kind
def test_rows_are_read_back_as_the_file_has_them(kind: str) -> None:
    inputs = formats.inputs_of(kind, 2)
    raw, known = formats.blocks(kind, 41, inputs)
    packed = Packed()
    wanted = np.array([40, 0, 17, 17, 5])
    found = read_rows(packed.matrix(kind, raw, inputs), wanted)
    assert np.array_equal(found, known[wanted])
    order = np.random.default_rng(1).permutation(41)[:20]
    some = packed.matrix(kind, raw, inputs, order=order, threads=3)
    assert np.array_equal(
        read_rows(some, np.arange(20)), read_rows(packed.matrix(kind, raw, inputs), order)
    )


def test_every_power_of_two_is_read_and_multiplied() -> None:
    """Those that are too small for a usual number, and the largest."""
    raw = np.random.default_rng(1).integers(0, 256, (256, 17), dtype=np.uint8)
    raw[:, 0] = np.arange(256)
    with np.errstate(over="ignore"):
        known = gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    packed = Packed()
    made = packed.matrix("MXFP4", raw, 32)
    assert np.array_equal(read_rows(made, np.arange(256)), known)
    program = Program(packed)
    x, out = program.buffer("rows", 32), program.buffer("rows", 256)
    program.product("m", [made], x, out)
    program.run({"rows": 1}, {}, 1)
    program.read(x, 1)[:] = 127  # rounds to itself
    program.run({"rows": 1}, {}, 1)
    powers, raw[:, 0] = raw[:, 0].astype(int) - 128, 128
    ones = gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4).astype(np.float64)
    with np.errstate(over="ignore"):
        sums = np.ldexp(127 * ones.sum(1), powers).astype(np.float32)
    assert np.array_equal(program.read(out, 1)[0], sums)
    assert np.abs(known[known != 0]).min() < np.finfo(np.float32).tiny, "some are no usual numbers"


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="288 inputs are no whole blocks of 256"):
        Packed().matrix("Q4_K", np.zeros((4, 144), np.uint8), 288)


@pytest.mark.parametrize("kind", SOME)
def test_threads_may_change_from_run_to_run(kind: str) -> None:
    """Threads that rest for a while take no part of a loop of long ago."""
    made = [Product(kind, (96,), 2, norm=True, threads=threads) for threads in (2, 1, 4, 2, 3)]
    x, _ = rows_for(made[0], 9, False)
    expected = made[1](x)
    for turn in range(300):
        assert np.array_equal(made[turn % len(made)](x), expected)


class FeedForward:
    """Two products, the second of what the first makes."""

    def __init__(self, kind: str, threads: int, rounded: bool) -> None:
        packed, self.threads = Packed(), threads
        self.program = program = Program(packed)
        inner = 256
        self.x = program.buffer("rows", inner)
        middle = program.buffer("rows", inner, rounded=rounded)
        self.out = program.buffer("rows", 96)
        matrices = [
            packed.matrix(kind, formats.blocks(kind, outputs, inner, seed)[0], inner)
            for seed, outputs in enumerate((inner, inner, 96))
        ]
        program.product("gate", matrices[:2], self.x, middle, gate=GATES["silu"])
        program.product("down", matrices[2:], middle, self.out)

    def __call__(self, x: Any) -> Any:
        self.program.run({"rows": len(x)}, {}, self.threads)  # makes room for the rows
        self.program.read(self.x, len(x))[:] = x
        self.program.run({"rows": len(x)}, {}, self.threads)
        return self.program.read(self.out, len(x)).copy()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_rounded_where_they_are_made_are_the_same(kind: str, threads: int) -> None:
    handed, rounded = FeedForward(kind, threads, False), FeedForward(kind, threads, True)
    for rows in (1, 2, 8, 9, 40, 3):
        x = RNG.standard_normal((rows, 256)).astype(np.float32)
        assert np.array_equal(handed(x), rounded(x))
        assert not np.array_equal(handed(2 * x), rounded(x))


def test_rounded_rows_are_for_products_alone() -> None:
    program = Program(Packed())
    with pytest.raises(ValueError, match="groups of 32 numbers, not 80"):
        program.buffer("rows", 80, rounded=True)
    rounded = program.buffer("rows", 128, rounded=True)
    program.gather(rounded, None, program.buffer("rows", 128))
    with pytest.raises(ValueError, match="for matmuls alone"):
        program.run({"rows": 2}, {}, 2)


@pytest.mark.parametrize("kind", SOME)
def test_large_numbers_and_zeros_stay_finite(kind: str) -> None:
    made = Product(kind, (64, 64), norm=True, gate="silu")
    x = np.zeros((3, made.inputs), np.float32)
    x[1], x[2] = 1e18, RNG.standard_normal(made.inputs) * 1e-18
    assert np.isfinite(made(x)).all()


@every_kind
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_own_row_alone(kind: str, odd: float) -> None:
    made = Product(kind, (64,), 2)
    x, _ = rows_for(made, 9, False)
    sound = made(x)
    x[4, 33] = odd
    found = made(x)
    assert not np.isfinite(found[4]).any()
    others = np.arange(9) != 4
    assert np.array_equal(found[others], sound[others])


@pytest.mark.parametrize("threads", [1, 2])
def test_small_numbers_are_kept_whatever_mode_another_library_sets(threads: int) -> None:
    torch = pytest.importorskip("torch")
    made = Product("F32", (32,), threads=threads)
    x = np.full((20, made.inputs), 1e-39, np.float32)
    expected = made(x)
    assert expected.any()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        assert not (x * np.float32(1.5)).any(), "elsewhere they are lost"
        assert np.array_equal(made(x), expected)
    finally:
        torch.set_flush_denormal(False)

"""Matrices of a model: as stored, or at a chosen precision, within half a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.helpers.packed_rows import read_rows
from tests.native import formats

from paceline.errors import ModelError
from paceline.models.weights import Stored
from paceline.native.blocks import KINDS, TYPES
from paceline.native.packed import Packed
from paceline.runtimes.cpu.matrices import PRECISIONS, Matrices

WIDTH = 256
RNG = np.random.default_rng(0)


@dataclass
class Held:
    """Weights in memory: what a file would give."""

    kind: str = "F32"
    shape: tuple[int, int] = (48, WIDTH)
    order: Any = None
    known: dict[str, Any] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in ("embed", "layers.0.q", "norm")

    def stored(self, name: str) -> Stored:
        blocks, self.known[name] = formats.blocks(self.kind, *self.shape, seed=len(name))
        return Stored(self.kind, self.shape, blocks, self.order)

    def __getitem__(self, name: str) -> Any:
        if name == "norm":
            return np.ones(WIDTH, np.float32)
        self.stored(name)
        return self.known[name] if self.order is None else self.known[name][self.order]


def made(precision: str, weights: Any, threads: int = 2) -> tuple[Matrices, Packed]:
    packed = Packed()
    return Matrices(weights, precision, packed, threads), packed


def whole(matrices: Matrices, name: str = "layers.0.q") -> Any:
    matrix = matrices(name)
    return read_rows(matrix, np.arange(matrix.outputs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_s_own_formats_run_as_stored(kind: str) -> None:
    order = RNG.permutation(48)
    for each in (None, order):
        weights = Held(kind, order=each)
        matrices, _packed = made("file", weights)
        assert matrices("layers.0.q").kind == TYPES[kind].number
        assert np.array_equal(whole(matrices), weights["layers.0.q"])
        assert matrices.quantized("layers.0.q") == (kind not in ("F32", "F16", "BF16"))


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if each != "file"])
def test_the_error_is_at_most_half_a_step(precision: str) -> None:
    weights = Held()
    matrices, _packed = made(precision, weights)
    exact = weights["layers.0.q"]
    error = np.abs(whole(matrices) - exact)
    groups = exact.reshape(48, -1, 32)
    step = {
        "fp32": np.zeros((48, WIDTH // 32)),
        "int8": np.abs(groups).max(-1) / 127,
        "int4": np.ptp(groups, axis=-1) / 15,
    }[precision]
    bound = 0.51 * np.repeat(step, 32, axis=1) + (0 if precision == "fp32" else 2e-3)
    assert (error <= bound).all()
    assert (error.max() > 0) == (precision != "fp32")


def test_what_decides_the_argmax_is_finer_than_int4() -> None:
    matrices, _packed = made("int4", Held())
    assert matrices("layers.0.q").kind == TYPES["Q4_1"].number
    assert matrices("embed").kind == TYPES["Q8_0"].number


def test_a_head_that_is_not_there_is_the_embedding() -> None:
    matrices, _packed = made("file", Held("Q8_0"))
    assert matrices("head") is matrices("embed")
    some = matrices.rows("head", np.array([40, 2, 3]))
    table = whole(matrices, "embed")
    assert np.array_equal(read_rows(some, np.arange(3)), table[[40, 2, 3]])


def test_rows_that_are_no_groups_run_finer_or_not_at_all() -> None:
    """288 inputs are whole groups of 32, and no blocks of 256."""
    matrices, _packed = made("int8", Held(shape=(48, 288)))
    assert matrices("layers.0.q").kind == TYPES["Q8_0"].number
    with pytest.raises(ModelError, match=r"tensor layers.0.q has 40 columns, .* --runtime torch"):
        made("file", Held(shape=(48, 40)))[0]("layers.0.q")


@pytest.mark.parametrize(("kind", "run"), [("IQ2_XS", "I8_K"), ("F64", "F32")])
def test_other_types_run_exactly_and_what_they_take_is_said(
    kind: str, run: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Foreign(Held):
        def stored(self, name: str) -> Stored:
            out = super().stored(name)
            size = TYPES[kind].size * WIDTH // TYPES[kind].inputs
            blocks = np.random.default_rng(3).integers(0, 90, (48, size), dtype=np.uint8)
            return Stored(kind, out.shape, blocks, self.order)

    order = RNG.permutation(48)
    for each in (None, order):
        weights = Foreign(order=each)
        matrices, _packed = made("file", weights)
        assert matrices("layers.0.q").kind == TYPES[run].number
        expected = weights["layers.0.q"]
        if kind == "IQ2_XS":
            expected = gguf.dequantize(
                weights.stored("layers.0.q").blocks[:], gguf.GGMLQuantizationType.IQ2_XS
            )[slice(None) if each is None else each]
        assert np.array_equal(whole(matrices), expected)
        assert np.array_equal(matrices.blocks("layers.0.q", order[:5])[1].shape[0], 5)
        matrices("embed")
    assert len(caplog.messages) == 2
    assert all(kind in message for message in caplog.messages)


def test_a_vector_that_is_not_there_is_none() -> None:
    matrices, _packed = made("file", Held())
    assert matrices.vector("norm") is not None
    assert matrices.vector("layers.0.q_norm") is None


def test_pages_of_a_file_are_let_go(tmp_path: Path) -> None:
    """They are read again where somebody still looks; memory that is no file's is left alone."""
    path, table = tmp_path / "rows", np.arange(1 << 20, dtype=np.uint8).reshape(1024, -1)
    table.tofile(path)
    mapped = np.memmap(path, np.uint8, "r").reshape(table.shape)
    for blocks, file in ((mapped, True), (table, False)):
        Stored("F32", (1024, 256), blocks, mapped=file).forget()
        assert np.array_equal(blocks, np.arange(1 << 20, dtype=np.uint8).reshape(1024, -1))

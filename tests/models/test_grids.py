"""Types with grids as codes of eight bits: exactly the numbers of the `gguf` package."""

from __future__ import annotations

import time
from typing import Any

import gguf
import numpy as np
import pytest
from tests.helpers.packed_rows import read_rows

from paceline.models import grids
from paceline.native.blocks import TYPES
from paceline.native.packed import Packed
from paceline.runtimes.reference.formats import matrix

# Where the scale of a block lies, in half precision; of IQ1_M in four upper halves of bytes.
SCALES = {"TQ1_0": 52, "TQ2_0": 64, "IQ1_M": None}
every_kind = pytest.mark.parametrize("kind", grids.GRIDS)


def random_rows(kind: str, rows: int, blocks: int, least: float = 0.001) -> Any:
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (rows, blocks, TYPES[kind].size), dtype=np.uint8)
    scale = rng.uniform(least, 10 * least, (rows, blocks, 1)).astype(np.float16)
    at = SCALES.get(kind, 0)
    if at is None:
        bits = scale.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
        raw[..., 49::2] = raw[..., 49::2] & 15 | (bits << 4).astype(np.uint8)
    else:
        raw[..., at : at + 2] = scale.view(np.uint8)
    return raw.reshape(rows, -1)


def numbers(raw: Any) -> Any:
    """Those that the kernels read, which are those that the reference multiplies."""
    width = raw.shape[1] // TYPES["I8_K"].size * 256
    packed = Packed()
    found = read_rows(packed.matrix("I8_K", raw, width), np.arange(len(raw)))
    known = matrix("I8_K", raw)
    assert known.scales is not None
    assert np.array_equal(found, (known.numbers * known.scales[..., None]).reshape(found.shape))
    return found


def judged(kind: str, raw: Any) -> Any:
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[kind])


@every_kind
@pytest.mark.parametrize("least", [0.001, 1e-7, 100.0])
def test_numbers_are_exactly_those_of_the_package(kind: str, least: float) -> None:
    """Scales that half precision holds only just included: none is kept in it."""
    raw = random_rows(kind, 48, 3, least)
    assert np.array_equal(numbers(grids.expand(kind, raw)), judged(kind, raw))


@every_kind
def test_every_byte_counts(kind: str) -> None:
    """Each bit of a block, in turn, changes numbers here as it does there."""
    size = TYPES[kind].size
    raw = np.repeat(random_rows(kind, 1, 1), 8 * size + 1, axis=0)
    places = np.arange(8 * size)
    raw[places, places // 8] ^= (1 << places % 8).astype(np.uint8)
    known = judged(kind, raw)
    keep = np.isfinite(known).all(axis=1)
    found = numbers(grids.expand(kind, raw[keep]))
    assert np.array_equal(found, known[keep])
    assert keep.mean() > 0.95


@every_kind
def test_all_entries_of_a_grid_are_there(kind: str) -> None:
    raw = random_rows(kind, 64, 16)
    assert np.array_equal(grids.expand(kind, raw[3:5]), grids.expand(kind, raw)[3:5])
    if kind.startswith("TQ"):
        return
    count = 2048 if kind.startswith("IQ1") else len(getattr(gguf.quants, kind).grid[0, 0])
    seen = grids.expand(kind, raw).reshape(-1, TYPES["I8_K"].size)[:, 20:].view(np.int8)
    entries = np.unique(np.abs(seen).reshape(-1, 4 if kind.startswith("IQ3") else 8), axis=0)
    assert len(entries) > 0.9 * min(count, seen.size / 40)


def test_sums_of_products_stay_exact() -> None:
    """The largest code by the largest scale, 32 times by 127: a float holds that exactly."""
    most = 0
    for kind in grids.GRIDS:
        blocks = grids.expand(kind, random_rows(kind, 64, 16)).reshape(-1, TYPES["I8_K"].size)
        small, codes = blocks[:, 4:20].view(np.int8), blocks[:, 20:].view(np.int8)
        most = max(most, int(np.abs(codes).max()) * int(small.max()))
    assert 1900 < most < 2**24 / 32 / 127


def test_it_is_quick() -> None:
    raw = random_rows("IQ3_S", 2048, 8)
    begin = time.perf_counter()
    grids.expand("IQ3_S", raw)
    own = time.perf_counter() - begin
    begin = time.perf_counter()
    judged("IQ3_S", raw)
    assert own < time.perf_counter() - begin

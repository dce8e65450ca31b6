"""The places of the largest logits, found by all threads: numpy's, and -1 where it has to look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.native.library import KV_DTYPES, CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program

RNG = np.random.default_rng(5)
PIECES = 16


def argmax(rows: Any, threads: int = 2, asked: int | None = None) -> list[int]:
    """By the operation, of the first rows that are asked for."""
    count, size = rows.shape
    program = Program(Packed(), CHeads(2, 1, 16, KV_DTYPES["fp32"], 1e-5, 0.25, rotated=16), 64)
    logits = program.buffer("rows", size)
    program.load("logits", logits)
    found = program.argmax(logits, "asked")
    asked = count if asked is None else asked
    given = {"logits": rows.astype(np.float32).ravel().view(np.int32)}
    program.run({"rows": count, "asked": asked}, given, threads)
    places: list[int] = program.read(found, asked).view(np.int32)[:, 0].tolist() if asked else []
    return places


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [16, 17, 100, 1023, 1024, 4097, 49_152, 49_157])
def test_places_are_numpys(size: int, threads: int) -> None:
    rows = RNG.standard_normal((5, size)).astype(np.float32)
    rows[1] = 2.5
    rows[2] = RNG.integers(4, size=size)
    rows[3] = -1e30
    rows[4] = np.arange(size)
    assert argmax(rows, threads) == rows.argmax(axis=1).tolist()


def test_every_place_is_found_and_of_equal_ones_the_first() -> None:
    for place in (0, 1, 63, 64, 311, 312, 4999):
        row = np.zeros((1, 5000), np.float32)
        row[0, place] = 1
        assert argmax(row) == [place]
        row[0, place + 1 :] = 1
        assert argmax(row) == [place]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 700, 4999])
def test_a_row_with_odd_numbers_is_left_to_numpy(place: int, odd: float) -> None:
    rows = RNG.standard_normal((3, 5000)).astype(np.float32)
    rows[1, place] = odd
    first, broken, last = argmax(rows)
    assert broken == -1
    assert [first, last] == rows[[0, 2]].argmax(axis=1).tolist()


def test_a_row_of_fewer_numbers_than_pieces_is_left_to_numpy() -> None:
    assert argmax(np.ones((2, PIECES - 1), np.float32)) == [-1, -1]


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_rows_that_nobody_asks_for_are_not_looked_at(asked: int) -> None:
    rows = RNG.standard_normal((4, 500)).astype(np.float32)
    assert argmax(rows, asked=asked) == rows.argmax(axis=1).tolist()[:asked]

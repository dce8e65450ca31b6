"""Previewed logits of which the best are made exact: right against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.packed_rows import read_rows
from tests.native import formats

from paceline.native.library import KV_DTYPES, CHeads
from paceline.native.packed import Packed
from paceline.native.program import Program

RNG = np.random.default_rng(11)
WIDTH, BEST, ROWS = 64, 32, 6
SIZES = [1, 11, 31, 32, 33, 100, 1000, 8192, 8199]


def previews(size: int) -> Any:
    """Rows as they come, and as a search might stumble over them."""
    rows = RNG.standard_normal((ROWS, size)).astype(np.float32)
    rows[1] = 2.5
    rows[2] = RNG.integers(4, size=size)
    rows[3] = np.arange(size)
    rows[4] = -np.arange(size) // 3
    rows[5, : size // 2] = -np.inf
    return rows


def refined(
    rows: Any, matrix: Any, hidden: Any, best: int = BEST, room: int = 0, kind: str = "F32"
) -> Any:
    """By the operation; behind the logits are larger numbers that are none of theirs."""
    count, size = rows.shape
    packed = Packed()
    made = Program(packed, CHeads(2, 1, 16, KV_DTYPES["fp32"], 1e-5, 0.25, rotated=16), 64)
    states, logits = made.buffer("rows", WIDTH), made.buffer("rows", size + room)
    made.load("hidden", states)
    made.load("logits", logits)
    made.rescore_top_k(formats.packed(packed, kind, matrix), states, logits.part(0, size), best)
    whole = np.pad(rows, ((0, 0), (0, room)), constant_values=9e9).astype(np.float32)
    inputs = {"hidden": hidden.ravel().view(np.int32), "logits": whole.ravel().view(np.int32)}
    made.run({"rows": count}, inputs, 2)
    found = made.read(logits, count).copy()
    assert (found[:, size:] == 9e9).all()
    return found[:, :size]


def expected(rows: Any, matrix: Any, hidden: Any, best: int = BEST, last: bool = False) -> Any:
    """In plain NumPy: of equal logits the first are taken, or the last."""
    out = rows.copy()
    for row, state in zip(out, hidden, strict=True):
        order = np.argsort(-row, kind="stable")
        if last:
            order = len(row) - 1 - np.argsort(-row[::-1], kind="stable")
        places = order[:best]
        row[places] = matrix[places] @ state
    return out


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("size", SIZES)
def test_the_best_are_exact_and_the_others_as_they_were(size: int, kind: str) -> None:
    rows, hidden = previews(size), RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    matrix = RNG.standard_normal((size, WIDTH)).astype(np.float32)
    packed = Packed()
    known = read_rows(formats.packed(packed, kind, matrix), np.arange(size)).astype(np.float64)
    found = refined(rows, matrix, hidden, room=24, kind=kind)
    np.testing.assert_allclose(found, expected(rows, known, hidden), rtol=1e-4, atol=1e-4)
    assert (found == rows).sum() >= ROWS * (size - BEST)


@pytest.mark.parametrize("best", [1, 5, 128, 129, 500])
def test_any_number_may_be_refined(best: int) -> None:
    rows, hidden = previews(1000), RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    matrix = RNG.standard_normal((1000, WIDTH)).astype(np.float32)
    found = refined(rows, matrix, hidden, best)
    np.testing.assert_allclose(found, expected(rows, matrix, hidden, best), rtol=1e-4, atol=1e-4)


def test_another_rule_for_ties_or_one_logit_less_is_told_apart() -> None:
    """What the tests above compare with is not right by chance."""
    rows, hidden = previews(1000), RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    matrix = RNG.standard_normal((1000, WIDTH)).astype(np.float32)
    found = refined(rows, matrix, hidden)
    for wrong in (
        expected(rows, matrix, hidden, last=True),
        expected(rows, matrix, hidden, BEST - 1),
    ):
        assert not np.allclose(found, wrong, rtol=1e-4, atol=1e-4)


def test_company_changes_no_bit() -> None:
    rows, hidden = previews(1000), RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
    head = RNG.standard_normal((1008, WIDTH)).astype(np.float32)
    together = refined(rows, head, hidden)
    for i in range(ROWS):
        assert np.array_equal(refined(rows[i : i + 1], head, hidden[i : i + 1])[0], together[i])

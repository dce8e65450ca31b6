"""The most likely tokens of several rows against a plain sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.drafters import recycling as module
from paceline.drafters.recycling import top_rows
from paceline.native.library import library


@pytest.fixture(
    params=[
        "numpy",
        pytest.param(
            "native", marks=pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
        ),
    ],
    autouse=True,
)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of finding them."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "best", lambda logits, k: None)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.integers(1, 40) | st.integers(500, 1200), st.integers(1, 9), st.data())
def test_they_are_those_of_a_sort(rows: int, width: int, k: int, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 99))
    logits = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    ids, values = top_rows(logits, k)
    order = np.argsort(-logits, axis=1)[:, :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, order, 1))


@pytest.mark.parametrize("width", [1024, 1025, 1055])
@pytest.mark.parametrize("place", ["first", "last", "together"])
def test_they_are_found_wherever_they_lie(width: int, place: str) -> None:
    """At the ends, in the ragged rest, and all in one column."""
    columns = width // 32
    where = {
        "first": np.arange(8),
        "last": width - 1 - np.arange(8),
        "together": 3 + columns * np.arange(8),
    }[place]
    logits = np.zeros((2, width), np.float32)
    logits[:, where] = [np.arange(8, 0, -1), np.arange(1, 9)]
    ids, _ = top_rows(logits, 8)
    np.testing.assert_array_equal(ids, [where, where[::-1]])


def test_equal_entries_yield_as_many_different_ids() -> None:
    ids, values = top_rows(np.ones((3, 700), np.float32), 8)
    assert all(len(set(row)) == 8 for row in ids.tolist())
    assert np.all(values == 1)


def test_rows_that_hold_no_numbers_break_nothing() -> None:
    """One entry that is none leaves the others in order; a row of them still has as many ids."""
    logits = np.arange(600, dtype=np.float32)[None].repeat(2, 0)
    logits[0, 599] = np.nan
    logits[1] = np.nan
    ids, _ = top_rows(logits, 8)
    assert ids.shape == (2, 8)
    assert set(range(592, 599)) <= {*ids[0].tolist(), 599}
    assert all(len(set(row)) == 8 for row in ids.tolist())

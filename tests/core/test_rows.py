"""The store of rows: no id is used twice, places are, and what is not there is not read."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.rows import PERMANENT, RowRun, RowStore
from paceline.errors import InvalidOption, OutOfMemory

_VOCABULARY = 100


def _rows(number: int, count: int = 4) -> np.ndarray:
    return np.full((count, 8), number, np.float32) + np.arange(count, dtype=np.float32)[:, None]


def _store(capacity: int = 64) -> RowStore:
    return RowStore(_VOCABULARY, 8, capacity)


def _filled(store: RowStore, number: int, count: int = 4) -> RowRun:
    run = store.hold(str(number).encode(), count)
    if not run.filled:
        store.fill(run, _rows(number, count))
    return run


def test_the_same_content_has_the_same_ids() -> None:
    store = _store()
    first, other, again = _filled(store, 1), _filled(store, 2), _filled(store, 1)
    assert first is again
    assert first.users == 2
    assert first.ids == range(_VOCABULARY + PERMANENT, _VOCABULARY + PERMANENT + 4)
    assert not set(first.ids) & set(other.ids)
    assert np.array_equal(store.rows(np.array([*other.ids, *first.ids])), [*_rows(2), *_rows(1)])


def test_ids_are_never_those_of_another_content() -> None:
    store, rng = _store(), np.random.default_rng(0)
    owners: dict[int, int] = {}
    held: list[RowRun] = []
    for _ in range(3000):
        while len(held) > 6 or (held and rng.random() < 0.4):
            store.drop(held.pop(int(rng.integers(len(held)))))
        number, count = int(rng.integers(40)), 4
        run = _filled(store, number, count)
        held.append(run)
        for each in run.ids:
            assert owners.setdefault(each, number) == number
        assert np.array_equal(store.rows(np.array(run.ids)), _rows(number, count))
    assert len(owners) > 64 * 10  # many more ids than places


def test_rows_of_a_user_stay_and_others_go_by_least_recent_use() -> None:
    store = _store(12)
    held, old, new = (_filled(store, number) for number in range(3))
    store.drop(old)
    store.drop(new)
    store.drop(store.hold(old.key, 4))  # it is the newer one now
    _filled(store, 3)
    assert np.array_equal(store.rows(np.array(old.ids)), _rows(1))
    assert np.array_equal(store.rows(np.array(held.ids)), _rows(0))
    with pytest.raises(InvalidOption, match="no row has id"):
        store.rows(np.array(new.ids))


def test_what_finds_no_room_changes_nothing() -> None:
    store = _store(12)
    held = [_filled(store, number) for number in range(2)]
    idle = _filled(store, 2)
    store.drop(idle)
    with pytest.raises(OutOfMemory, match="no room for 5"):
        store.hold(b"large", 5)
    assert len(store) == 3
    for number, run in enumerate([*held, idle]):
        assert np.array_equal(store.rows(np.array(run.ids)), _rows(number))


def test_a_run_is_not_read_before_it_is_filled_and_goes_if_it_never_is() -> None:
    store = _store()
    run = store.hold(b"a", 4)
    with pytest.raises(InvalidOption, match="hold and fill"):
        store.rows(np.array(run.ids))
    store.drop(run)
    assert not len(store)
    again = store.hold(b"a", 4)
    assert again.first > run.first


def test_a_run_is_filled_once_with_finite_rows_of_its_size() -> None:
    store = _store()
    run = store.hold(b"a", 4)
    for wrong in (_rows(1, 3), _rows(1)[:, :4], np.full((4, 8), np.nan, np.float32)):
        with pytest.raises(InvalidOption):
            store.fill(run, wrong)
    store.fill(run, _rows(1))
    with pytest.raises(InvalidOption, match="once"):
        store.fill(run, _rows(2))
    with pytest.raises(InvalidOption, match="5 rows are asked for"):
        store.hold(b"a", 5)


def test_permanent_rows_stay_before_all_runs_and_are_found_again() -> None:
    store = _store()
    assert store.append(_rows(5, 2)) == _VOCABULARY
    run = _filled(store, 1)
    assert store.append(_rows(7, 3)) == _VOCABULARY + 2
    assert store.append(_rows(5, 2)) == _VOCABULARY
    ids = np.array([_VOCABULARY + 2, run.first, _VOCABULARY])
    assert store.rows(ids)[:, 0].tolist() == [7, 1, 5]
    with pytest.raises(InvalidOption, match="append it"):
        store.rows(np.array([_VOCABULARY + 5]))
    with pytest.raises(InvalidOption, match="4096 are the most"):
        store.append(np.random.default_rng(0).normal(size=(PERMANENT, 8)).astype(np.float32))

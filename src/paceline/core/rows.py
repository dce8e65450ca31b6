"""Rows that stand where tokens do: a picture is a run of ids that no text has."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption, OutOfMemory

PERMANENT = 4096
"""Rows that stay as long as their store, before those of runs."""

CAPACITY = 16_384  # rows of runs: 16 pictures of 1,024, or 64 of 256


@dataclass(slots=True, eq=False)
class RowRun:
    """Rows of one content.

    Attributes:
        key: what they are made of.
        first: id of the first; the others follow it.
        places: int64 `[n]`, rows of the store's table.
        users: how many may have to read them.
        filled: the numbers are there.
    """

    key: bytes
    first: int
    places: IntArray
    users: int = 0
    filled: bool = False

    @property
    def ids(self) -> range:
        return range(self.first, self.first + len(self.places))


class Placed(NamedTuple):
    """A run in a prompt, and the place of its first row."""

    at: int
    run: RowRun


class RowStore:
    """Rows by id, from a vocabulary's size on, in one table that never moves.

    Ids of runs count up, and none is ever given to another content: caches that go by ids never
    take one picture for another. Places in the table are used again.

    Attributes:
        numbers: float32 `[PERMANENT + capacity, width]`. Memory is used as it fills.
        vocabulary: the least id of a row. Row i of the first `PERMANENT` has id `vocabulary + i`.
        capacity: most rows of runs.
        made: runs so far.
    """

    def __init__(self, vocabulary: int, width: int, capacity: int = CAPACITY) -> None:
        self.vocabulary, self.capacity = vocabulary, capacity
        self.numbers: LogitArray = np.zeros((PERMANENT + capacity, width), np.float32)
        self.made = 0
        self._permanent = 0
        self._next = vocabulary + PERMANENT
        self._runs: OrderedDict[bytes, RowRun] = OrderedDict()  # the last used stands last
        self._by_id: list[RowRun] = []
        self._free = list(range(PERMANENT + capacity - 1, PERMANENT - 1, -1))

    def __len__(self) -> int:
        """Return how many runs there are, with users and without."""
        return len(self._runs)

    def append(self, rows: LogitArray) -> int:
        """Keep rows for ever, and return the id of the first; those that are there are found.

        Args:
            rows: float32 `[m, width]`, finite, at least one.

        Raises InvalidOption: no rows, too many, another width, or values that are not finite.
        """
        self._check(rows)
        for first in range(self._permanent - len(rows) + 1):
            if np.array_equal(self.numbers[first : first + len(rows)], rows):
                return self.vocabulary + first
        first, end = self._permanent, self._permanent + len(rows)
        if end > PERMANENT:
            raise InvalidOption(
                f"{len(rows)} more embeddings do not fit beside {first}: {PERMANENT} are the most"
            )
        self.numbers[first:end] = rows
        self._permanent = end
        return self.vocabulary + first

    def knows(self, key: bytes) -> bool:
        """Return whether the rows of a content are there. Any thread may call this."""
        run = self._runs.get(key)
        return run is not None and run.filled

    def hold(self, key: bytes, rows: int) -> RowRun:
        """Return the run of a content for one more user: a new one if it is not there.

        Runs without users go for it, the least recently used first. OutOfMemory: those with users
        leave no room, and nothing has changed.
        """
        run = self._runs.get(key) or self._made(key, rows)
        if len(run.places) != rows:
            raise InvalidOption(f"{rows} rows are asked for of a run of {len(run.places)}")
        self._runs.move_to_end(key)
        run.users += 1
        return run

    def fill(self, run: RowRun, rows: LogitArray) -> None:
        """Write float32 `[n, width]`, finite, once; errors are those of `append`."""
        self._check(rows)
        if run.filled or len(rows) != len(run.places):
            raise InvalidOption(f"a run of {len(run.places)} rows is filled once, with as many")
        self.numbers[run.places] = rows
        run.filled = True

    def drop(self, run: RowRun) -> None:
        """Let a user go. A filled run stays until its places are needed."""
        run.users -= 1
        if not run.users and not run.filled:
            self._forget(run)

    def places(self, ids: IntArray) -> IntArray:
        """Return the rows of `numbers` of ids from `vocabulary` on.

        InvalidOption: an id has no row, or its run is not filled yet.
        """
        found = ids - self.vocabulary
        far = np.flatnonzero(found >= PERMANENT)
        firsts = [run.first for run in self._by_id] if len(far) else []
        at = np.searchsorted(firsts, ids[far], side="right") - 1
        for each in np.unique(at).tolist():
            own = far[at == each]
            run = self._by_id[each] if each >= 0 else None
            offsets = ids[own] - (run.first if run else 0)
            if run is None or not run.filled or offsets.max() >= len(run.places):
                raise InvalidOption(
                    f"no row has id {ids[own].max()}: hold and fill its run before it is read"
                )
            found[own] = run.places[offsets]
        near = found < PERMANENT
        if (near & (found >= self._permanent)).any():
            raise InvalidOption(f"no row has id {ids[near].max()}: append it before it is read")
        return found

    def in_table(self, ids: Sequence[int]) -> list[int]:
        """Return ids of tokens and rows, those of a row as `vocabulary` and its place.

        Errors are those of `places`.
        """
        found = np.array(ids, np.int64)
        rows = found >= self.vocabulary
        found[rows] = self.vocabulary + self.places(found[rows])
        out: list[int] = found.tolist()
        return out

    def rows(self, ids: IntArray) -> LogitArray:
        """Return float32 `[n, width]`, the rows of ids; errors are those of `places`."""
        out: LogitArray = self.numbers[self.places(ids)]
        return out

    def _made(self, key: bytes, rows: int) -> RowRun:
        idle = [run for run in self._runs.values() if not run.users]
        if len(self._free) + sum(len(run.places) for run in idle) < rows:
            raise OutOfMemory(
                f"no room for {rows} more rows of pictures beside those of running requests: "
                "finish or cancel some, or send smaller pictures"
            )
        while len(self._free) < rows:
            self._forget(idle.pop(0))
        places = np.array([self._free.pop() for _ in range(rows)], np.int64)
        run = self._runs[key] = RowRun(key, self._next, places)
        self._by_id.append(run)
        self.made += 1
        self._next += rows
        return run

    def _forget(self, run: RowRun) -> None:
        del self._runs[run.key]
        del self._by_id[bisect_left(self._by_id, run.first, key=lambda each: each.first)]
        self._free += run.places[::-1].tolist()

    def _check(self, rows: LogitArray) -> None:
        width = self.numbers.shape[1]
        if rows.ndim != 2 or rows.shape[1] != width or not len(rows) or not np.isfinite(rows).all():
            raise InvalidOption(
                f"embeddings must be finite rows of width {width}, not of shape {rows.shape}: "
                "train them for this model"
            )

"""Programs: what is run where, in any process and from any thread, and what is refused."""

from __future__ import annotations

import multiprocessing
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.native import formats

from paceline.errors import OutOfMemory
from paceline.native.packed import Packed
from paceline.native.program import Columns, Program

RNG = np.random.default_rng(4)
WIDTH = 64


class Lookup:
    """Embeddings, some of them gathered, and a product of those."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.table = rng.standard_normal((20, WIDTH)).astype(np.float32)
        self.extra = rng.standard_normal((3, WIDTH)).astype(np.float32)
        self.matrix = rng.standard_normal((640, WIDTH)).astype(np.float32)
        self.norm = rng.standard_normal(WIDTH).astype(np.float32)
        packed = Packed()
        table, matrix = (formats.packed(packed, "F32", each) for each in (self.table, self.matrix))
        self.program = program = Program(packed)
        self.stream = program.buffer("rows", WIDTH)
        picked = program.buffer("picked", 2 * WIDTH)
        self.out = program.buffer("picked", 640)
        program.embed(table, "ids", self.stream, extra=self.extra)
        program.gather(self.stream, "which", picked.part(0, WIDTH))
        program.gather(self.stream, "which", picked.part(WIDTH, WIDTH), self.norm, 1e-5)
        self.picked = picked
        program.product("m", [matrix], picked.part(WIDTH, WIDTH), self.out)

    def run(self, ids: list[int], which: list[int], threads: int = 2) -> Any:
        counts = {"rows": len(ids), "picked": len(which)}
        self.program.run(counts, {"ids": ids, "which": which}, threads)
        return self.program.read(self.out, len(which)).copy()

    def expected(self, ids: list[int], which: list[int]) -> tuple[Any, Any]:
        rows = np.concatenate([self.table, self.extra])[ids][which]
        factor = 1 / np.sqrt((rows.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
        normed = rows * factor * self.norm
        return np.concatenate([rows, normed], axis=1), normed @ self.matrix.T.astype(np.float64)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_of_every_count(threads: int) -> None:
    made = Lookup()
    for count in (1, 9, 2, 33, 1):  # growing and shrinking
        ids = RNG.integers(0, 23, count).tolist()
        which = RNG.integers(0, count, count // 2 + 1).tolist()
        out = made.run(ids, which, threads)
        picked, product = made.expected(ids, which)
        np.testing.assert_allclose(
            made.program.read(made.picked, len(which)), picked, rtol=0, atol=1e-5
        )
        np.testing.assert_allclose(out, product, rtol=0, atol=1e-4)


def test_programs_can_be_freed_while_their_weights_are_read_ahead() -> None:
    for seed in range(60):
        made = Lookup(seed % 3)
        for _ in range(2):  # so that it follows itself
            made.run([1, 2], [0])
        del made


def test_nothing_is_picked() -> None:
    assert Lookup().run([1, 2], []).shape == (0, 640)


def test_two_programs_from_several_threads() -> None:
    """They take turns, and none gets another's rows."""
    programs = [Lookup(seed) for seed in range(3)]
    wrong: list[int] = []

    def work(index: int) -> None:
        ids, which = [index, 7, index + 4], [2, 0]
        expected = programs[index].run(ids, which)
        for _ in range(200):
            if not np.array_equal(programs[index].run(ids, which), expected):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_in_a_process_that_was_forked_off() -> None:
    """Its pool has no threads but the one that forked."""
    made = Lookup()
    expected = made.run([3, 1], [0, 1])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(made.run([3, 1], [0, 1])))
    child.start()
    assert ours.poll(30), "the pool waits for threads that are not there"
    assert np.array_equal(ours.recv(), expected)
    child.join()


def test_too_many_rows_are_refused_and_cost_nothing() -> None:
    made = Lookup()
    before = made.run([1], [0])
    with pytest.raises(OutOfMemory, match="forward of this size"):
        made.program.run({"rows": 1 << 50, "picked": 1}, {"ids": [1], "which": [0]}, 2)
    assert np.array_equal(made.run([1], [0]), before)


def test_columns_of_columns() -> None:
    assert Columns(3, 8, 40).part(8, 16) == Columns(3, 16, 16)


def test_a_buffer_that_lies_where_another_was_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(Packed())
    narrow, wide = program.buffer("a", 4), program.buffer("b", 8)
    program.run({"a": 6, "b": 6}, {}, 1)
    memory = np.zeros(64, dtype=np.float32)  # that one gave back, and the other got
    free = program._library.paceline_free
    place = SimpleNamespace(paceline_read=lambda *_: memory.ctypes.data, paceline_free=free)
    monkeypatch.setattr(program, "_library", place)
    assert program.read(narrow, 6).shape == (6, 4)
    assert program.read(wide, 6).shape == (6, 8)

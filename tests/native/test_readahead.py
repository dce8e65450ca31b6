"""Reading ahead: what is read is what comes next, by nobody twice, and never what is gone."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.native

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

PAGE = mmap.PAGESIZE
MOST_BYTES, MOST_SPANS = 16 << 20, 128


class Span(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("bytes", ctypes.c_int64))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    assert COMPILER is not None
    native = Path(paceline.native.__file__).parent
    path = tmp_path_factory.mktemp("ahead") / "ahead.so"
    sources = [
        str(native / "threads/readahead.cpp"),
        str(Path(__file__).with_name("readahead.cpp")),
    ]
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", f"-I{native}"]
    subprocess.run([COMPILER, *flags, *sources, "-o", str(path)], check=True)
    return str(path)


def loaded(path: str) -> Any:
    found = ctypes.CDLL(path)
    found.trace_new.restype = found.readahead_new.restype = ctypes.c_void_p
    found.trace_run.restype = found.readahead_read.restype = ctypes.c_int64
    return found


class Memory:
    """Pages that were never read."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.map = mmap.mmap(-1, pages * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        holder = ctypes.c_char.from_buffer(self.map)
        self.at = ctypes.addressof(holder)
        del holder  # else the map could not be closed

    def span(self, first: int = 0, pages: int | None = None) -> tuple[int, int]:
        count = self.pages - first if pages is None else pages
        return self.at + first * PAGE, count * PAGE


class Reading:
    def __init__(self, path: str) -> None:
        self.library = loaded(path)
        self.readahead = ctypes.c_void_p(self.library.readahead_new())
        self.traces: list[ctypes.c_void_p] = []

    def trace(self, *spans: tuple[int, int]) -> ctypes.c_void_p:
        made = ctypes.c_void_p(self.library.trace_new())
        self.traces.append(made)
        self.known(made, *spans)
        return made

    def known(self, trace: ctypes.c_void_p, *spans: tuple[int, int]) -> list[tuple[int, int]]:
        given = (Span * max(len(spans), 1))(*spans)
        found = (Span * max(len(spans), 1))()
        count = self.library.trace_run(trace, ctypes.c_int64(len(spans)), given, found)
        return [(each.at, each.bytes) for each in found[:count]]

    def turns(self, *traces: ctypes.c_void_p) -> None:
        for trace in traces:
            self.library.readahead_turn(self.readahead, trace)

    def read(self, reader: int = 0, readers: int = 1, *, stop: bool = False) -> int:
        return int(self.library.readahead_read(self.readahead, reader, readers, int(stop)))

    def forget(self, trace: ctypes.c_void_p) -> None:
        self.library.readahead_forget(self.readahead, trace)

    def close(self) -> None:
        for trace in self.traces:
            self.library.trace_free(trace)
        self.library.readahead_free(self.readahead)


@pytest.fixture
def reading(library: str) -> Iterator[Reading]:
    made = Reading(library)
    yield made
    made.close()


def test_what_lies_together_is_one_span_and_nothing_is_noted_twice(reading: Reading) -> None:
    trace = reading.trace()
    noted = [(1000, 50), (1050, 20), (3000, 10), (1000, 50), (1060, 5), (3010, 5)]
    assert reading.known(trace, *noted) == [(1000, 70), (3000, 15)]
    assert reading.known(trace, (70, 5)) == [(70, 5)]  # another run begins anew


def test_no_more_is_noted_than_can_be_read(reading: Reading) -> None:
    trace = reading.trace()
    large = [(index << 30, MOST_BYTES // 2) for index in range(1, 5)]
    assert reading.known(trace, *large) == large[:2]
    many = [(index << 20, 64) for index in range(1, 300)]
    assert reading.known(trace, *many) == many[:MOST_SPANS]


def test_what_follows_is_taken_to_be_what_followed(reading: Reading) -> None:
    target, draft, other = Memory(31), Memory(7), Memory(3)
    programs = [reading.trace(memory.span()) for memory in (target, draft, other)]
    reading.turns(*programs[:2])
    assert reading.read() == 0  # nothing has followed the draft yet
    reading.turns(programs[0])
    assert reading.read() == 7
    reading.turns(programs[1])
    assert reading.read() == 31
    reading.turns(programs[2])
    assert reading.read() == 0  # nothing has followed that one
    reading.turns(programs[1], programs[2], programs[1])
    assert reading.read() == 3  # after the draft came the other


def test_readers_share(reading: Reading) -> None:
    memory = Memory(31)
    trace = reading.trace(memory.span(0, 10), memory.span(20, 11))
    reading.turns(trace, trace)
    shares = [reading.read(reader, 3) for reader in range(3)]
    assert sum(shares) == 21
    assert min(shares) >= 6


def test_a_program_that_begins_stops_readers(reading: Reading) -> None:
    trace = reading.trace(Memory(9).span())
    reading.turns(trace, trace)
    assert reading.read(stop=True) == 0


def test_what_was_forgotten_is_not_read(reading: Reading) -> None:
    memory, kept = Memory(9), Memory(4)
    gone, trace = reading.trace(memory.span()), reading.trace(kept.span())
    reading.turns(gone, trace, gone, trace)
    reading.forget(gone)
    assert reading.read() == 0
    reading.turns(trace)
    assert reading.read() == 4  # which follows itself now


def forget_while_it_is_read(path: str) -> None:
    loaded(path).readahead_forget_while_it_is_read(2000, ctypes.c_int64(64 * PAGE))


def test_memory_can_be_freed_once_it_is_forgotten(library: str) -> None:
    """In a process of its own, which would not survive it."""
    worker = multiprocessing.get_context("spawn").Process(
        target=forget_while_it_is_read, args=(library,)
    )
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0

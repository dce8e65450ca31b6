"""Sounds that come in parts: each row is made once, as one masked pass over all of it makes it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_whisper import WhisperWeights, sound, tiny_whisper

from paceline.core.target import HearsOn, Rows
from paceline.errors import InvalidOption, OutOfMemory
from paceline.runtimes.cpu import encoder
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

ROWS = 75
CHUNKS = (1, 2, 7, 15, 50, 75)


def make(kind: str, precision: str = "file", **changes: Any) -> Any:
    config = tiny_whisper(**changes)
    weights = WhisperWeights(config, "F32" if precision == "fp32" else "F16")
    if kind == "reference":
        return ReferenceTarget(config, weights, precision)
    return CpuTarget(config, weights, precision, kv_tokens=1024, threads=2)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def target(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def sees(chunk: int, begin: int = 0, end: int = ROWS) -> np.ndarray:
    """The rows that each row of some sees: its chunk's and those before."""
    return np.minimum((np.arange(begin, end) // chunk + 1) * chunk, end)


def in_parts(target: Any, frames: np.ndarray, chunk: int, ends: list[int]) -> Any:
    heard = None
    for begin, end in pairwise([0, *ends]):
        heard = target.hear(frames[2 * begin : 2 * end], sees(chunk, begin, end), heard)
    return heard


def logits(target: Any, heard: Any) -> np.ndarray:
    """What a text makes of all rows of a memory."""
    cache = target.open_to(heard.memory)
    found: np.ndarray = target.forward([Rows.draft(cache, [5, 40, 13])])[0].logits.copy()
    target.release(cache)
    return found


def memory_rows(target: Any, heard: Any) -> list[np.ndarray]:
    """All keys and values that were written, by row of the sound."""
    memory = heard.memory
    if isinstance(target, ReferenceTarget):
        return [memory.data[:, :, row].copy() for row in range(memory.length)]
    found = []
    for row in range(memory.length):
        block, place = memory.blocks[row // encoder.BLOCK], row % encoder.BLOCK
        keys, values = memory.pool.slabs[0].token(block, place)
        found.append(np.stack([keys, values], axis=1))
    return found


def equal(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunk_by_chunk_is_the_masked_pass(target: Any, chunk: int) -> None:
    frames = sound(1)
    whole = target.hear(frames, sees(chunk))
    parts = in_parts(target, frames, chunk, [*range(chunk, ROWS, chunk), ROWS])
    assert equal(memory_rows(target, whole), memory_rows(target, parts))
    assert np.array_equal(logits(target, whole), logits(target, parts))
    some = in_parts(target, frames, chunk, sorted({chunk, ROWS}))
    assert equal(memory_rows(target, whole), memory_rows(target, some))
    for each in (whole, parts, some):
        target.let_go(each)


@pytest.mark.parametrize("chunk", [7, 15])
def test_kernels_make_the_rows_of_the_reference(chunk: int) -> None:
    for precision in ("file", "fp32", "int8"):
        found = []
        for kind in ("reference", "cpu"):
            target = make(kind, precision)
            found.append(memory_rows(target, target.hear(sound(2), sees(chunk))))
        assert equal(*found)


def test_a_mask_that_leaks_the_future_is_no_stream(target: Any) -> None:
    frames, chunk = sound(1), 15
    parts = in_parts(target, frames, chunk, [*range(chunk, ROWS, chunk), ROWS])
    rows = memory_rows(target, parts)
    for leak in (1, chunk):
        ahead = target.hear(frames, np.minimum(sees(chunk) + leak, ROWS))
        found = memory_rows(target, ahead)
        apart = [not np.array_equal(a, b) for a, b in zip(rows, found, strict=True)]
        assert all(apart[: ROWS - chunk])
    assert not equal(rows, memory_rows(target, target.hear(frames, np.full(ROWS, ROWS))))


def test_later_sound_changes_no_row_before(target: Any) -> None:
    frames, chunk = sound(1), 15
    changed = frames.copy()
    changed[2 * 45 :] = sound(9)[2 * 45 :]
    own, other = (memory_rows(target, target.hear(each, sees(chunk))) for each in (frames, changed))
    same = [np.array_equal(a, b) for a, b in zip(own, other, strict=True)]
    assert same == [True] * 45 + [False] * 30


def test_one_part_that_sees_itself_is_the_usual_memory(target: Any) -> None:
    frames = sound(3, 64)
    heard = target.hear(frames, np.full(32, 32))
    usual = target.encode(frames)

    class Usual:
        memory = usual

    assert equal(memory_rows(target, heard), memory_rows(target, Usual))


def test_texts_keep_what_they_look_at_while_the_sound_grows(target: Any) -> None:
    assert isinstance(target, HearsOn)
    frames = sound(4)
    heard: Any = target.hear(frames[:40], sees(20, 0, 20))
    before, cache = logits(target, heard), target.open_to(heard.memory)
    kept = target.fork(heard.memory)
    heard = target.hear(frames[40:90], sees(20, 20, 45), heard)
    later = target.forward([Rows.draft(cache, [5, 40, 13])])[0].logits
    assert np.array_equal(before, later)
    target.let_go(heard)
    again = target.forward([Rows.draft(target.open_to(kept), [5, 40, 13])])[0].logits
    assert np.array_equal(before, again)


def test_more_layers_of_the_encoder_than_of_the_decoder() -> None:
    for kind in ("reference", "cpu"):
        target = make(kind, encoder_layers=3, decoder_layers=1)
        whole = target.hear(sound(5), sees(15))
        parts = in_parts(target, sound(5), 15, [30, ROWS])
        assert equal(memory_rows(target, whole), memory_rows(target, parts))


def test_rows_that_would_see_what_has_not_come_are_refused(target: Any) -> None:
    for wrong in (np.full(10, 11), np.arange(10)):
        with pytest.raises(InvalidOption, match="none that come later"):
            target.hear(sound(1)[:20], wrong)
    heard = target.hear(sound(1)[:140], sees(10, 0, 70))
    with pytest.raises(InvalidOption, match="up to 10 behind 140, of 80 mels, not 20 of 80"):
        target.hear(sound(1)[:20], sees(10, 70, 80), heard)
    with pytest.raises(InvalidOption, match="not 3 of 80"):
        target.hear(sound(1)[:3], np.full(1, 71), heard)


def test_sounds_have_room_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_MEMORIES", 2)
    target: Any = make("cpu")
    pool = target._writer.pool
    whole = pool.free
    first, second = (target.hear(sound(seed), sees(15)) for seed in (1, 2))
    with pytest.raises(OutOfMemory, match="no room for another sound"):
        target.hear(sound(3), sees(15))
    target.let_go(first)
    beside = target.encode(sound(3))  # another writer, the same room
    target.let_go(second)
    target.release(beside)
    assert pool.free == whole
    assert target._grower._own.free == target._grower._own.blocks

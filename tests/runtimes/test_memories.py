"""Memories of sounds: the kernels beside the reference, texts that share one, and the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_whisper import WhisperWeights, sound, tiny_whisper

from paceline.core.target import Listens, Rows
from paceline.core.tree import chain
from paceline.core.types import ROOT, TokenTree
from paceline.errors import InvalidOption, OutOfMemory
from paceline.runtimes.cpu import encoder
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

TEXT = [5, 40, 13, 2, 60, 31]
TREE = TokenTree(np.array([7, 8, 9, 7]), np.array([ROOT, 0, ROOT, 2]))


def cpu(kind: str = "F16", precision: str = "file", **options: Any) -> CpuTarget:
    config = tiny_whisper()
    options = {"threads": 2, "kv_tokens": 1024} | options
    return CpuTarget(config, WhisperWeights(config, kind), precision, **options)


@pytest.fixture(scope="module")
def target() -> CpuTarget:
    return cpu()


def logits(target: Any, frames: np.ndarray, text: list[int] = TEXT) -> np.ndarray:
    memory = target.encode(frames)
    cache = target.open_to(memory)
    rows = Rows.draft(cache, text, TREE, wanted=np.arange(len(text) + len(TREE)))
    found: np.ndarray = target.forward([rows])[0].logits.copy()
    target.release(cache)
    target.release(memory)
    return found


@pytest.mark.parametrize("frames", [150, 64, 2])
@pytest.mark.parametrize(
    ("kind", "precision"), [("F16", "file"), ("F32", "fp32"), ("F32", "int8"), ("F16", "int4")]
)
def test_logits_are_those_of_the_reference(kind: str, precision: str, frames: int) -> None:
    config = tiny_whisper()
    reference = ReferenceTarget(config, WhisperWeights(config, kind), precision)
    found = logits(cpu(kind, precision), sound(1, frames))
    assert np.array_equal(found, logits(reference, sound(1, frames)))
    assert np.isfinite(found).all()


def test_a_sound_of_128_mels_is_heard() -> None:
    config, frames = tiny_whisper(num_mel_bins=128), np.resize(sound(3), (60, 128))
    weights = WhisperWeights(config)
    own = CpuTarget(config, weights, "fp32", kv_tokens=1024, threads=1)
    assert np.array_equal(
        logits(own, frames), logits(ReferenceTarget(config, weights, "fp32"), frames)
    )


def test_a_batch_of_sounds_is_each_alone(target: CpuTarget) -> None:
    assert isinstance(target, Listens)
    lengths = (150, 20, 90)
    alone = [logits(target, sound(seed, n)) for seed, n in enumerate(lengths)]
    memories = [target.encode(sound(seed, n)) for seed, n in enumerate(lengths)]
    caches = [target.open_to(each) for each in memories]
    wanted = np.arange(len(TEXT) + len(TREE))
    together = target.forward([Rows.draft(each, TEXT, TREE, wanted=wanted) for each in caches])
    assert all(np.array_equal(a.logits, b) for a, b in zip(together, alone, strict=True))
    assert not np.array_equal(alone[0], alone[1])
    for each in (*caches, *memories):
        target.release(each)


def test_a_text_in_parts_has_the_logits_of_the_whole(target: CpuTarget) -> None:
    whole = logits(target, sound(1))[: len(TEXT)]
    memory = target.encode(sound(1))
    cache = target.open_to(memory)
    target.release(memory)  # the text holds what it looks at
    target.encode(sound(2))
    target.prefill(cache, TEXT[:2])
    fork = target.fork(cache)
    draft = target.forward([Rows.draft(cache, TEXT[2:3], chain(TEXT[3:]))])[0].logits.copy()
    assert np.array_equal(draft, whole[2:])
    target.keep(cache, 1, [0])
    target.release(cache)
    assert np.array_equal(target.forward([Rows.draft(fork, TEXT[2:3])])[0].logits, whole[2:3])


def test_texts_of_other_sounds_share_no_prefix(target: CpuTarget) -> None:
    text = [*range(1, 50)]
    first, second = target.encode(sound(1)), target.encode(sound(2))
    cache = target.open_to(first)
    target.prefill(cache, text)
    cache.publish(text, ended=True)
    other = target.open_to(second)
    other.share(text)
    assert other.length == 0
    for each in (cache, other, first, second):
        target.release(each)


def test_memories_end_with_their_last_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_MEMORIES", 2)
    target = cpu()
    pool = target._writer.pool  # type: ignore[union-attr]
    whole = pool.free
    first, second = target.encode(sound(1)), target.encode(sound(2))
    text = target.open_to(first)
    with pytest.raises(OutOfMemory, match="no room for another sound"):
        target.encode(sound(3))
    target.release(first)
    with pytest.raises(OutOfMemory):
        target.encode(sound(3))
    target.release(text)
    third = target.encode(sound(3))
    target.release(second)
    target.release(third)
    assert pool.free == whole


def test_what_is_no_sound_is_refused(target: CpuTarget) -> None:
    with pytest.raises(InvalidOption, match="writes down sound"):
        target.open()
    with pytest.raises(InvalidOption, match="up to 150, of 80 mels, not 152 of 80"):
        target.encode(sound(1, 152))

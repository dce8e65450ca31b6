"""What `benchmarks.ragged` counts of a batch's steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from benchmarks.ragged import watched


def test_steps_are_noted_by_length_and_gain() -> None:
    texts = [SimpleNamespace(tokens=[0] * size) for size in (4, 4, 2)]
    gains = iter([(1, 1, 1), (2, 1, 3), (1,)])

    def step(sequences: list[SimpleNamespace]) -> str:
        for each, count in zip(sequences, next(gains), strict=True):
            each.tokens += [0] * count
        return "commits"

    engine = SimpleNamespace(decoder=SimpleNamespace(step=step))
    seen = watched(engine)
    assert engine.decoder.step(texts) == "commits"
    assert engine.decoder.step(texts) == "commits"
    assert engine.decoder.step(texts[:1]) == "commits"
    assert [each[:3] for each in seen] == [(3, False, True), (3, False, False), (1, True, True)]
    # 5, 5, 3 tokens in rows of 5; 7, 6, 6 in rows of 7; one row alone has no padding.
    assert [each[3] for each in seen] == pytest.approx([2 / 15, 2 / 21, 0])


def test_equal_lengths_are_told() -> None:
    pair = [SimpleNamespace(tokens=[0, 1]), SimpleNamespace(tokens=[2, 3])]
    engine = SimpleNamespace(decoder=SimpleNamespace(step=lambda sequences: None))
    seen = watched(engine)
    engine.decoder.step(pair)
    engine.decoder.step([])
    assert seen == [(2, True, True, 0.0)], "a step of prompts alone is none of drafts"

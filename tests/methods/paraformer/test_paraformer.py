"""Paraformer over a Whisper: what fires, one pass of the decoder, texts of plain decoding."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.drafter_context import context
from tests.methods.gad.heard import CONFIG, cpu, opened, reference, saved, trained
from tests.methods.gad.test_gad import engine, texts

from paceline.drafters.base import NoDrafter
from paceline.errors import InvalidOption
from paceline.lab.training.setup import TrainingSetup
from paceline.methods.gad.transcript import rows_of_sound
from paceline.methods.paraformer.drafter import ParaformerDrafter, fired
from paceline.methods.paraformer.firing import Firing
from paceline.methods.paraformer.training import shares
from paceline.verifiers.matching import Coupled


class Late(Firing):
    """The control: a sum of 1 waits for more."""

    def _fires(self, held: float) -> bool:
        return held > 1


def pushed(kind: type[Firing], weights: np.ndarray, rows: np.ndarray, cuts: Any) -> list[Any]:
    """What each part of the rows emits, and the end."""
    firing, ends = kind(rows.shape[1]), [0, *sorted(cuts), len(rows)]
    found = [firing.push(weights[a:b], rows[a:b]) for a, b in pairwise(ends)]
    return [*found, firing.end()]


def quarters(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-8, 8, (count, 3)).astype(np.float32)
    return rng.integers(0, 5, count) / 4, rows


@pytest.mark.parametrize("seed", range(8))
def test_parts_emit_what_the_whole_does_and_as_soon_as_weights_reach_one(seed: int) -> None:
    rng, (weights, rows) = np.random.default_rng(seed), quarters(seed)
    cuts = rng.integers(0, len(rows), 7)
    for kind in (Firing, Late):
        parts, whole = pushed(kind, weights, rows, cuts), pushed(kind, weights, rows, ())
        joined = [each for part in parts for each in part]
        assert np.array_equal(joined, [each for part in whole for each in part])
        behind = np.cumsum([len(part) for part in parts[:-1]])
        reached = np.concatenate([[0], np.cumsum(weights)])[[*sorted(cuts), len(rows)]]
        on_time = np.array_equal(behind, np.floor(reached))
        assert on_time or kind is Late
    steps = [pushed(kind, weights, rows, range(len(rows))) for kind in (Firing, Late)]
    assert [len(each) for each in steps[0]] != [len(each) for each in steps[1]]


def test_it_fires_as_often_as_weights_sum_to_and_each_time_of_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.uniform(0, 1, rng.integers(1, 80))
        found = [
            each
            for part in pushed(Firing, weights, np.ones((len(weights), 1)), ())
            for each in part
        ]
        assert abs(len(found) - round(weights.sum())) <= 1
        assert np.allclose(found, 1, atol=1e-9)
    nothing = pushed(Firing, np.array([0.25]), np.ones((1, 1)), ())
    tail = pushed(Firing, np.array([0.5]), np.full((1, 1), 3.0), ())
    assert (nothing, tail[1][0].tolist()) == ([[], []], [3.0])


@pytest.mark.parametrize("seed", range(4))
def test_training_fires_as_drafting_does(seed: int) -> None:
    weights, rows = quarters(seed)
    weights[0] += 1 - weights.sum() % 1  # a whole number, so that nothing is scaled
    weights[0] %= 1.0
    count = round(weights.sum())
    assert count == weights.sum()
    found = [each for part in pushed(Firing, weights, rows, ()) for each in part]
    share = shares(torch.from_numpy(weights), count)
    assert torch.equal(share.sum(1), torch.ones(count).double())
    assert np.allclose(share.numpy() @ rows, found, atol=1e-9)
    twice = shares(torch.from_numpy(weights / 2), count)
    assert torch.allclose(twice, share)
    assert shares(torch.from_numpy(weights), 0).shape == (0, len(rows))


def drafter(folder: Path, target: Any = None) -> ParaformerDrafter:
    options = {"weights": saved(folder, "paraformer")}
    return ParaformerDrafter.create(context(target or cpu(), model="tiny", options=options))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_transcripts_are_those_of_the_reference(precision: str, tmp_path: Path) -> None:
    found = []
    for target in (cpu(precision), reference(precision)):
        made, own = drafter(tmp_path, target), []
        for seed in range(3):
            cache = opened(target, seed)
            own.append(list(made.transcript(rows_of_sound(target, cache), cache)))
            target.release(cache)
        found.append(own)
    assert found[0] == found[1]
    assert len({tuple(each) for each in found[0]}) == 3
    assert max(map(len, found[0])) > 8  # more than one block


def test_the_decoder_passes_once_whatever_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, cache, passes = drafter(tmp_path), opened(cpu(), 1), []
    draft = made._runner.draft
    monkeypatch.setattr(
        made._runner, "draft", lambda parts, depth: passes.append(parts) or draft(parts, depth)
    )
    emitted = np.random.default_rng(0).normal(size=(30, CONFIG.hidden_size)).astype(np.float32)
    for count in (1, 8, 9, 30):
        assert len(made.said(emitted[:count], cache)) == count
    assert [len(each) for each in passes] == [1, 1, 2, 4]
    # A block does not see another, nor who else is in the pass.
    assert made.said(emitted[:8], cache) == made.said(emitted, cache)[:8]
    assert made.said(emitted[:0], cache) == []
    assert len(passes) == 6
    cpu().release(cache)


def test_texts_are_those_without_drafts(tmp_path: Path) -> None:
    for temperature in (0.0, 1.0):
        plain, none = texts(engine(NoDrafter(), Coupled()), temperature)
        assert none == 0
        for batch in (1, 3):
            assert texts(engine(drafter(tmp_path), Coupled(), batch), temperature)[0] == plain


def test_a_transcript_that_is_right_is_followed_between_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = texts(engine(NoDrafter(), Coupled()), 0.0)
    made, by_rows = drafter(tmp_path), {}
    for seed, text in enumerate(plain):
        cache = opened(cpu(), seed)
        by_rows[rows_of_sound(cpu(), cache).tobytes()] = text
        cpu().release(cache)
    monkeypatch.setattr(made, "transcript", lambda rows, _: by_rows[rows.tobytes()])
    found, stood = texts(engine(made, Coupled()), 0.0)
    assert found == plain
    assert stood > 60
    # Words alone are followed in a text that has times.
    cache, words = opened(cpu(), 0), [5, 9, 7, 30, 12, 11, 8]
    monkeypatch.setattr(made, "transcript", lambda *_: words)
    sequence: Any = type("Sequence", (), {"id": 3, "cache": cache, "prompt_length": 1})()
    sequence.speculation = type("Speculation", (), {"marks": 60})()
    made.open(sequence)
    made._followers[3].read([41, 63, *words[:3], 61, 62], 1)
    assert list(made._followers[3].next(4)) == words[3:]
    made.close(sequence)
    cpu().release(cache)


def test_silence_fires_nothing_and_says_nothing(tmp_path: Path) -> None:
    made, cache = drafter(tmp_path), opened(cpu(), 0)
    parameters = dict(made._trained.parameters)
    parameters["fire.bias"] = np.full(1, -50.0, np.float32)
    rows = rows_of_sound(cpu(), cache)
    assert fired(parameters, rows).shape == (0, CONFIG.hidden_size)
    parameters["fire.bias"] = np.full(1, 50.0, np.float32)
    assert len(fired(parameters, rows)) == len(rows)
    cpu().release(cache)


def test_other_weights_and_texts_alone_are_refused(tmp_path: Path) -> None:
    options = {"weights": saved(tmp_path, "gad-ctc")}
    with pytest.raises(InvalidOption, match="holds network 'gad-ctc'"):
        ParaformerDrafter.create(context(cpu(), model="tiny", options=options))
    setup: Any = object.__new__(TrainingSetup)
    setup.source = type("Source", (), {"config": CONFIG})()
    with pytest.raises(InvalidOption, match="use `paceline train paraformer`"):
        setup.network("paraformer")
    assert trained("paraformer").network.looks

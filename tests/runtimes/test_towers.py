"""Towers and projectors against transformers: rows of a picture, and texts that have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.helpers.tiny_vision import IMAGE, KINDS, pixels_of, seeing

from paceline.core.target import Rows
from paceline.errors import ModelError
from paceline.models.pictures import Picture
from paceline.models.source import DirectorySource
from paceline.models.towers import Vision
from paceline.models.vision import VisionWeights, vision_of
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.cpu.tower import CpuTower
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.reference.tower import ReferenceTower

BEFORE, BEHIND = [1, 40, 41], [50, 51, 52]


class Seeing(NamedTuple):
    directory: Path
    theirs: Any
    vision: Vision
    weights: VisionWeights


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    directory = tmp_path_factory.mktemp(request.param)
    theirs = seeing(request.param, directory)
    found = vision_of(directory, 64)
    assert found is not None
    return Seeing(directory, theirs, *found)


def picture(seed: int = 0) -> Picture:
    rng = np.random.default_rng(seed)
    return Picture(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))


def read(reading: Iterator[Any]) -> np.ndarray:
    found: np.ndarray = next(each for each in reading if each is not None)
    return found


def expected(model: Seeing, patches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the picture, and logits of the text around it."""
    tower = model.vision.tower
    pixels = pixels_of(patches, tower.grid, tower.patch)
    ids = torch.tensor([[*BEFORE, *[IMAGE] * model.vision.rows, *BEHIND]])
    inner, more = model.theirs.model, {}
    if model.theirs.config.model_type in ("smolvlm", "idefics3"):
        pixels = pixels[None]
    if model.theirs.config.model_type == "gemma3":
        more["token_type_ids"] = (ids == IMAGE).long()
    with torch.no_grad():
        rows = inner.get_image_features(pixels).pooler_output
        rows = torch.cat(list(rows)) if isinstance(rows, list | tuple) else rows
        logits = model.theirs(input_ids=ids, pixel_values=pixels, **more).logits[0]
    return rows.reshape(model.vision.rows, -1).numpy(), logits.numpy()


def logits_of(target: Any, vision: Vision, rows: np.ndarray) -> np.ndarray:
    run = target.rows.hold(b"picture", len(rows))
    target.rows.fill(run, rows)
    ids = [*BEFORE, *run.ids, *BEHIND]
    cache = target.open()
    if not vision.together:
        target.prefill(cache, ids[:-1])
        [out] = target.forward([Rows.draft(cache, ids[-1:])])
        return np.asarray(out.logits[0])
    sees = np.tri(len(ids), dtype=np.bool_)
    sees[len(BEFORE) : -len(BEHIND), len(BEFORE) : -len(BEHIND)] = True
    block = Rows.block(cache, ids, np.arange(len(ids)), sees, num_new=len(ids))
    [out] = target.forward([block])
    return np.asarray(out.logits[-1])


def test_rows_and_texts_are_those_of_transformers(model: Seeing) -> None:
    patches = picture().patches(model.vision)
    rows, logits = expected(model, patches)
    found = read(ReferenceTower(model.vision, model.weights).reading(patches))
    np.testing.assert_allclose(found, rows, rtol=0, atol=1e-4 * np.abs(rows).max())
    source = DirectorySource(model.directory)
    target = ReferenceTarget(source.config, source.weights(), "fp32")
    own = logits_of(target, model.vision, found)
    np.testing.assert_allclose(own, logits[-1], rtol=0, atol=1e-4 * np.abs(logits).max())
    other = logits_of(
        ReferenceTarget(source.config, source.weights(), "fp32"), model.vision, 0 * found
    )
    assert np.abs(other - own).max() > 1e-2 * np.abs(logits).max()  # the picture matters


def test_the_native_tower_has_the_references_bits(model: Seeing) -> None:
    patches = picture().patches(model.vision)
    expected_rows = read(ReferenceTower(model.vision, model.weights).reading(patches))
    for threads in (1, 2):
        tower = CpuTower(model.vision, model.weights, threads=threads)
        # Another picture comes between its pieces.
        slow, other = tower.reading(patches), tower.reading(picture(1).patches(model.vision))
        assert next(slow) is None
        assert next(other) is None
        np.testing.assert_array_equal(read(slow), expected_rows)
        assert np.abs(read(other) - expected_rows).max() > 1e-3
    source = DirectorySource(model.directory)
    native = CpuTarget(source.config, source.weights(), "fp32", kv_tokens=256, threads=1)
    reference = ReferenceTarget(source.config, source.weights(), "fp32")
    np.testing.assert_array_equal(
        logits_of(native, model.vision, expected_rows),
        logits_of(reference, model.vision, expected_rows),
    )


def test_sixteen_patches_may_become_a_row(model: Seeing) -> None:
    # As of SmolVLM and Gemma 3 at their sizes: each patch of a square is an input of its own.
    if model.vision.projector != "gemma3":
        pytest.skip("whose matrix goes by the size of a square")
    vision = replace(model.vision, side=4)
    patches = picture().patches(vision)
    expected_rows = read(ReferenceTower(vision, model.weights).reading(patches))
    assert len(expected_rows) == 1
    found = read(CpuTower(vision, model.weights).reading(patches))
    np.testing.assert_array_equal(found, expected_rows)
    with pytest.raises(ModelError, match="no squares of 16"):
        replace(vision, side=16)

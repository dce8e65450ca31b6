"""Examples on disk: kept, resumed, and never mixed with those of other settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.methods.heads.training import ExampleStore, Labelled

SETTINGS = {"kind": "judge", "seed": 0}


def labelled(n: int, seed: int) -> Labelled:
    generator = np.random.default_rng(seed)
    return Labelled(generator.normal(size=(n, 3)).astype(np.float32), generator.normal(size=n))


def test_examples_survive_and_labelling_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "examples"
    store = ExampleStore(path, SETTINGS)
    store.add(labelled(2, 1))
    store.add(labelled(0, 2))
    store.save()
    again = ExampleStore(path, SETTINGS)
    assert again.done == 2
    again.add(labelled(3, 3))
    again.save()
    features, losses, prompts = ExampleStore(path, SETTINGS).examples()
    expected = [labelled(2, 1).features, labelled(3, 3).features]
    assert np.array_equal(features, np.concatenate(expected))
    assert losses.tolist() == [*labelled(2, 1).losses, *labelled(3, 3).losses]
    assert prompts.tolist() == [0, 0, 2, 2, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path / "examples", SETTINGS)
    store.add(labelled(1, 1))
    store.save()
    with pytest.raises(InvalidOption, match=r"other settings \(seed, width\)"):
        ExampleStore(tmp_path / "examples", {"kind": "judge", "seed": 1, "width": 2})


def test_damaged_files_and_empty_stores_are_named(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"x" * 50)
    with pytest.raises(InvalidOption, match="holds no labelled examples"):
        ExampleStore(tmp_path / "damaged", SETTINGS)
    store = ExampleStore(tmp_path / "new", SETTINGS)
    store.save()
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidOption, match="more prompts or other drafters"):
        store.examples()


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    store = ExampleStore(tmp_path / "no" / "folder", SETTINGS)
    store.add(labelled(1, 1))
    with pytest.raises(InvalidOption, match="cannot write"):
        store.save()

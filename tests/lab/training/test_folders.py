"""Several folders of training text as one data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.lab.training.data import Shards, Text, read_folders


def folder(path: Path, begin: int, model: str = "a", seed: str = "0") -> Path:
    shards = Shards(path, {"model": model, "seed": seed})
    tokens = (np.arange(begin + i, begin + i + 4, dtype=np.int64) for i in range(3))
    shards.write(0, [Text(i, each, 2) for i, each in enumerate(tokens)])
    return path


def test_texts_follow_one_another_and_are_numbered_anew(tmp_path: Path) -> None:
    folders = [folder(tmp_path / "a", 0), folder(tmp_path / "b", 100, seed="7")]
    texts, settings = read_folders(folders)
    assert [text.index for text in texts] == [0, 1, 2, 3, 4, 5]
    assert [int(text.tokens[0]) for text in texts] == [0, 1, 2, 100, 101, 102]
    assert settings == {"model": "a", "seed": "0; 7"}


def test_one_folder_is_as_it_was_written(tmp_path: Path) -> None:
    texts, settings = read_folders([folder(tmp_path / "a", 5)])
    assert [text.index for text in texts] == [0, 1, 2]
    assert settings == {"model": "a", "seed": "0"}


def test_folders_of_two_models_are_refused(tmp_path: Path) -> None:
    folders = [folder(tmp_path / "a", 0), folder(tmp_path / "b", 0, model="b")]
    with pytest.raises(InvalidOption, match="b were written by different models"):
        read_folders(folders)


def test_a_folder_named_twice_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", 0)
    with pytest.raises(InvalidOption, match="named twice"):
        read_folders([path, path.parent / "a" / "."])

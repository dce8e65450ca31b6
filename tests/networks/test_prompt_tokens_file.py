"""Prompt tokens on disk: what is written is read, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.errors import InvalidOption
from paceline.methods.ppd.prompt_tokens import PromptTokens, load_prompt_tokens, save_prompt_tokens

ROWS = np.arange(12, dtype=np.float32).reshape(2, 6)
GOOD = PromptTokens(ROWS, np.array([[0.5, 0.2], [0.3, 0.1]]), {"model": "0123", "command": "x"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ppd.safetensors"
    save_prompt_tokens(place, GOOD)
    return place


def test_what_is_written_is_read(path: Path) -> None:
    found = load_prompt_tokens(path, "0123", 6)
    np.testing.assert_array_equal(found.embeddings, ROWS)
    np.testing.assert_array_equal(found.accuracies, GOOD.accuracies)
    assert found.metadata == {"model": "0123", "command": "x", "network": "ppd"}
    assert [each.name for each in path.parent.iterdir()] == ["ppd.safetensors"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def other(path: Path) -> None:
    save_file({"embeddings": ROWS}, path, {"network": "medusa", "model": "0123"})


def written(**change: np.ndarray) -> Callable[[Path], None]:
    return lambda path: save_prompt_tokens(path, replace(GOOD, **change))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "there is no file"),
        (cut, "is damaged"),
        (other, "holds no prompt tokens"),
        (written(embeddings=np.full((2, 6), np.inf)), "impossible"),
        (written(embeddings=ROWS[:1]), "impossible"),
        (written(accuracies=np.array([[0.9, 0.2], [0.3, 0.1]])), "shares that cannot be"),
        (written(accuracies=np.array([[-0.1, 0.2], [0.3, 0.1]])), "shares that cannot be"),
        (written(embeddings=ROWS[:, :5].copy()), "another model"),
    ],
)
def test_anything_else_is_refused(path: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(path)
    with pytest.raises(InvalidOption, match=message):
        load_prompt_tokens(path, "0123", 6)


def test_tokens_of_another_model_are_refused(path: Path) -> None:
    with pytest.raises(InvalidOption, match="was trained for another model"):
        load_prompt_tokens(path, "4567", 6)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"cannot write .*nowhere"):
        save_prompt_tokens(tmp_path / "nowhere" / "ppd.safetensors", GOOD)

"""Weights that a file has in blocks: what is packed of them is what their floats give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.models.gguf import quantize
from paceline.networks.weights import Floats, load_network, shipped_file

QWEN = "2807449613cbb055"


@pytest.fixture(scope="module")
def floats() -> Floats:
    path = shipped_file("eagle3", QWEN)
    assert isinstance(path, Path)
    found = load_network(path).parameters
    assert isinstance(found, Floats)
    return found


def test_blocks_of_the_file_are_those_of_its_floats(floats: Floats) -> None:
    matrices = [name for name in floats if floats.blocks(name, "Q4_0") is not None]
    assert {"fuse", "layer.gate_up", "layer.down.residual"} <= {*matrices}
    for name in matrices:
        assert np.array_equal(quantize("Q4_0", floats[name]), floats.blocks(name, "Q4_0"))


def test_nothing_else_is_in_blocks(floats: Floats) -> None:
    assert floats.blocks("norm", "Q4_0") is None
    assert floats.blocks("fuse", "Q8_0") is None
    assert len(floats) == len([*floats])


def test_no_floats_are_made_to_look_for_a_name(floats: Floats, monkeypatch: Any) -> None:
    monkeypatch.setattr(Floats, "__getitem__", None)
    assert "fuse" in floats
    assert "nothing" not in floats

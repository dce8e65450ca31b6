"""Safetensors directories: dtypes, shards, damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.errors import ModelError
from paceline.models.weights import SafetensorsWeights

VALUES = np.array([[1.0, -2.5], [0.0, 3.140625]], dtype=np.float32)  # exact in bfloat16


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_plain_dtypes_become_float32(dtype: Any, tmp_path: Path) -> None:
    save_file({"w": VALUES.astype(dtype)}, tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path)
    assert "w" in weights
    assert weights["w"].dtype == np.float32
    np.testing.assert_array_equal(weights["w"], VALUES)


def write_raw(path: Path, kind: str, raw: bytes, shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": kind, "shape": shape, "data_offsets": [0, len(raw)]}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + raw)


def test_bfloat16_needs_no_framework(tmp_path: Path) -> None:
    upper = (VALUES.view(np.uint32) >> 16).astype("<u2")
    write_raw(tmp_path / "model.safetensors", "BF16", upper.tobytes(), [2, 2])
    np.testing.assert_array_equal(SafetensorsWeights(tmp_path)["w"], VALUES)


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", "F8_E4M3", b"1234", [4])
    with pytest.raises(ModelError, match="F8_E4M3"):
        SafetensorsWeights(tmp_path)["w"]


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    save_file({"a": VALUES}, tmp_path / "x-1.safetensors")
    save_file({"b": VALUES + 1}, tmp_path / "x-2.safetensors")
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = SafetensorsWeights(tmp_path)
    np.testing.assert_array_equal(weights["b"], weights["a"] + 1)


def test_damage_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        SafetensorsWeights(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({"w": VALUES}, path)
    whole = path.read_bytes()
    with pytest.raises(ModelError, match="no tensor other"):
        SafetensorsWeights(tmp_path)["other"]
    for size in (0, 5, 20, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="download it again"):
            SafetensorsWeights(tmp_path)["w"]
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ModelError, match="index"):
        SafetensorsWeights(tmp_path)

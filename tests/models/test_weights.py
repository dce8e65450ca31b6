"""Safetensors directories: dtypes, shards, canonical names, damage."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.helpers.tiny_model import random_tensors, save_directory, tiny_config

from paceline.errors import ModelError
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.weights import canonical_name, safetensors_weights

VALUES = np.array([[1.0, -2.5], [0.0, 3.140625]], dtype=np.float32)  # exact in bfloat16


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_plain_dtypes_become_float32(dtype: Any, tmp_path: Path) -> None:
    save_file({"w": VALUES.astype(dtype)}, tmp_path / "model.safetensors")
    weights = SafetensorsFiles(tmp_path)
    assert "w" in weights
    assert weights.read("w").dtype == np.float32
    np.testing.assert_array_equal(weights.read("w"), VALUES)


def write_raw(path: Path, kind: str, raw: bytes, shape: list[int]) -> None:
    header = json.dumps({"w": {"dtype": kind, "shape": shape, "data_offsets": [0, len(raw)]}})
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + raw)


def test_bfloat16_needs_no_framework(tmp_path: Path) -> None:
    upper = (VALUES.view(np.uint32) >> 16).astype("<u2")
    write_raw(tmp_path / "model.safetensors", "BF16", upper.tobytes(), [2, 2])
    np.testing.assert_array_equal(SafetensorsFiles(tmp_path).read("w"), VALUES)


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", "F8_E4M3", b"1234", [4])
    with pytest.raises(ModelError, match="F8_E4M3"):
        SafetensorsFiles(tmp_path).read("w")


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    save_file({"a": VALUES}, tmp_path / "x-1.safetensors")
    save_file({"b": VALUES + 1}, tmp_path / "x-2.safetensors")
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = SafetensorsFiles(tmp_path)
    np.testing.assert_array_equal(weights.read("b"), weights.read("a") + 1)


def test_matrices_are_views_of_the_file(tmp_path: Path) -> None:
    config = tiny_config("qwen2")
    weights = safetensors_weights(save_directory(tmp_path, config), config)
    for name, values in random_tensors(config).items():
        mine = canonical_name(name)
        np.testing.assert_array_equal(weights[mine], values)
        if values.ndim == 2:
            stored = weights.stored(mine)
            assert (stored.kind, stored.shape, stored.order) == ("F32", values.shape, None)
            assert stored.blocks[:].tobytes() == values.tobytes()
            assert not stored.blocks[:].flags.writeable
        else:
            with pytest.raises(ModelError, match="1 dimensions"):
                weights.stored(mine)


def test_damage_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        SafetensorsFiles(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({"model.norm.weight": VALUES[0]}, path)
    whole = path.read_bytes()
    with pytest.raises(ModelError, match="no tensor embed"):
        safetensors_weights(tmp_path, tiny_config())["embed"]
    for size in (0, 5, 20, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="download it again"):
            SafetensorsFiles(tmp_path)
    path.unlink()
    for index in ("{", '{"weight_map": {"w": 3}}', '{"weight_map": 3}', "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ModelError, match=r"index\.json is damaged"):
            SafetensorsFiles(tmp_path)


PLACE = '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "[" * 100_000,
        '{"w": [0, 8]}',
        '{"w": {}}',
        f'{{"w": {PLACE}, "w": {PLACE}}}',
        *(
            f'{{"w": {PLACE.replace(old, new)}}}'
            for old, new in [
                ('"F32"', "32"),
                ("[2]", "2"),
                ("[2]", "[-2]"),
                ("[2]", "[true]"),
                ("[2]", "[2.0]"),
                ("[2]", f"[{2**64}]"),
                ("[0, 8]", "[0, 8, 8]"),
                ("[0, 8]", "[8, 0]"),
                ("[0, 8]", "[-8, 8]"),
                ("[0, 8]", "[0, 9]"),
                ("[0, 8]", f"[{2**62}, {2**63}]"),
            ]
        ),
    ],
)
def test_nonsense_headers_are_refused(header: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(ModelError, match="safetensors file"):
        SafetensorsFiles(tmp_path)


def test_a_shape_that_its_bytes_do_not_fill(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", "F32", bytes(8), [2**40, 2])
    for read in (SafetensorsFiles(tmp_path).read, SafetensorsFiles(tmp_path).stored):
        with pytest.raises(ModelError, match="damaged at w"):
            read("w")


def test_20_000_mutated_headers(tmp_path: Path) -> None:
    """Each is read, or refused in one line, without memory beyond a few times the file's size."""
    rng, path = random.Random(0), tmp_path / "model.safetensors"
    save_file({"a": VALUES, "b": VALUES.astype(np.float16)}, path, metadata={"format": "pt"})
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    refused, worst = [], 0
    for index in range(20_000):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(min(header, len(raw)))
            kind = rng.randrange(4)
            if kind == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del raw[at : at + rng.randrange(1, 64)]
            elif kind == 2:
                raw[at:at] = rng.choice((b"9", b"-", b"[", b"]", b"e9", b'"', raw[at : at + 20]))
            else:
                raw[: rng.choice((4, 8))] = rng.randbytes(8)
        path.unlink()  # writing over a mapped file takes far longer
        path.write_bytes(raw)
        if index % 4 == 0:  # tracing takes several times as long
            tracemalloc.start()
        try:
            files = SafetensorsFiles(tmp_path)
            for name in files.index():
                files.read(name)
                files.stored(name)
        except ModelError as error:
            refused.append(str(error))
        worst = max(worst, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 5_000 < len(refused) < 19_900
    assert not [message for message in refused if "\n" in message]
    assert worst < 64 * 1024


def test_a_file_that_is_cut_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": VALUES, "b": VALUES}, path)
    files = SafetensorsFiles(tmp_path)
    np.testing.assert_array_equal(files.read("a"), VALUES)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ModelError, match="was changed while it was open"):
        files.read("b")
    path.unlink()  # what is mapped stays
    save_file({"a": VALUES}, path)
    files = SafetensorsFiles(tmp_path)
    files.read("a")
    path.unlink()
    np.testing.assert_array_equal(files.read("a"), VALUES)

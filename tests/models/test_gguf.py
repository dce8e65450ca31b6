"""GGUF files: header, names, the order of rotary rows, damage."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import FAMILIES, random_tensors, save_gguf, tiny_config

from paceline.errors import ModelError
from paceline.models.gguf import GGUFFile, GGUFWeights


@pytest.mark.parametrize("family", FAMILIES)
def test_config_and_weights_survive_the_round_trip(family: Any, tmp_path: Path) -> None:
    config, tensors = tiny_config(family), random_tensors(tiny_config(family))
    file = GGUFFile(save_gguf(tmp_path / "m.gguf", config))
    stored = replace(config, family="llama") if family == "mistral" else config
    assert replace(file.config, norm_eps=config.norm_eps) == stored
    assert file.config.norm_eps == pytest.approx(config.norm_eps)
    weights = GGUFWeights(file)
    for name, values in tensors.items():
        assert name in weights
        found = weights[name]
        assert found.dtype == np.float32
        assert found.flags.writeable
        tolerance = np.abs(values).max() / 127 if values.ndim == 2 else 0
        np.testing.assert_allclose(found, values, rtol=0, atol=tolerance)
    assert ("lm_head.weight" in weights) != config.tied_embeddings


def test_frequency_divisors_come_from_their_tensor(tmp_path: Path) -> None:
    config = replace(tiny_config(), rope_divisors=(1.0, 2.0, 4.0, 8.0))
    file = GGUFFile(save_gguf(tmp_path / "m.gguf", config))
    assert file.config.rope_divisors == config.rope_divisors


def test_fingerprint_depends_on_content_alone(tmp_path: Path) -> None:
    config = tiny_config()
    first, second = (GGUFFile(save_gguf(tmp_path / f"{x}.gguf", config)) for x in "ab")
    other = GGUFFile(save_gguf(tmp_path / "c.gguf", config, random_tensors(config, seed=1)))
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    weights = GGUFWeights(GGUFFile(save_gguf(tmp_path / "m.gguf", tiny_config())))
    for name in ("model.layers.9.mlp.up_proj.weight", "nonsense", ""):
        assert name not in weights
        with pytest.raises(ModelError, match="no tensor"):
            weights[name]


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = save_gguf(tmp_path / "m.gguf", tiny_config()).read_bytes()
    cut = tmp_path / "cut.gguf"
    names = random_tensors(tiny_config())
    for size in [0, 3, 10, 100, 1000, *range(2000, len(whole) - 32, 4001)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_all(cut, list(names))


def read_all(path: Path, names: list[str]) -> None:
    weights = GGUFWeights(GGUFFile(path))
    for name in names:
        weights[name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a model at all",
        b"GGUF" + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63),
        b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**62),
        b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 9, 1),
    ],
)
def test_nonsense_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        GGUFFile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        GGUFFile(tmp_path / "none.gguf")


def test_importing_models_imports_no_framework() -> None:
    heavy = "torch,transformers,openvino,gguf,jinja2,tokenizers,huggingface_hub"
    code = (
        "import sys, paceline.models.source, paceline.models.text\n"
        f"print([name for name in '{heavy}'.split(',') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"

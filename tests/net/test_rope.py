"""Positions of GGUF files are scaled as llama.cpp scales them.

Expected are its log-probabilities of the next token, for the tiny model that `save_gguf` writes.
It multiplies 8-bit activations, which moves them by up to 1.1 here; other positions by more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import save_gguf, tiny_config
from tests.net.files import cases

from paceline.core.target import Rows
from paceline.errors import ModelError
from paceline.models.source import GGUFSource
from paceline.runtimes.reference.target import ReferenceTarget

NEAR = 1.5


def distance(given: dict[str, Any], expected: dict[str, float], path: Path) -> float:
    config = replace(tiny_config(), rope_divisors=given.get("divisors"))
    source = GGUFSource(save_gguf(path / "m.gguf", config, entries=given["entries"]))
    target = ReferenceTarget(source.config, source.weights(), "fp32")
    tokens = given["tokens"] * given["times"]
    [read] = target.forward([Rows.draft(target.open(), tokens)])
    apart = read.logits[-1][list(map(int, expected))] - np.array(list(expected.values()))
    return float(np.abs(apart - apart.mean()).max())


@pytest.mark.parametrize(("given", "expected"), cases("rope"))
def test_logits_are_near_those_of_llama_cpp(
    given: dict[str, Any], expected: dict[str, float], tmp_path: Path
) -> None:
    assert distance(given, expected, tmp_path) < NEAR
    plain = tmp_path / "plain"
    plain.mkdir()
    if distance({**given, "entries": {}}, expected, plain) < NEAR:  # it would be seen otherwise
        found = [GGUFSource(path / "m.gguf").config for path in (tmp_path, plain)]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("entries", "named"),
    [
        ({"rope.scaling.type": "su"}, "'su'"),
        ({"rope.scaling.yarn_beta_fast": 16.0}, "yarn_beta_fast 16"),
        ({"rope.scaling.yarn_attn_factor": 2.0}, "yarn_attn_factor 2"),
        ({"rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"rope.scaling.alpha": 1000.0}, "rope.scaling.alpha 1000"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30"),
        ({"logit_scale": 0.25}, "logit_scale 0.25"),
        ({"embedding_scale": 12.0}, "embedding_scale 12"),
        ({"residual_scale": 0.2}, "residual_scale 0.2"),
        ({"attention.scale": 0.1}, "attention.scale 0.1"),
        ({"attention.causal": False}, "attention.causal False"),
        ({"attention.clamp_kqv": 8.0}, "attention.clamp_kqv 8"),
        ({"attention.max_alibi_bias": 8.0}, "max_alibi_bias 8"),
        ({"attention.sliding_window_pattern": [True, False]}, "sliding_window_pattern"),
        ({"use_parallel_residual": True}, "use_parallel_residual"),
        ({"expert_weights_scale": 2.5}, "expert_weights_scale 2.5"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    entries: dict[str, Any], named: str, tmp_path: Path
) -> None:
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config(), entries=entries))
    with pytest.raises(ModelError, match=named):
        source.config  # noqa: B018


def test_what_changes_nothing_is_read_over(tmp_path: Path) -> None:
    neutral: dict[str, Any] = {
        "attention.causal": True,
        "logit_scale": 1.0,
        "final_logit_softcapping": 0.0,
        "attention.scale": 0.0,
        "rope.scaling.finetuned": False,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_ext_factor": -1.0,
        "expert_weights_scale": 0.0,
        "tensor_data_layout": "Meta AI original pth",
        "some_note": "of no meaning",
    }
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config(), entries=neutral))
    assert source.config == GGUFSource(save_gguf(tmp_path / "p.gguf", tiny_config())).config

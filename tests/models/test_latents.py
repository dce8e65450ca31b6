"""Attention over latents, and experts chosen by groups: wrong wirings are seen, others refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.test_families import TOKENS, original
from tests.models.test_gpt_oss import difference, expected_of, logits_of

from paceline.core.target import Rows
from paceline.errors import ModelError
from paceline.models.config import Latents, ModelConfig
from paceline.models.families import gguf_config, hf_config
from paceline.models.ops import Experts
from paceline.models.source import DirectorySource
from paceline.models.weights import FileWeights
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.reference.target import ReferenceTarget

EXPERTS: dict[str, dict[str, Any]] = {
    "all groups": {"groups_used": 4},
    "a softmax": {"sigmoid": False},
    "no factor": {"factor": 1.0},
    "weights as they are": {"sum_to_one": False},
}
ROWS, VALUES, NORM = FileWeights._rows, FileWeights.__getitem__, ReferenceOps.norm


def halves(weights: Any, name: str) -> Any:
    """Rotary pairs as if they did not lie as neighbours."""
    rows = ROWS(weights, name)
    if not name.endswith(("q_b", "kv_a")):
        return rows
    heads = rows.reshape(1 if name.endswith("kv_a") else 4, -1).copy()
    heads[:, :16] = np.sort(heads[:, :16], axis=1)
    return heads.reshape(-1)


def others(weights: Any, name: str) -> Any:
    """Values by the matrix of the next head."""
    if name.endswith(".v"):
        *before, head, part = name.split(".")
        name = ".".join([*before, str((int(head) + 1) % 4), part])
    return ROWS(weights, name)


def unbiased(weights: Any, name: str) -> Any:
    values = VALUES(weights, name)
    return np.zeros_like(values) if name.endswith("router_offset") else values


def unnormed(ops: Any, x: Any, name: str, **more: Any) -> Any:
    return x if name.endswith("kv_a_norm") else NORM(ops, x, name, **more)


WRONG: dict[str, tuple[Any, str, Any]] = {
    "rotary pairs as halves": (FileWeights, "_rows", halves),
    "values of other heads": (FileWeights, "_rows", others),
    "experts chosen by their scores alone": (FileWeights, "__getitem__", unbiased),
    "latents without a norm": (ReferenceOps, "norm", unnormed),
}


@pytest.mark.parametrize("wrong", ["", *WRONG, *EXPERTS])
def test_wrong_wirings_are_seen(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_of(original("deepseek3", tmp_path))
    source = DirectorySource(tmp_path)
    config = source.config
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, **EXPERTS.get(wrong, {})))
    if wrong in WRONG:
        monkeypatch.setattr(*WRONG[wrong])
    found = logits_of(ReferenceTarget(config, source.weights(), "fp32"))
    assert difference(found, expected) < 1e-5 if not wrong else difference(found, expected) > 1e-2


@pytest.mark.parametrize("precision", ["file", "int8", "int4"])
def test_native_code_gives_the_bits_of_the_reference(precision: str, tmp_path: Path) -> None:
    original("deepseek3", tmp_path)
    source = DirectorySource(tmp_path)
    target = CpuTarget(source.config, source.weights(), precision, kv_tokens=128)
    reference = ReferenceTarget(source.config, source.weights(), precision)
    assert np.array_equal(logits_of(target), logits_of(reference))


def test_a_matrix_in_turned_bytes_is_the_turned_matrix(tmp_path: Path) -> None:
    original("glm-lite", tmp_path)
    weights = DirectorySource(tmp_path).weights()
    for head in range(4):
        for part, shape in (("k", (64, 32)), ("v", (64, 64))):
            name = f"layers.2.heads.{head}.{part}"
            stored = weights.stored(name)
            assert (stored.kind, stored.shape) == ("F32", shape)
            assert np.array_equal(stored.blocks.copy().view(np.float32), weights[name])


def test_a_draft_changes_nothing(tmp_path: Path) -> None:
    """The cache has one head of latents: a row alone gives the bits of one in a draft."""
    original("glm-lite", tmp_path)
    source = DirectorySource(tmp_path)
    target = CpuTarget(source.config, source.weights(), "int8", kv_tokens=128)
    drafted, cache = logits_of(target), target.open()
    target.prefill(cache, TOKENS[:5])
    for token, expected in zip(TOKENS[5:], drafted, strict=True):
        [found] = target.forward([Rows.draft(cache, [token])])
        assert np.array_equal(found.logits[0], expected)
        target.keep(cache, 1, [])


# As the config of GLM 4.7 Flash says it.
FLASH: dict[str, Any] = {
    "model_type": "glm4_moe_lite",
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "n_shared_experts": 1,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.8,
    "kv_lora_rank": 512,
    "q_lora_rank": 768,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}


def from_gguf(*tensors: str, **more: Any) -> ModelConfig:
    """Metadata as llama.cpp's converter writes it for that model; None leaves an entry out."""
    said = {
        "block_count": 47,
        "context_length": 202752,
        "embedding_length": 2048,
        "feed_forward_length": 10240,
        "attention.head_count": 20,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.q_lora_rank": 768,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 256,
        "attention.value_length_mla": 256,
        "expert_count": 64,
        "expert_used_count": 4,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_gating_func": 2,
        "expert_feed_forward_length": 1536,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.8,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
        "rope.dimension_count": 64,
        "rope.freq_base": 1_000_000.0,
        **more,
    }
    metadata = {f"deepseek2.{name}": value for name, value in said.items() if value is not None}
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("token_embd.weight", "output.weight", *tensors), (154880, 2048)
    )
    return gguf_config({"general.architecture": "deepseek2", **metadata}, shapes, {})


def test_the_published_model_is_read_from_both(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = hf_config(FLASH)
        assert not caplog.text, "one drafts"
        hf_config({**FLASH, "num_nextn_predict_layers": 2})
    assert "layers of the model that would draft are not read: 1" in caplog.text
    assert replace(from_gguf(), family=found.family) == found
    assert found.latents == Latents(768, 512, 64, 192, 256)
    assert (found.kv_heads, found.head_dim, found.rotated) == (1, 576, 64)
    assert found.attention_scale == 1 / 16
    assert found.dense_layers == (0,)
    assert found.experts == Experts(64, 4, True, sigmoid=True, factor=1.8)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"rope_interleave": False}, "rotary pairs as neighbours"),
        ({"scoring_func": "softmax"}, "scoring_func sigmoid alone, not softmax"),
        ({"topk_method": "greedy"}, "topk_method noaux_tc alone, not greedy"),
        ({"attention_bias": True}, "bias on the attention output"),
        ({"n_group": 32, "topk_group": 1}, "cannot use 4 experts of 1 of 32 groups of 64"),
        ({"n_group": 5, "topk_group": 3}, "cannot use 4 experts of 3 of 5 groups of 64"),
        ({"n_shared_experts": 0}, "beside a shared one"),
        ({"kv_lora_rank": None}, "complete glm4_moe_lite"),
    ],
)
def test_what_is_not_there_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hf_config({**FLASH, **entry})


def test_a_file_with_offsets_of_scores_means_a_sigmoid() -> None:
    with pytest.raises(ModelError, match="expert_gating_func None"):
        from_gguf(expert_gating_func=None)
    found = from_gguf("blk.1.exp_probs_b.bias", expert_gating_func=None)
    assert found.experts is not None
    assert found.experts.sigmoid


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"attention.key_length_mla": None}, "attn_k_b and attn_v_b: convert"),
        ({"expert_gating_func": None}, "expert_gating_func None is not known: convert"),
        ({"expert_shared_count": None}, "beside a shared one"),
        ({"expert_gating_func": 3}, "expert_gating_func 3 is not known"),
        ({"rope.scaling.type": "yarn"}, "without extended positions"),
        ({"attention.value_length": 256}, "latents of 512 numbers cannot be values of 256"),
        ({"attention.scale": 0.5}, r"deepseek2\.attention\.scale"),
    ],
)
def test_what_a_gguf_file_says_beside_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_gguf(**entry)

"""Denoisers with experts: SDAR-MoE and LLaDA 2 beside models of transformers under a block mask.

LLaDA 2's layers are those of GLM 4.5 under other names: attention with norms of each head and half
of it rotated, experts by sigmoids in groups beside a shared one, first layers without.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from paceline.core.target import Rows
from paceline.core.types import CanvasTraits
from paceline.errors import ModelError
from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

BLOCK = 4
TOKENS = [5, 17, 88, 31, 8, 90, 4, 51, 60, 12, 95]
SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "attn_implementation": "sdpa",
}
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "sdar_moe": ("qwen3_moe", {"num_experts": 8, "decoder_sparse_step": 1}),
    "llada2_moe": (
        "glm4_moe",
        {
            **GROUPS,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 6e5,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
}
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar_moe": {"num_experts": 8, "decoder_sparse_step": 1, "mask_token_id": 90, "block_size": 4},
    "llada2_moe": {
        **GROUPS,
        "num_experts": 8,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "use_bias": False,
        "rope_theta": 6e5,
        "partial_rotary_factor": 0.5,
        "mask_token_id": 90,
    },
}
RENAMED = {
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "embed_tokens": "word_embeddings",
    "e_score_correction_bias": "expert_bias",
}


def model(kind: str) -> Any:
    name, more = THEIRS[kind]
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(name, **SIZES, **more)
    ).eval()
    with torch.no_grad():
        for part, each in [*made.named_parameters(), *made.named_buffers()]:
            if "norm" in part or "bias" in part:
                each += torch.randn_like(each) / 5
            elif each.ndim > 1:
                each.copy_(torch.randn_like(each) / each.shape[-1] ** 0.5)
    return made


def save(path: Path, kind: str, made: Any, **changes: Any) -> DirectorySource:
    """Its tensors under the names of the checkpoints."""
    made.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    if kind == "llada2_moe":
        for layer in range(SIZES["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            parts = [tensors.pop(f"{name}.self_attn.{part}_proj.weight") for part in "qkv"]
            tensors[f"{name}.attention.query_key_value.weight"] = torch.cat(parts)
        for theirs, ours in RENAMED.items():
            tensors = {name.replace(theirs, ours): each for name, each in tensors.items()}
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, path / "model.safetensors"
    )
    config = {**SIZES, **CONFIGS[kind], "model_type": kind, **changes}
    (path / "config.json").write_text(json.dumps(config))
    return DirectorySource(path)


def block_mask() -> npt.NDArray[np.bool_]:
    places = np.arange(len(TOKENS)) // BLOCK
    return places[:, None] >= places[None]


def expected(made: Any, sees: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    added = torch.zeros(sees.shape).masked_fill(~torch.from_numpy(sees), torch.finfo().min)
    with torch.inference_mode():
        return made(torch.tensor([TOKENS]), attention_mask=added[None, None]).logits[0].numpy()


def found(runtime: str, source: DirectorySource) -> npt.NDArray[Any]:
    config, tensors = source.config, source.weights()
    made: Any
    if runtime == "torch":
        made = TorchTarget(config, tensors, precision="fp32")
    elif runtime == "reference":
        made = ReferenceTarget(config, tensors, "fp32")
    else:
        made = CpuTarget(config, tensors, "fp32", kv_tokens=256, kv_precision="fp32")
    rows = Rows.block(made.open(), np.array(TOKENS), np.arange(len(TOKENS)), block_mask())
    [output] = made.forward([rows])
    return np.array(output.logits)


def apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.parametrize("kind", THEIRS)
def test_logits_are_those_of_the_trunk_under_a_block_mask(kind: str, tmp_path: Path) -> None:
    made = model(kind)
    source = save(tmp_path / "model", kind, made)
    wanted, cpu = expected(made, block_mask()), found("cpu", source)
    assert apart(cpu, wanted) < 1e-5
    assert apart(found("torch", source), wanted) < 1e-5
    assert np.array_equal(cpu, found("reference", source))
    assert apart(cpu, expected(made, np.tri(len(TOKENS), dtype=bool))) > 1e-2
    changes: list[dict[str, Any]] = [{"num_experts_per_tok": 2}, {"rope_theta": 500.0}]
    if kind == "llada2_moe":
        changes += [{"topk_group": 4}, {"routed_scaling_factor": 1.0}, {"partial_rotary_factor": 1}]
    for change in changes:
        other = save(tmp_path / "other", kind, made, **change)
        assert apart(found("cpu", other), wanted) > 1e-3


def test_what_their_files_leave_out_the_family_says(tmp_path: Path) -> None:
    big = {"vocab_size": 157_184, "mask_token_id": None}
    made = save(tmp_path / "model", "llada2_moe", model("llada2_moe"), **big).config.denoises
    assert made == CanvasTraits(156_895, "block", 32)
    assert save(tmp_path / "sdar", "sdar_moe", model("sdar_moe")).config.denoises == CanvasTraits(
        90, "block", 4
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_bias": True}, "use_bias True"),
        ({"score_function": "softmax"}, "score_function 'softmax'"),
        ({"use_linear_attention": True}, "use_linear_attention True"),
        ({"num_shared_experts": 0}, "beside a shared one"),
    ],
)
def test_other_layers_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    source = save(tmp_path / "model", "llada2_moe", model("llada2_moe"), **change)
    with pytest.raises(ModelError, match=said):
        source.config  # noqa: B018

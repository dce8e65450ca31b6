"""Every family against transformers, on tiny random models: checkpoints and GGUF files."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from paceline.core.target import Rows
from paceline.core.tree import chain
from paceline.errors import ModelError
from paceline.models.config import ModelConfig
from paceline.models.families import FAMILIES, family_of, gguf_config, hf_config
from paceline.models.gguf import GGUFFile
from paceline.models.ops import Experts, StateHeads, Temperature
from paceline.models.source import DirectorySource
from paceline.models.weights import Weights, gguf_weights
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.arithmetic import active, sigmoid
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MINISTRAL = {
    **YARN,
    "original_max_position_embeddings": 4,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "llama_4_scaling_beta": 0.4,
}
OLMO_KINDS = ("sliding_attention", "full_attention")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LATENT = {
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 64,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 3,
    "experts_implementation": "eager",
    "initializer_range": 0.2,  # of twice that transformers alone is 1e-5 from float64
}
GROUPED = {
    "num_key_value_heads": 4,
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 16,
}


MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
}
FALCON = {
    "mamba_d_ssm": 128,
    "embedding_multiplier": 5.0,
    "lm_head_multiplier": 0.3,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.4,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.5, 0.8, 1.3, 0.6, 1.7],
    "mlp_multipliers": [0.9, 1.6],
}
NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "time_step_min": 1e-30,
    "time_step_floor": 1e-4,
}

NEMOTRON_MOE = {
    **NEMOTRON,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5,
    "experts_implementation": "eager",
}


def rope(parameters: dict[str, Any], base: float = 10000.0) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": base, **parameters}}


GEMMA4 = {
    "head_dim": 32,
    "global_head_dim": 64,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "sliding_window": 6,
    "vocab_size_per_layer_input": 96,
    "final_logit_softcapping": 5.0,
}
# Hugging Face type, and what differs from `COMMON`.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-linear": ("llama", rope({"rope_type": "linear", "factor": 2.0})),
    "llama-llama3": ("llama", rope(LLAMA3)),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 7, "head_dim": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2-yarn": ("qwen2", rope(YARN)),
    "qwen2-windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3.5": (
        "qwen3_5_text",
        {
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 32,
        },
    ),
    "qwen3.5-even": (
        "qwen3_5_text",
        {
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": True,
        },
    ),
    "qwen3.5-moe": (
        "qwen3_5_moe_text",
        {
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "experts_implementation": "eager",
        },
    ),
    "ministral3": ("ministral3", {"head_dim": 16, **rope(MINISTRAL)}),
    "ministral3-window": (
        "ministral3",
        {"head_dim": 32, "sliding_window": 7, **rope({**MINISTRAL, "mscale_all_dim": 0.5})},
    ),
    "olmo2": ("olmo2", {"num_key_value_heads": 4, **rope({"rope_type": "default"}, 5e5)}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 6,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
                "full_attention": {"rope_theta": 5e5, **YARN},
            },
        },
    ),
    "lfm2": (
        "lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "lfm2-wide": (
        "lfm2",
        {
            "full_attn_idxs": [0, 2],
            "block_ff_dim": 100,
            "block_multiple_of": 32,
            "block_ffn_dim_multiplier": 1.5,
            "conv_L_cache": 5,
            "tie_embedding": False,
        },
    ),
    "lfm2-moe": (
        "lfm2_moe",
        {
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "experts_implementation": "eager",
        },
    ),
    "granite4": (
        "granitemoehybrid",
        {
            "layer_types": ["full_attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 128,
            "position_embedding_type": "rope",
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 3.0,
            "mamba_n_heads": 8,
        },
    ),
    "granite4-nope": (
        "granitemoehybrid",
        {
            "layer_types": ["full_attention"] * 4,
            "num_local_experts": 0,
            "shared_intermediate_size": 128,
            "attention_multiplier": 0.2,
            "tie_word_embeddings": True,
            "mamba_n_heads": 8,
        },
    ),
    "granite4-hybrid": (
        "granitemoehybrid",
        {
            **MAMBA,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 3.0,
        },
    ),
    "granite4-moe": (
        "granitemoehybrid",
        {
            **MAMBA,
            "mamba_n_groups": 1,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
            "intermediate_size": 32,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
            "experts_implementation": "eager",
        },
    ),
    "falcon-h1": ("falcon_h1", {**MAMBA, **FALCON, "mamba_rms_norm": False}),
    "falcon-h1-norm": (
        "falcon_h1",
        {**MAMBA, **FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "nemotron-h": ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "M-*-M"}),
    "nemotron-h-moe": ("nemotron_h", {**NEMOTRON_MOE, "hybrid_override_pattern": "MEM*EM"}),
    "nemotron-h-latent": (
        "nemotron_h",
        {**NEMOTRON_MOE, "hybrid_override_pattern": "ME*E", "moe_latent_size": 32},
    ),
    "nemotron-h-mixed": ("nemotron_h", {**NEMOTRON_MOE, "hybrid_override_pattern": "ME-*"}),
    "qwen3-moe": (
        "qwen3_moe",
        {
            "head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "experts_implementation": "eager",
        },
    ),
    "qwen3-moe-dense": (
        "qwen3_moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "experts_implementation": "eager",
        },
    ),
    "mixtral": (
        "mixtral",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 7,
            "experts_implementation": "eager",
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            "head_dim": 32,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 6,
            "experts_implementation": "eager",
            **rope({**YARN, "truncate": False}, 150_000.0),
        },
    ),
    "glm-lite": (
        "glm4_moe_lite",
        {
            **LATENT,
            "num_key_value_heads": 4,
            "n_routed_experts": 6,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "rms_norm_eps": 1e-6,  # of its own norms it keeps this, whatever the config says
        },
    ),
    "deepseek3": ("deepseek_v3", {**LATENT, **GROUPED, "first_k_dense_replace": 1}),
    "deepseek3-yarn": (
        "deepseek_v3",
        {
            **LATENT,
            **GROUPED,
            "first_k_dense_replace": 2,
            "q_lora_rank": None,
            "norm_topk_prob": False,
            **rope({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}),
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "sliding_window": 6, "num_hidden_layers": 6, "query_pre_attn_scalar": 24},
    ),
    "gemma4": (
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-keys": (
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": None,
        },
    ),
    "gemma4-moe": (
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "experts_implementation": "eager",
        },
    ),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3-long": (
        "phi3",
        {
            "original_max_position_embeddings": 16,
            "partial_rotary_factor": 0.75,
            **rope({**LONG, "partial_rotary_factor": 0.75}),
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4, "use_sliding_window": False}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.1,
            "logits_scaling": 3.0,
        },
    ),
}
TOKENS = [3, 17, 5, 80, 41, 9, 2, 66, 31, 7, 50, 12, 90, 4, 28, 33, 71, 8, 19, 62]


PERTURBED = (
    "norm",
    "bias",
    *(f"{at}.{part}" for at in ("mixer", "mamba") for part in ("D", "A_log")),
)


def original(case: str, path: Path, **more: Any) -> Any:
    """A random model of transformers, saved at `path`."""
    kind, changes = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, **changes, **more})
    torch.manual_seed(sum(map(ord, case)))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        learned = name.endswith("scale") and isinstance(own, torch.nn.Parameter)
        with torch.no_grad():
            if name.endswith("layer_scalar"):
                own.copy_(0.5 + torch.rand(1))
            elif learned or any(part in name for part in PERTURBED):
                own.add_(0.2 * torch.randn_like(own))
    model.save_pretrained(path)
    return model


def logits(config: ModelConfig, weights: Weights, precision: str = "fp32") -> npt.NDArray[Any]:
    """Of every token, read alone after a prompt of five."""
    target = CpuTarget(config, weights, precision, kv_tokens=128, kv_precision="fp32")
    cache, out = target.open(), []
    target.prefill(cache, TOKENS[:5])
    for token in TOKENS[5:]:
        out.append(target.forward([Rows.draft(cache, [token])])[0].logits[0].copy())
        target.keep(cache, 1, [])
    return np.array(out)


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_gives_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    model = original(case, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0, 5:].numpy()
    source = DirectorySource(tmp_path)
    found = logits(source.config, source.weights())
    reference = ReferenceTarget(source.config, source.weights(), "fp32")
    [read] = reference.forward([Rows.draft(reference.open(), TOKENS[:6], chain(TOKENS[6:]))])
    assert np.array_equal(found, read.logits)
    # 7.2e-6 at most (mixtral); of a model in float64 both are up to 1.1e-5 (qwen2-windows).
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(expected).max() > 0.1
    on_torch = TorchTarget(source.config, source.weights())
    cache = on_torch.open()
    on_torch.prefill(cache, TOKENS[:5])
    (output,) = on_torch.forward([Rows.draft(cache, TOKENS[5:6], chain(TOKENS[6:]))])
    assert np.abs(output.logits - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_hybrid_without_recurrent_layers_has_no_states(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    model = original("qwen3.5", tmp_path, **sizes)
    source = DirectorySource(tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0, 5:].numpy()
    found = logits(source.config, source.weights())
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES)
def test_what_a_family_adds_matters(case: str, tmp_path: Path) -> None:
    """Leaving out any of it is seen: the comparison above can fail."""
    original(case, tmp_path)
    source = DirectorySource(tmp_path)
    config, weights = source.config, source.weights()
    plain: dict[str, Any] = {
        "windows": (),
        "rope_divisors": None,
        "no_positions": (),
        "embedding_scale": 1.0,
        "residual_scale": 1.0,
        "attention_scale": 0.0,
        "logit_scale": 1.0,
        "activation": "silu",
        "local_rope_base": config.local_rope_base and config.rope_base,
        "qk_norm": False,
        "sinks": False,
        "rope_factor": 1.0,
        "rotated": 0,
        "temperature": None,
    }
    expected = logits(config, weights)
    for name, value in plain.items():
        if name == (
            "windows" if config.local_rope_base else "rotated" if config.rope_divisors else ""
        ):
            continue
        if getattr(config, name) != value:
            other = logits(replace(config, **{name: value}), weights)
            assert np.abs(other - expected).max() > 1e-3 * np.abs(expected).max(), name


def test_every_multiplier_of_falcon_matters(tmp_path: Path) -> None:
    original("falcon-h1", tmp_path)
    source = DirectorySource(tmp_path)
    config, weights = source.config, source.weights()
    expected, by = logits(config, weights), config.multipliers
    assert by is not None
    said: dict[str, Any] = {"gated": 1.0, "steps": 1.0, "scan": 1.0, "attention": 1.0}
    others = [{"gate": 1.0}, {"down": 1.0}, *({name: value} for name, value in said.items())]
    for place in range(3):
        scanned = [*by.scanned]
        scanned[place] = 2.0
        others.append({"scanned": tuple(scanned)})
    for changes in others:
        other = logits(replace(config, multipliers=replace(by, **changes)), weights)
        assert np.abs(other - expected).max() > 1e-3 * np.abs(expected).max(), changes


def test_latents_of_experts_matter(tmp_path: Path) -> None:
    """Both maps are read, and experts see latents alone, which the router does not."""
    original("nemotron-h-latent", tmp_path)
    source = DirectorySource(tmp_path)
    expected = logits(source.config, source.weights())
    for part in ("fc1", "fc2"):
        tensors = load_file(tmp_path / "model.safetensors")
        name = f"backbone.layers.1.mixer.{part}_latent_proj.weight"
        tensors[name] = tensors[name].flip(0).contiguous()
        save_file(tensors, tmp_path / "changed.safetensors", {"format": "pt"})
        other = tmp_path / part
        other.mkdir()
        (tmp_path / "changed.safetensors").rename(other / "model.safetensors")
        (other / "config.json").write_text((tmp_path / "config.json").read_text())
        changed = DirectorySource(other)
        found = logits(changed.config, changed.weights())
        assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max(), part


def test_a_norm_before_the_gate_is_refused(tmp_path: Path) -> None:
    original("falcon-h1-norm", tmp_path, mamba_norm_before_gate=True)
    with pytest.raises(ModelError, match="norms what a scan gives behind its gate"):
        DirectorySource(tmp_path).config  # noqa: B018


NOT_IN_GGUF = (
    "deepseek3-yarn",
    "qwen2-windows",
    "qwen3-moe-dense",
    "falcon-h1",
    "falcon-h1-norm",
    "mixtral",
    "ministral3-window",
    "nemotron-h-mixed",
)
# Files name these otherwise.
AS = {
    "olmo2": "olmo3",
    "glm-lite": "deepseek_v3",
    "granite4": "granite",
    "granite4-nope": "granite",
    "nemotron-h-moe": "nemotron_h_moe",
    "nemotron-h-latent": "nemotron_h_moe",
}


@pytest.mark.parametrize("case", [case for case in CASES if case not in NOT_IN_GGUF])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_gives_those_of_the_checkpoint(case: str, kind: str, tmp_path: Path) -> None:
    # GGUF files say nothing of Qwen's windows; Gemma's query scale is 1 / sqrt(head_dim) there.
    scale = {"query_pre_attn_scalar": 32} if case == "gemma3" else {}
    original(case, tmp_path, **scale)
    source = DirectorySource(tmp_path)
    path = tmp_path / "model.gguf"
    named = replace(source.config, family=AS.get(case, source.config.family))
    fuse = case == "gemma4-moe"
    rounded = write(path, named, source.weights(), kind, CASES[case][1], fuse=fuse)
    file = GGUFFile(path)
    same = {"rope_divisors": None, "family": "", "eos_token_ids": ()}
    same |= {"attention_scale": 0.0} if case == "gemma3" else {}
    if source.config.temperature is not None:
        temper, known = file.config.temperature, source.config.temperature
        assert temper is not None
        assert temper == replace(known, factors=temper.factors)
        assert temper.factors == pytest.approx(known.factors)
        same |= {"temperature": None}
    if source.config.state_heads is not None:
        tiled = case.startswith("qwen")
        same |= {"state_heads": replace(source.config.state_heads, tiled=tiled)}
    assert close(replace(file.config, **same), replace(source.config, **same))
    assert (file.config.rope_divisors or ()) == pytest.approx(source.config.rope_divisors or ())
    found = logits(file.config, gguf_weights(file), "fp32")
    expected = logits(source.config, rounded)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def close(first: ModelConfig, second: ModelConfig) -> bool:
    def alike(a: Any, b: Any) -> bool:
        if isinstance(a, tuple) and isinstance(b, tuple):
            return len(a) == len(b) and all(map(alike, a, b))
        return bool(a == pytest.approx(b)) if isinstance(a, float) else bool(a == b)

    return alike(astuple(first), astuple(second))


class Rounded(dict[str, npt.NDArray[np.float32]]):
    """Tensors by canonical name, all as float32."""

    def stored(self, name: str) -> Any:
        from paceline.models.weights import Stored

        rows, columns = self[name].shape
        return Stored("F32", (rows, columns), self[name].view(np.uint8))


def write(
    path: Path,
    config: ModelConfig,
    weights: Weights,
    kind: str,
    entries: dict[str, Any],
    *,
    fuse: bool = False,
) -> Rounded:
    """Write a file as llama.cpp's converter would; the tensors as they can be read back.

    `fuse` puts gate and up of all experts into one tensor.
    """
    family = family_of(config)
    writer = gguf.GGUFWriter(path, family.gguf)
    add, arch = writer.add_key_value, family.gguf
    uint, real = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32
    own = int(f"layers.{config.layers}.mtp_fc" in weights)  # a layer that drafts
    window = next((each for each in config.windows if each), 0)
    mixed = family.gguf == "granitehybrid" and config.experts is not None
    shares = mixed or (config.experts and "layers.1.shared_up" in weights)
    varies = bool(config.recurrent) and not family.gated_queries  # from layer to layer
    for name, value in {
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "block_count": config.layers + own,
        "nextn_predict_layers": own,
        "feed_forward_length": 0
        if config.feed_forward_layers or config.full_head_dim
        else 32
        if mixed
        else config.ffn_size,
        "attention.head_count": config.heads,
        "attention.head_count_kv": 0 if varies or config.full_head_dim else config.kv_heads,
        "shortconv.l_cache": config.short_taps,
        "expert_shared_feed_forward_length": 64 if shares else 0,
        "leading_dense_block_count": config.dense_layers[-1] + 1 if family.gguf == "lfm2moe" else 0,
        "expert_gating_func": 2 if config.experts and config.experts.sigmoid else 0,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.rotated or config.head_dim,
        "attention.sliding_window": window,
        "expert_count": config.experts.count if config.experts else 0,
        "expert_used_count": config.experts.used if config.experts else 0,
        "moe_latent_size": config.experts.latent if config.experts else 0,
        **(_recurrent_keys(config) if config.state_heads else {}),
        "full_attention_interval": config.attention_layers[0] + 1 if family.gated_queries else 0,
        **(_full_keys(config) if config.full_head_dim else {}),
        **(_latent_keys(config, weights) if config.latents else {}),
    }.items():
        if value:
            add(f"{arch}.{name}", value, uint)
    if config.full_head_dim:
        shapes = map(config.kv_shape, range(config.layers))
        writer.add_head_count_kv([heads for heads, _ in shapes])
        ups = [weights.stored(f"layers.{each}.up") for each in range(config.layers)]
        writer.add_feed_forward_length([each.shape[0] for each in ups])
        writer.add_sliding_window_pattern([bool(each) for each in config.windows])
        factors = np.nan_to_num(np.float32(config.rope_divisors), posinf=1e30)
        writer.add_tensor("rope_freqs.weight", factors)
        add(f"{arch}.rope.freq_base_swa", config.local_rope_base, real)
        if config.logit_cap:
            add(f"{arch}.final_logit_softcapping", config.logit_cap, real)
    for name, number in {
        "rope.freq_base": config.rope_base,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "embedding_scale": config.embedding_scale,
        "residual_scale": config.residual_scale,
        "attention.scale": config.attention_scale,
        "logit_scale": 1 / config.logit_scale,
        "expert_weights_scale": config.experts.factor
        if config.experts and config.experts.sigmoid
        else 1.0,
    }.items():
        add(f"{arch}.{name}", number, real)
    if config.experts and config.experts.sigmoid:
        writer.add_expert_group_count(config.experts.groups)
    if config.latents is not None and config.experts is not None:
        writer.add_expert_weights_norm(config.experts.sum_to_one)
    layers = range(config.layers)
    if varies:
        attends = [each in config.attention_layers for each in layers]
        writer.add_head_count_kv([config.kv_heads * each for each in attends])
    if config.feed_forward_layers:
        blocks = [each in config.feed_forward_layers for each in layers]
        writer.add_feed_forward_length([config.ffn_size * each for each in blocks])
    if family.gguf.startswith(("granite", "nemotron")):
        writer.add_rope_scaling_finetuned(not config.no_positions)
    out = Rounded()
    scaling = entries.get("rope_parameters", {"rope_type": "default"})
    scaling = scaling.get("full_attention", scaling)
    if config.temperature is not None:
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
        writer.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
    if scaling["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if scaling["rope_type"] == "longrope":
        writer.add_rope_scaling_attn_factors(config.rope_factor)
        for length in ("long", "short"):
            factors = np.asarray(scaling[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    if scaling["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", np.asarray(config.rope_divisors, np.float32))
    ends = {"embed": "token_embd", "norm": "output_norm", "head": "output"}
    ends |= {name: end.removesuffix(".weight") for name, end in family.gguf_ends.items()}
    names = [name for name in ends if name in weights]
    parts = [part + end for part in family.gguf_parts for end in ("", ".bias")]
    experts = range(config.experts.count if config.experts else 0)
    own_parts = [part + end for part in ("gate", "up", "down") for end in ("", ".bias")]
    parts += [f"experts.{each}.{part}" for part in own_parts for each in experts]
    parts += [f"heads.{each}.{part}" for part in "kv" for each in range(config.heads)]
    for layer in range(config.layers + own):
        names += [f"layers.{layer}.{each}" for each in parts if f"layers.{layer}.{each}" in weights]
        if config.feed_forward_layers:  # whose layers have one norm
            norm = "ffn_norm" if layer not in config.feed_forward_layers else "attention_norm"
            names.remove(f"layers.{layer}.{norm}")
    fused: dict[str, list[npt.NDArray[np.float32]]] = {}
    for name in names:
        values = weights[name]
        place = ends.get(name)
        if place is None:
            _, layer_name, part, *rest = name.split(".")
            if part in ("experts", "heads"):
                part, rest = f"{part}.{rest[1]}", rest[2:]
            place = f"blk.{layer_name}.{family.gguf_parts[part]}"
            if mixed and part in ("gate", "up", "down"):
                place += "_shexp"
            if part in family.rows:  # a vector
                out[name], fused[f"{place}.weight"] = values, [values[0]]
                continue
            bare = family.gguf_parts[part] in family.bare
            if part.startswith("ssm_") or (bare and not family.gated_queries):
                stays = part == "ssm_conv" or rest or values.ndim < 2
                out[name] = quantized(values, "F32" if stays else kind)[0]
                if part == "ssm_conv" and not rest:
                    values = values.reshape(len(values), -1)
                if part in ("ssm_rate", "ssm_skip"):
                    values = values.reshape(-1, 1)
                if part == "ssm_norm":
                    values = values.reshape(config.state_heads.key_heads, -1)
                place += "" if bare else ".bias" if rest else ".weight"
                fused.setdefault(place, []).append(values)
                continue
            if family.gated_queries and not part.startswith("experts."):
                out[name] = quantized(values, "F32" if part == "delta_conv" else kind)[0]
                if part == "q_gate":
                    continue
                if part == "q":
                    pair = [values, weights[f"layers.{layer_name}.q_gate"]]
                    heads = [each.reshape(config.heads, -1, values.shape[1]) for each in pair]
                    values = np.concatenate(heads, axis=1).reshape(-1, values.shape[1])
                place += "" if bare else ".weight"
                fused[place] = [np.ascontiguousarray(_tiled(config.state_heads, part, values))]
                continue
            if family.interleaved and part in ("q", "k"):
                heads = config.heads if part == "q" else config.kv_heads
                halves = values.reshape(heads, 2, -1, *values.shape[1:])
                turned = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
                out[name] = quantized(values, kind)[0]
                fused[f"{place}.{'bias' if rest else 'weight'}"] = [turned]
                continue
            place += ".bias" if rest else ""
        if place.endswith(".conv"):
            values = values.reshape(len(values), -1)
        out[name] = quantized(values, "F32" if place.endswith(".conv") else kind)[0]
        if config.latents is not None:
            values = _rotated_last(config, name.rpartition(".")[2], values)
        fused.setdefault(place if place.endswith(".bias") else f"{place}.weight", []).append(values)
    for layer in range(config.layers if fuse else 0):
        gates, ups = (fused.pop(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up"))
        both = [np.concatenate(pair) for pair in zip(gates, ups, strict=True)]
        fused[f"blk.{layer}.ffn_gate_up_exps.weight"] = both
    for place, pieces in fused.items():
        stacked = any(each in place for each in ("_exps.", "_k_b.", "_v_b."))
        whole = np.stack(pieces) if stacked and "scale" not in place else np.concatenate(pieces)
        floats = (".ssm_a", ".ssm_d", "ssm_norm.weight", "conv1d.weight", "conv.weight", ".bias")
        plain = place.endswith(floats)
        _, blocks = quantized(whole, "F32" if plain else kind)
        if blocks is None:
            writer.add_tensor(place, whole)
        else:
            writer.add_tensor(place, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _full_keys(config: ModelConfig) -> dict[str, int]:
    lent = [each for index, each in enumerate(config.lenders) if each != index]
    return {
        "attention.key_length": config.full_head_dim,
        "attention.value_length": config.full_head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": config.full_head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "attention.shared_kv_layers": len(lent),
        "embedding_length_per_layer_input": config.layer_inputs,
    }


def _recurrent_keys(config: ModelConfig) -> dict[str, int]:
    rule = config.state_heads
    assert rule is not None
    return {
        "ssm.conv_kernel": rule.taps,
        "ssm.inner_size": rule.values,
        "ssm.state_size": rule.key_width,
        "ssm.time_step_rank": rule.value_heads,
        "ssm.group_count": rule.key_heads,
    }


def _latent_keys(config: ModelConfig, weights: Weights) -> dict[str, int]:
    latents, experts = config.latents, config.experts
    assert latents is not None
    assert experts is not None
    last = f"layers.{config.layers - 1}"
    return {
        "attention.q_lora_rank": latents.query_rank,
        "attention.kv_lora_rank": latents.rank,
        "attention.value_length": latents.rank,
        "attention.key_length_mla": latents.rotated + latents.plain,
        "attention.value_length_mla": latents.values,
        "leading_dense_block_count": len(config.dense_layers),
        "expert_shared_count": len(weights[f"{last}.shared_up"])
        // len(weights[f"{last}.experts.0.up"]),
        "expert_group_used_count": experts.groups_used,
    }


def _rotated_last(config: ModelConfig, part: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rotated numbers of queries and keys behind the others, both of a pair as neighbours."""
    if part not in ("q", "q_b", "kv_a"):
        return values
    assert config.latents is not None
    heads, rotated = 1 if part == "kv_a" else config.heads, config.latents.rotated
    own = values.reshape(heads, -1, values.shape[1])
    pairs = own[:, :rotated].reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2)
    turned = pairs.reshape(heads, rotated, -1)
    return np.concatenate([own[:, rotated:], turned], axis=1).reshape(values.shape)


def _tiled(heads: StateHeads, part: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Value heads as llama.cpp's converter orders them."""
    order = [
        key * (heads.value_heads // heads.key_heads) + each
        for each in range(heads.value_heads // heads.key_heads)
        for key in range(heads.key_heads)
    ]

    def turned(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return rows.reshape(heads.value_heads, -1, *rows.shape[1:])[order].reshape(rows.shape)

    if part in ("delta_qkv", "delta_conv"):
        keys, behind = np.split(values.reshape(len(values), -1), [2 * heads.keys])
        return np.concatenate([keys, turned(behind)])
    if part == "delta_o":
        return turned(values.T).T
    return turned(values) if part in TILED else values


TILED = ("delta_z", "delta_b", "delta_a", "delta_rate", "delta_dt")


def quantized(values: npt.NDArray[Any], kind: str) -> tuple[npt.NDArray[Any], Any]:
    if kind == "F32" or values.ndim < 2:
        return values, None
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]), blocks


def test_unknown_families_are_named_with_those_that_run() -> None:
    with pytest.raises(ModelError, match="'mamba' is not one of llama, mistral"):
        hf_config({"model_type": "mamba"})
    assert len({family.hf for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"mlp_bias": True}, "bias in the feed-forward"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "type 'proportional'"),
        ({"final_logit_softcapping": 30.0}, "capped"),
        ({"hidden_size": "wide"}, "complete llama model"),
    ],
)
def test_what_no_family_has_is_refused(entry: dict[str, Any], message: str) -> None:
    whole = {
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        **{key: value for key, value in COMMON.items() if isinstance(value, int)},
    }
    assert hf_config(whole).layers == 4
    with pytest.raises(ModelError, match=message):
        hf_config({**whole, **entry})


def _before_norm(
    ops: ReferenceOps, x: Any, name: str, *, residual: Any = None, heads: int = 1
) -> Any:
    return NORM(ops, x, name, residual=residual, heads=heads) if heads == 1 else x


def _behind_gate(ops: ReferenceOps, x: Any, names: Any, **more: Any) -> Any:
    if names[0].endswith("delta_o"):
        x = NORM(ops, x, names[0].replace("delta_o", "delta_norm"), heads=4)
    return LINEAR(ops, x, names, **more)


def _norm_of_heads(
    ops: ReferenceOps, x: Any, name: str, *, residual: Any = None, heads: int = 1
) -> Any:
    if not name.endswith(("q_norm", "k_norm")):
        return NORM(ops, x, name, residual=residual, heads=heads)
    parts = x.reshape(len(x), -1, 16)
    spread = np.sqrt(np.square(parts).mean(-1, keepdims=True))
    return (parts / spread).reshape(x.shape) * ops.weight(name)


def _other_order(ops: ReferenceOps, x: Any, sizes: Any) -> Any:
    found = SPLIT(ops, x, sizes)
    return [found[1], found[0], found[2]] if len(found) == 3 else found


class _GateBehind:
    """A gate that comes behind a norm, not before it."""

    def silu(self, ops: ReferenceOps, x: Any) -> Any:
        self.z = x
        return np.ones_like(x)

    def norm(self, ops: ReferenceOps, x: Any, name: str, **more: Any) -> Any:
        normed = NORM(ops, x, name, **more)
        return normed * active(self.z, "silu") if name.endswith("ssm_norm") else normed


def _one_norm(ops: ReferenceOps, x: Any, name: str, *, residual: Any = None, heads: int = 1) -> Any:
    return NORM(ops, x, name, residual=residual)


def _no_skip(ops: ReferenceOps, layer: int, x: Any, steps: Any, name: str, of: StateHeads) -> Any:
    skip = np.repeat(ops.weight(f"{name}_skip").ravel(), of.value_width)
    return SCAN(ops, layer, x, steps, name, of) - skip * x[:, : of.values]


def _no_bias(ops: ReferenceOps, layer: int, x: Any, name: str) -> Any:
    return active(
        CONVOLVE(ops, layer, x, name, activated=False) - ops.weight(f"{name}.bias"), "silu"
    )


def _chosen_by_scores(ops: ReferenceOps, x: Any, name: str, experts: Experts) -> Any:
    scores, offset = ops.linear(x, [name]), ops.weight(f"{name}_offset")
    weights = ROUTE(ops, x, name, experts)
    used = np.argsort(-scores, axis=1, kind="stable")[:, : experts.used]
    assert offset.any()
    out = np.zeros_like(weights)
    own = sigmoid(np.take_along_axis(scores, used, axis=1))
    np.put_along_axis(out, used, own / own.sum(1, keepdims=True) * experts.factor, axis=1)
    return out


def _other_experts(**changes: Any) -> Any:
    def route(ops: ReferenceOps, x: Any, name: str, experts: Experts) -> Any:
        return ROUTE(ops, x, name, replace(experts, **changes))

    return route


def _all_positions(of: Temperature, positions: Any) -> Any:
    return AT(of, positions + of.span)  # counted from 1


NORM, LINEAR, SPLIT = ReferenceOps.norm, ReferenceOps.linear, ReferenceOps.split
SCAN, ROUTE, BEHIND = ReferenceOps.scan, ReferenceOps.route, _GateBehind()
DELTA, CONVOLVE, AT = ReferenceOps.delta, ReferenceOps.convolve, Temperature.at
# Wrong wirings of what a family adds, by its case: what stands in the place of operations.
WRONG: dict[str, dict[str, dict[str, Any]]] = {
    "qwen3.5": {
        "gate before norm": {"norm": _before_norm, "linear": _behind_gate},
        "no gate of attention": {"gate": lambda _, x, by: x},
        "no convolution": {"convolve": lambda _, layer, x, name: active(x, "silu")},
        "one decay for all": {
            "delta": lambda ops, layer, x, gates, name, rule: DELTA(
                ops, layer, x, gates * np.repeat(np.float32([1, 0]), 4), name, rule
            )
        },
    },
    "qwen3.5-moe": {
        "the shared expert as it is": {
            "gate": lambda _, x, by: x if by.shape[1] == 1 else x * sigmoid(by)
        },
        "no shared expert": {
            "gate": lambda _, x, by: 0 * x if by.shape[1] == 1 else x * sigmoid(by)
        },
    },
    "lfm2": {
        "an activation": {
            "convolve": lambda ops, layer, x, name, **_: CONVOLVE(ops, layer, x, name)
        },
        "gates in other order": {"split": _other_order},
        "no convolution": {"convolve": lambda _, layer, x, name, **__: x},
    },
    "granite4-hybrid": {
        "gate behind the norm": {
            "silu": lambda ops, x: BEHIND.silu(ops, x),
            "norm": lambda ops, x, name, **more: BEHIND.norm(ops, x, name, **more),
        },
        "one norm of all groups": {"norm": _one_norm},
        "nothing skipped": {"scan": _no_skip},
        "no bias of the convolution": {"convolve": _no_bias},
    },
    "nemotron-h-moe": {
        "ReLU as it is": {"relu2": lambda _, x: np.maximum(x, 0)},
        "softmax": {"route": _other_experts(sigmoid=False)},
        "no factor": {"route": _other_experts(factor=1.0)},
        "weights as they are": {"route": _other_experts(sum_to_one=False)},
        "chosen by scores alone": {"route": _chosen_by_scores},
    },
    "olmo3": {"norms of heads": {"norm": _norm_of_heads}},
    "ministral3": {"steps from 1 on": {"at": _all_positions}},
}
WIRINGS = [(case, wrong) for case, wirings in WRONG.items() for wrong in ("", *wirings)]


TILES = [(case, "tiled value heads as grouped") for case in ("qwen3.5", "granite4-hybrid")]


@pytest.mark.parametrize(("case", "wrong"), [*WIRINGS, *TILES])
def test_wrong_wirings_are_seen(
    case: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = original(case, tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0, 5:].numpy()
    source = DirectorySource(tmp_path)
    config = source.config
    for name, function in WRONG[case].get(wrong, {}).items():
        monkeypatch.setattr(Temperature if name == "at" else ReferenceOps, name, function)
    if wrong == "tiled value heads as grouped":
        assert config.state_heads is not None
        config = replace(config, state_heads=replace(config.state_heads, tiled=True))
    reference = ReferenceTarget(config, source.weights(), "fp32")
    [read] = reference.forward([Rows.draft(reference.open(), TOKENS[:6], chain(TOKENS[6:]))])
    difference = np.abs(read.logits - expected).max() / np.abs(expected).max()
    assert difference < 1e-5 if not wrong else difference > 1e-2


def test_experts_in_one_tensor_are_those_in_many(tmp_path: Path) -> None:
    """As checkpoints of Qwen 3.5 are published; in GGUF files gate and up may be one too."""
    original("qwen3.5-moe", tmp_path)
    source = DirectorySource(tmp_path)
    expected = logits(source.config, source.weights())
    for kind in ("F32", "Q8_0"):
        read = []
        for fuse in (False, True):
            path = tmp_path / f"{kind}{fuse}.gguf"
            write(path, source.config, source.weights(), kind, {}, fuse=fuse)
            assert ("blk.0.ffn_gate_up_exps.weight" in GGUFFile(path)) == fuse
            read.append(logits(GGUFFile(path).config, gguf_weights(GGUFFile(path))))
        assert np.array_equal(*read)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for layer in range(4):
        experts = f"model.layers.{layer}.mlp.experts"
        own = {
            part: torch.stack(
                [tensors.pop(f"{experts}.{each}.{part}_proj.weight") for each in range(6)]
            )
            for part in ("gate", "up", "down")
        }
        tensors[f"{experts}.gate_up_proj"] = torch.cat([own["gate"], own["up"]], dim=1)
        tensors[f"{experts}.down_proj"] = own["down"]
    save_file(tensors, path)
    source = DirectorySource(tmp_path)
    assert np.array_equal(logits(source.config, source.weights()), expected)
    on_torch = TorchTarget(source.config, source.weights())
    [output] = on_torch.forward([Rows.draft(on_torch.open(), TOKENS[:6], chain(TOKENS[6:]))])
    assert np.abs(output.logits - expected).max() < 1e-5 * np.abs(expected).max()


def test_what_a_file_of_nemotron_may_say_is_refused(tmp_path: Path) -> None:
    """Groups of experts."""
    original("nemotron-h-moe", tmp_path)
    source, path = DirectorySource(tmp_path), tmp_path / "model.gguf"
    write(path, replace(source.config, family="nemotron_h_moe"), source.weights(), "F32", {})
    file = GGUFFile(path)
    shapes = {name: each.shape for name, each in file.tensors.items()}
    assert gguf_config(file.metadata, shapes, {}) == file.config
    with pytest.raises(ModelError, match="expert_group_count 2"):
        gguf_config({**file.metadata, "nemotron_h_moe.expert_group_count": 2}, shapes, {})


def test_a_file_of_nemotron_as_llama_cpp_converts_it(tmp_path: Path) -> None:
    """The epsilon has the name of other norms, and one group of experts is said."""
    original("nemotron-h-moe", tmp_path)
    source, path = DirectorySource(tmp_path), tmp_path / "model.gguf"
    write(path, replace(source.config, family="nemotron_h_moe"), source.weights(), "F32", {})
    file = GGUFFile(path)
    shapes = {name: each.shape for name, each in file.tensors.items()}
    said = dict(file.metadata)
    said["nemotron_h_moe.attention.layer_norm_epsilon"] = said.pop(
        "nemotron_h_moe.attention.layer_norm_rms_epsilon"
    )
    said["nemotron_h_moe.expert_group_used_count"] = 1
    assert gguf_config(said, shapes, {}) == file.config
    del said["nemotron_h_moe.attention.layer_norm_epsilon"]
    with pytest.raises(ModelError, match="layer_norm_rms_epsilon"):
        gguf_config(said, shapes, {})


def test_a_file_of_olmo_3_says_the_base_of_windows(tmp_path: Path) -> None:
    original("olmo3", tmp_path)
    source, path = DirectorySource(tmp_path), tmp_path / "model.gguf"
    write(path, source.config, source.weights(), "F32", {})
    file = GGUFFile(path)
    shapes = {name: each.shape for name, each in file.tensors.items()}
    said = {**file.metadata, "olmo2.rope.freq_base_swa": 5000.0}
    assert gguf_config(said, shapes, {}).local_rope_base == 5000.0


@pytest.mark.parametrize(
    ("case", "entry", "tensor"),
    [
        ("qwen3.5", {"hidden_size": 128}, "embed of"),
        ("qwen3.5", {"num_attention_heads": 2}, r"layers\.\d\.o of"),
        ("qwen3.5", {"num_key_value_heads": 1}, r"layers\.\d\.k of"),
        ("qwen3.5", {"linear_conv_kernel_dim": 3}, "delta_conv of"),
        ("nemotron-h", {"ssm_state_size": 8}, "ssm_conv of"),
        ("nemotron-h-moe", {"n_routed_experts": 2}, "router of"),
    ],
)
def test_a_config_that_claims_other_sizes_is_refused(
    case: str, entry: dict[str, int], tensor: str, tmp_path: Path
) -> None:
    original(case, tmp_path)
    DirectorySource(tmp_path).weights()
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entry}))
    with pytest.raises(ModelError, match=f"{tensor}.* numbers, but its config says otherwise"):
        DirectorySource(tmp_path).weights()


def test_a_layer_behind_the_last_is_another_model(tmp_path: Path) -> None:
    original("olmo3", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    less = config["num_hidden_layers"] - 1
    cut = {"num_hidden_layers": less, "layer_types": config["layer_types"][:less]}
    path.write_text(json.dumps({**config, **cut}))
    said = rf"layers\.{less}\.\S+, of a layer behind the {less} of its config"
    with pytest.raises(ModelError, match=said):
        DirectorySource(tmp_path).weights()


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    original("qwen3.5", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    save_file(tensors, path)
    source = DirectorySource(tmp_path)
    with pytest.raises(ModelError, match=r"tensor layers\.1\.up holds NaN or infinity"):
        logits(source.config, source.weights(), "int8")


def test_a_wrapper_is_its_text_model(tmp_path: Path) -> None:
    """Of a model that reads pictures the rest is left alone; other kinds are refused by name."""
    original("qwen3.5", tmp_path)
    path = tmp_path / "config.json"
    inner = json.loads(path.read_text())
    plain = DirectorySource(tmp_path)
    expected = logits(plain.config, plain.weights())
    path.write_text(json.dumps({"model_type": "qwen3_5", "text_config": inner}))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {
        name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()
    }
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4)
    tensors["mtp.norm.weight"] = torch.zeros(64)
    save_file(tensors, tmp_path / "model.safetensors")
    source = DirectorySource(tmp_path)
    assert np.array_equal(logits(source.config, source.weights()), expected)
    for kind in ("qwen3_5_moe", "qwen3_next"):
        with pytest.raises(ModelError, match=f"'{kind}' is not one of"):
            hf_config({**inner, "model_type": kind})
    with pytest.raises(ModelError, match="gated attention"):
        hf_config({**inner, "attn_output_gate": False})


def test_a_wrapper_of_ministral_is_its_text_model(tmp_path: Path) -> None:
    original("ministral3", tmp_path)
    inner = json.loads((tmp_path / "config.json").read_text())
    assert hf_config({"model_type": "mistral3", "text_config": inner}) == hf_config(inner)
    with pytest.raises(ModelError, match="'mistral3' is not one of"):
        hf_config({"model_type": "mistral3"})
    original("mistral", tmp_path)  # as in Mistral Small 3
    inner = json.loads((tmp_path / "config.json").read_text())
    assert hf_config({"model_type": "mistral3", "text_config": inner}) == hf_config(inner)


@pytest.mark.parametrize(
    ("case", "entry", "message"),
    [
        ("granite4", {"layer_types": ["attention", "conv"] * 2}, r"layers of \['conv'\]"),
        ("granite4-hybrid", {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
        ("granite4-hybrid", {"mamba_proj_bias": True}, "mamba_proj_bias True"),
        ("nemotron-h", {"layers_block_type": ["mamba", "other"]}, r"layers of \['other'\]"),
        ("nemotron-h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu'"),
        ("nemotron-h-moe", {"n_group": 2}, "n_group 2"),
        ("nemotron-h-moe", {"n_routed_experts": None}, "complete nemotron_h model"),
        ("lfm2-moe", {"use_expert_bias": False}, "biases of experts alone"),
        ("lfm2", {"conv_bias": True}, "LFM 2 without biases"),
        ("lfm2", {"layer_types": ["conv", "mamba"] * 2}, "layers of type 'mamba'"),
        ("lfm2", {"layer_types": None}, "complete lfm2 model"),
        ("olmo3", {"rope_parameters": dict.fromkeys(OLMO_KINDS, YARN)}, "longer windows"),
        ("olmo3", {"attention_bias": True}, "bias on the attention output"),
        ("qwen3.5-moe", {"moe_intermediate_size": None}, "complete qwen3_5_moe_text model"),
        ("ministral3", {"rope_parameters": None}, "complete ministral3 model"),
    ],
)
def test_what_a_family_has_not_here_is_refused(
    case: str, entry: dict[str, Any], message: str, tmp_path: Path
) -> None:
    original(case, tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    assert hf_config(whole).family == CASES[case][0]
    with pytest.raises(ModelError, match=message):
        hf_config({**whole, **entry})

"""Denoisers whose trunks are those of other families: other names, and their facts.

LLaDA (Nie et al. 2025), Dream (Ye et al. 2025), SDAR (Cheng et al. 2025), Fast-dLLM v2 (Wu et al.
2025), WeDLM (Liu et al. 2025), and with experts SDAR's and LLaDA 2 (Bie et al. 2025, of Ling 2's
layers: attention of Qwen 3, experts of DeepSeek V3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import ModelError
from paceline.models.families.base import HF_ENDS, HF_PARTS, Family, Get, llama_attention
from paceline.models.families.deepseek import check_shared, feed_forward
from paceline.models.families.experts import PARTS, QWEN3_MOE, parts_of
from paceline.models.families.qwen2 import QWEN2
from paceline.models.families.qwen3 import QWEN3
from paceline.models.ops import Experts

# Entries of LLaDA's config whose other values change the network: what this one has, and the value
# of a config that does not say.
_LLADA_HAS: dict[str, tuple[Any, Any]] = {
    "block_type": ("llama", "sequential"),
    "layer_norm_type": ("rms", "default"),
    "layer_norm_with_affine": (True, True),
    "activation_type": ("silu", "swiglu"),
    "rope": (True, False),
    "rope_scaling": (None, None),
    "alibi": (False, False),
    "scale_logits": (False, False),
    "include_bias": (False, False),
    "bias_for_layer_norm": (False, False),
    "attention_layer_norm": (False, False),
    "input_emb_norm": (False, False),
    "block_group_size": (1, 1),
}
_LLADA_WORDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_sequence_length",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
}


# Likewise of LLaDA 2's.
_LLADA2_HAS: dict[str, tuple[Any, Any]] = {
    "use_qk_norm": (True, True),
    "use_qkv_bias": (False, False),
    "use_bias": (False, True),
    "norm_head": (False, False),
    "score_function": ("sigmoid", "sigmoid"),
    "moe_router_enable_expert_bias": (True, True),
    "use_linear_attention": (False, False),
}


def _check(config: Mapping[str, Any], has_usual: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (has, usual) in has_usual.items():
        found = config.get(name, usual)
        if found != has and not (found is None and has is False):
            raise ModelError(
                f"LLaDA models with {name} {found!r} are not supported: use one with {has!r}"
            )


def _llada_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    _check(config, _LLADA_HAS)
    shared = 1 if config.get("multi_query_attention") else None
    ratio = config.get("mlp_ratio", 4)
    return {
        **{mine: config[theirs] for mine, theirs in _LLADA_WORDS.items()},
        "num_key_value_heads": config.get("n_kv_heads") or shared,
        "intermediate_size": config.get("mlp_hidden_size") or ratio * config["d_model"],
        # Rows beyond the vocabulary are there to round its size.
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "tie_word_embeddings": config.get("weight_tying", True),
        "include_qkv_bias": bool(config.get("include_qkv_bias")),
    }


def _both_ways(get: Get) -> dict[str, Any]:
    if get("attention.causal", False):
        raise ModelError("the GGUF file's rows see those before alone: it is no denoiser's")
    return {}


LLADA = Family(
    "llada",
    "llada",
    interleaved=True,
    from_gguf=_both_ways,
    hf_ends={
        "embed": "model.transformer.wte.weight",
        "norm": "model.transformer.ln_f.weight",
        "head": "model.transformer.ff_out.weight",
    },
    hf_layers="model.transformer.blocks",
    hf_parts={
        "attention_norm": "attn_norm",
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "o": "attn_out",
        "ffn_norm": "ff_norm",
        "gate": "ff_proj",
        "up": "up_proj",
        "down": "ff_out",
    },
    entries=_llada_entries,
    from_hf=lambda entries: {"qkv_bias": entries["include_qkv_bias"]},
    facts={"mask": 126336, "attention": "full", "shift": False, "ends": (126348,)},
)
DREAM = Family(
    "Dream",
    "dream",
    from_hf=QWEN2.from_hf,
    from_gguf=_both_ways,
    facts={"mask": 151666, "attention": "full", "shift": True},
)
# The block is in the names of its models alone.
SDAR = Family(
    "sdar",
    "",
    from_hf=QWEN3.from_hf,
    facts={"mask": 151669, "attention": "block", "shift": False},
)
FAST_DLLM = Family(
    "Fast_dLLM_Qwen",
    "",
    from_hf=QWEN2.from_hf,
    facts={"mask": 151665, "attention": "block", "shift": True},
)
# Made of Qwen 2.5 and of Qwen 3.
WEDLM = Family(
    "wedlm",
    "",
    from_hf=lambda config: {
        "qkv_bias": bool(config.get("attention_bias")),
        "qk_norm": bool(config.get("qk_norm")),
    },
    facts={"attention": "order", "shift": False, "autoregressive": True},
)
SDAR_MOE = replace(QWEN3_MOE, hf="sdar_moe", gguf="", facts=SDAR.facts)


def _llada2_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    _check(config, _LLADA2_HAS)
    check_shared(config["num_shared_experts"])
    experts = Experts(
        int(config["num_experts"]),
        used := int(config["num_experts_per_tok"]),
        used > 1,
        sigmoid=True,
        groups=int(config["n_group"]),
        groups_used=int(config["topk_group"]),
        factor=float(config["routed_scaling_factor"]),
    )
    dense = tuple(range(int(config["first_k_dense_replace"])))
    return {"qk_norm": True, "experts": experts, "dense_layers": dense}


LLADA2 = Family(
    "llada2_moe",
    "",
    hf_ends=HF_ENDS | {"embed": "model.word_embeddings.weight"},
    hf_parts=HF_PARTS
    | dict.fromkeys("qkv", "attention.query_key_value")
    | {
        "o": "attention.dense",
        "q_norm": "attention.query_layernorm",
        "k_norm": "attention.key_layernorm",
        **parts_of("mlp.gate", "mlp.experts.{{}}.{}_proj"),
        "router_offset": "mlp.gate.expert_bias",
        **{f"shared_{part}": f"mlp.shared_experts.{part}_proj" for part in PARTS},
    },
    fused=(("q", "k", "v"),),
    bare=("mlp.gate.expert_bias",),
    from_hf=_llada2_from_hf,
    facts={"mask": 156895, "attention": "block", "block": 32, "shift": False},
    halves=(llama_attention, feed_forward),
)
DENOISERS = (LLADA, DREAM, SDAR, FAST_DLLM, WEDLM, SDAR_MOE, LLADA2)

UNSUPPORTED = {
    **dict.fromkeys(
        ("lladamoe", "llada-moe", "LLaDAMoEModelLM"),
        "LLaDA-MoE models are mixtures of OLMoE's experts, which no family here has: use LLaDA 2",
    ),
    **dict.fromkeys(
        ("diffusion_gemma", "DiffusionGemmaForBlockDiffusion"),
        "DiffusionGemma starts from random tokens instead of masks, which no sampler here does: "
        "use a model with a mask token, such as LLaDA-8B",
    ),
    **dict.fromkeys(
        ("MinistralDLM", "nemotron_labs_diffusion", "NemotronLabsDiffusionModel"),
        "Nemotron diffusion models scale queries by position and have a head of their own, which "
        "no runtime here has: use another, such as Fast-dLLM v2",
    ),
}
"""Denoisers that do not run here, by model type and by architectures: what to say of them."""

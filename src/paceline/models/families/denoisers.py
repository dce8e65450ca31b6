"""Denoisers whose trunks are those of Llama, Qwen 2 and Qwen 3: other names, and their facts.

LLaDA (Nie et al. 2025), Dream (Ye et al. 2025), SDAR (Cheng et al. 2025), Fast-dLLM v2 (Wu et al.
2025) and WeDLM (Liu et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import ModelError
from paceline.models.families.base import Family, Get
from paceline.models.families.qwen2 import QWEN2
from paceline.models.families.qwen3 import QWEN3

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


def _llada_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, (has, usual) in _LLADA_HAS.items():
        found = config.get(name, usual)
        if found != has and not (found is None and has is False):
            raise ModelError(
                f"LLaDA models with {name} {found!r} are not supported: use one with {has!r}"
            )
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
DENOISERS = (LLADA, DREAM, SDAR, FAST_DLLM, WEDLM)

_EXPERTS = "models are mixtures of experts, which fill no canvas here: use a dense one, such as"
UNSUPPORTED = {
    **dict.fromkeys(("llada2_moe", "LLaDA2MoeModelLM"), f"LLaDA 2 {_EXPERTS} LLaDA-8B"),
    **dict.fromkeys(("lladamoe", "llada-moe", "LLaDAMoEModelLM"), f"LLaDA-MoE {_EXPERTS} LLaDA-8B"),
    **dict.fromkeys(("sdar_moe", "SDARMoeForCausalLM"), f"SDAR-MoE {_EXPERTS} SDAR-8B"),
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

"""Export of a whole model in Hugging Face format, as a draft model for vLLM."""

from __future__ import annotations

import json
from typing import Any

from paceline.errors import InvalidOption
from paceline.export.layout import Layout
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.text import Tokenizer

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def model_layout(model: ModelSource, target: ModelSource) -> Layout:
    """Build the directory of a draft model of a Llama family, in float32.

    Raises:
        InvalidOption: the vocabularies differ, or rotary positions are scaled.
        ModelError: a model cannot be read.
    """
    tokenizer, theirs = model.tokenizer(), target.tokenizer()
    same_width = model.config.vocab_size == target.config.vocab_size
    if tokenizer.fingerprint != theirs.fingerprint or not same_width:
        raise InvalidOption(
            f"draft model {model.name} and target {target.name} have different vocabularies: name "
            "the model that it drafts for with --model"
        )
    config, weights = model.config, model.weights()
    if config.rope_divisors is not None:
        raise InvalidOption(
            f"{model.name} has scaled rotary positions, which are not exported: give vLLM the "
            "model's own Hugging Face directory"
        )
    return Layout(
        method="draft_model",
        depth=None,
        config={**config_entries(config), "dtype": "float32"},
        tensors={name: weights[name] for name in tensor_names(config)},
        metadata={"model": model.fingerprint, "model_name": model.name},
        texts=tokenizer_files(tokenizer),
    )


def architecture(config: ModelConfig) -> str:
    """Return the model class in transformers and vLLM."""
    return _ARCHITECTURES[config.family]


def config_entries(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model without scaled rotary positions."""
    return {
        "architectures": [architecture(config)],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_context,
        "sliding_window": None,  # else Mistral's default, which max_context has taken in
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": config.tied_embeddings,
        "eos_token_id": list(config.eos_token_ids),
    }


def tensor_names(config: ModelConfig) -> list[str]:
    parts = [
        *("input_layernorm.weight", "post_attention_layernorm.weight"),
        *(f"self_attn.{kind}_proj.weight" for kind in "qkvo"),
        *(f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
    ]
    if config.qkv_bias:
        parts += [f"self_attn.{kind}_proj.bias" for kind in "qkv"]
    if config.qk_norm:
        parts += [f"self_attn.{kind}_norm.weight" for kind in "qk"]
    ends = ["model.embed_tokens.weight", "model.norm.weight"]
    if not config.tied_embeddings:
        ends.append("lm_head.weight")
    return ends + [f"model.layers.{i}.{part}" for i in range(config.layers) for part in parts]


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, str]:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    files = {
        "tokenizer.json": tokenizer.core.to_str(),
        "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
    }
    if tokenizer.chat_template is not None:
        files["chat_template.jinja"] = tokenizer.chat_template
    return files

"""Export directory of another engine: contents, checks and writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.cache import write_atomically
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.source import ModelSource
from paceline.models.text import Tokenizer
from paceline.models.weights import canonical_name
from paceline.networks.weights import write_tensors

_TENSORS = "model.safetensors"
_CONFIG = "config.json"

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of an export directory.

    Attributes:
        depth: most tokens of one draft; None if unlimited.
        tensors: by the engine's names; float32, or int64 and bool where they map token ids.
        texts: other files by name.
    """

    method: str
    depth: int | None
    config: Mapping[str, Any]
    tensors: Tensors
    metadata: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)


def check_folder(out: Path, force: bool) -> None:
    """Refuse a directory with files that would be lost, or loaded beside the export.

    Raises:
        InvalidOption: it is not empty (without `force`), is a file, or cannot be read.
    """
    try:
        names = sorted(path.name for path in out.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(out, error) from error
    if names and not force:
        raise InvalidOption(f"{out} is not empty: choose another --out, or write over it (--force)")
    foreign = [name for name in names if ".safetensors" in name and name != _TENSORS]
    if foreign:  # engines load whatever weights they find in the folder
        raise InvalidOption(f"{out} holds other weights, {foreign[0]}: choose another --out")


def write_layout(layout: Layout, out: Path, force: bool = False) -> None:
    """Write the directory, `config.json` last, so that an incomplete export does not load.

    Raises:
        InvalidOption: as for `check_folder`, or the directory cannot be written.
    """
    check_folder(out, force)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _CONFIG).unlink(missing_ok=True)
        advice = "free space there or choose another --out"
        metadata = {**layout.metadata, "format": "pt"}
        write_tensors(out / _TENSORS, layout.tensors, metadata, advice)
        for name, text in layout.texts.items():
            write_atomically(out / name, text)
        write_atomically(out / _CONFIG, json.dumps(layout.config, indent=2) + "\n")
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> InvalidOption:
    reason = error.strerror or error
    return InvalidOption(
        f"cannot write to {out} ({reason}): free space there or choose another --out"
    )


def layer_tensors(
    parameters: Mapping[str, LogitArray], name: str, config: ModelConfig, theirs: str
) -> Tensors:
    """Return a decoder layer's tensors under prefix `theirs`, without its input norm."""
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    queries, keys, values = np.split(parameters[f"{name}.qkv"], [wide, wide + narrow])
    gate, up = np.split(parameters[f"{name}.gate_up"], 2)
    tensors = {
        "self_attn.q_proj": queries,
        "self_attn.k_proj": keys,
        "self_attn.v_proj": values,
        "self_attn.o_proj": parameters[f"{name}.o.residual"],
        "post_attention_layernorm": parameters[f"{name}.ffn_norm"],
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": parameters[f"{name}.down.residual"],
    }
    return {f"{theirs}.{each}.weight": array for each, array in tensors.items()}


def head_rows(target: ModelSource, ids: IntArray) -> LogitArray:
    """Return rows of the target's LM head, float32 `[len(ids), width]`."""
    tied = target.config.tied_embeddings
    weights = target.weights()
    return weights["embed" if tied else "head"][ids]


def whole_head(target: ModelSource, ids: IntArray) -> LogitArray:
    """Return the LM head with zero rows outside `ids`, for engines without a draft vocabulary.

    Those tokens get logit 0, which the argmax exceeds in practice.
    """
    out = np.zeros((target.config.vocab_size, target.config.hidden_size), np.float32)
    out[ids] = head_rows(target, ids)
    return out


_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def model_layout(model: ModelSource, target: ModelSource) -> Layout:
    """Build the directory of a draft model of a Llama family, in float32.

    Raises:
        InvalidOption: the vocabularies differ, rotary positions are scaled, or its layers are not
            those of Llama.
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
    if config.rope_divisors is not None or not config.is_plain or model.denoiser:
        raise InvalidOption(
            f"{model.name} has scaled rotary positions or layers that are not exported: give vLLM "
            "the model's own Hugging Face directory"
        )
    return Layout(
        method="draft_model",
        depth=None,
        config={
            **config_entries(config),
            "dtype": "float32",
            "eos_token_id": list(tokenizer.eos_token_ids),
        },
        tensors={name: weights[canonical_name(name)] for name in tensor_names(config)},
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
        **config.hf_sizes(),
        "max_position_embeddings": config.max_context,
        "sliding_window": None,  # else Mistral's default, which max_context has taken in
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": config.tied_embeddings,
        "eos_token_id": list(config.eos_token_ids),
    }


def tensor_names(config: ModelConfig) -> list[str]:
    parts = [
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
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

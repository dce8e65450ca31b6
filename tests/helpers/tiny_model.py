"""Tiny random models and tokenizers, in memory and on disk, for tests that need no download."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.models.config import ModelConfig
from paceline.models.weights import canonical_name

Tensors = dict[str, npt.NDArray[np.float32]]
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_CORPUS = ["the quick brown fox jumps over the lazy dog", "def f(x): return x + 1", "12 34 567"]


def tiny_config(family: str = "llama", vocab_size: int = 320, layers: int = 2) -> ModelConfig:
    """A tiny model in whole groups of 32; Qwen3's heads are wider than its width suggests."""
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=64,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=32 if family == "qwen3" else 16,
        ffn_size=96,
        rope_base=10000.0,
        norm_eps=1e-5,
        max_context=256,
        tied_embeddings=family in ("llama", "qwen3"),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        eos_token_ids=(2,),
    )


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name and shape of every tensor of a model."""
    width, ffn, wide = config.hidden_size, config.ffn_size, config.heads * config.head_dim
    narrow = config.kv_heads * config.head_dim
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if not config.tied_embeddings:
        out["lm_head.weight"] = (config.vocab_size, width)
    for index in range(config.layers):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (width,),
            "post_attention_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (wide, width),
            "self_attn.k_proj.weight": (narrow, width),
            "self_attn.v_proj.weight": (narrow, width),
            "self_attn.o_proj.weight": (width, wide),
            "mlp.gate_proj.weight": (ffn, width),
            "mlp.up_proj.weight": (ffn, width),
            "mlp.down_proj.weight": (width, ffn),
        }
        if config.qkv_bias:
            layer |= {f"self_attn.{x}_proj.bias": (wide if x == "q" else narrow,) for x in "qkv"}
        if config.qk_norm:
            layer |= {f"self_attn.{x}_norm.weight": (config.head_dim,) for x in "qk"}
        out |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return out


def random_tensors(config: ModelConfig, seed: int = 0) -> Tensors:
    """Weights large enough that attention, positions and every layer matter to the logits."""
    rng = np.random.default_rng(seed)
    out: Tensors = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape)
        if "norm" in name:
            values = 1 + 0.1 * values
        elif len(shape) == 2 and "embed" not in name:
            values *= 1.5 / np.sqrt(shape[1])
        out[name] = values.astype(np.float32)
    return out


def named_tensors(config: ModelConfig, seed: int = 0) -> Tensors:
    """`random_tensors` by canonical name."""
    return {canonical_name(name): each for name, each in random_tensors(config, seed).items()}


def tiny_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """A byte-level BPE tokenizer: special tokens first, then bytes, then a few merges."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_CORPUS * 4, trainer)
    return core


def hf_config(config: ModelConfig) -> dict[str, object]:
    """The `config.json` of a model."""
    return {
        "architectures": [f"{config.family.capitalize()}ForCausalLM"],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_size,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_context,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": list(config.eos_token_ids),
    }


def save_directory(
    path: Path, config: ModelConfig, tensors: Tensors | None = None, seed: int = 0
) -> Path:
    """Write a Hugging Face directory with weights, tokenizer and chat template; returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(config, seed) if tensors is None else tensors
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer(config.vocab_size).save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(hf_config(config)), encoding="utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": {"content": SPECIAL[2]},
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    return path


def save_gguf(
    path: Path,
    config: ModelConfig,
    tensors: Tensors | None = None,
    *,
    entries: Mapping[str, Any] | None = None,
    split: int = 0,
) -> Path:
    """Write a GGUF file in the layout of llama.cpp; returns `path`.

    `entries` are more of its metadata, those without a dot in front of it of the architecture;
    `split` is the most tensors of a part.

    Matrices are stored as Q8_0 where their rows allow it, all else as F32.
    """
    arch = "llama" if config.family == "mistral" else config.family
    tensors = random_tensors(config) if tensors is None else tensors
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_context_length(config.max_context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    for name, value in (entries or {}).items():
        key = name.removeprefix(".") if name.startswith(".") else f"{arch}.{name}"
        kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        kinds |= {float: writer.add_float32, list: writer.add_array}
        kinds[type(value)](key, value)
    _add_tokenizer(writer, config)
    if config.rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(config.rope_divisors, np.float32))
    for name, values in tensors.items():
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.heads if "q_proj" in name else config.kv_heads
            # llama.cpp puts the two halves of each rotary pair side by side.
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        known = gguf_name(name)
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(known, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """The name that the gguf package gives a Hugging Face tensor."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 8)
    return str(table.get_name(name, try_suffixes=(".weight", ".bias")))


def _add_tokenizer(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    core = tiny_tokenizer(config.vocab_size)
    vocabulary = core.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    merges = json.loads(core.to_str())["model"]["merges"]
    padding = [f"[PAD{index}]" for index in range(len(tokens), config.vocab_size)]
    kinds = [3 if token in SPECIAL else 1 for token in tokens] + [5] * len(padding)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + padding)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)

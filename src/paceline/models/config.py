"""Config of a Llama-family model, from Hugging Face `config.json` or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from paceline.core.types import ProbArray
from paceline.errors import ModelError

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_ELSEWHERE = "use --runtime transformers"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a model of the Llama family (RMS norm, rotary positions, GQA, SwiGLU).

    Attributes:
        kv_heads: key and value heads; divides `heads`.
        max_context: longest sequence in tokens. A sliding window limits it, since inside the
            window sliding and full attention are the same.
        qk_norm: queries and keys are RMS-normed per head.
        rope_divisors: divisors of the `head_dim // 2` rotary frequencies (context extension).
    """

    family: Family
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    rope_base: float
    norm_eps: float
    max_context: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...] = ()
    rope_divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ModelError(
                f"{self.heads} heads over {self.kv_heads} key-value heads of width "
                f"{self.head_dim} are not a Llama-family shape: {_ELSEWHERE}"
            )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], eos_token_ids: tuple[int, ...] = ()) -> ModelConfig:
        """Read the content of a `config.json`.

        Raises:
            ModelError: the architecture or a feature is unsupported, or an entry is missing.
        """
        family = _family(config.get("model_type"))
        _refuse_hf_extras(config)
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            head_dim = int(config.get("head_dim") or hidden // heads)
            rope = _rope_parameters(config)
            base = float(rope["rope_theta"])
            context = int(config["max_position_embeddings"])
            return cls(
                family=family,
                vocab_size=int(config["vocab_size"]),
                hidden_size=hidden,
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=head_dim,
                ffn_size=int(config["intermediate_size"]),
                rope_base=base,
                norm_eps=float(config["rms_norm_eps"]),
                max_context=min(context, _hf_window(config, family) or context),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=family == "qwen2",
                qk_norm=family == "qwen3",
                eos_token_ids=eos_token_ids,
                rope_divisors=_divisors(rope, base, head_dim),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ModelError(
                f"config.json is not that of a complete {family} model ({_what(error)}): "
                "download the model again"
            ) from error

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        rope_divisors: tuple[float, ...] | None = None,
    ) -> ModelConfig:
        """Read GGUF metadata; raises ModelError as `from_hf`.

        Args:
            shapes: GGUF tensor name to shape, outer dimension first.
            rope_divisors: the `rope_freqs.weight` tensor, if the file has one.
        """
        family = _family(metadata.get("general.architecture"))
        get = _reader(metadata, family)
        if get("expert_count", 0):
            raise _unsupported("mixture-of-experts models")
        if "blk.0.attn_output.bias" in shapes:
            raise _unsupported("a bias on the attention output")
        try:
            hidden, heads = int(get("embedding_length")), int(get("attention.head_count"))
            head_dim = int(get("attention.key_length", hidden // heads))
            if int(get("rope.dimension_count", head_dim)) != head_dim:
                raise _unsupported("partial rotary positions")
            base = float(get("rope.freq_base", 10000.0))
            scaling = {
                "rope_type": str(get("rope.scaling.type", "default")).replace("none", "default"),
                "factor": get("rope.scaling.factor", 1.0),
            }
            context = int(get("context_length"))
            return cls(
                family=family,
                vocab_size=int(shapes["token_embd.weight"][0]),
                hidden_size=hidden,
                layers=int(get("block_count")),
                heads=heads,
                kv_heads=int(get("attention.head_count_kv", heads)),
                head_dim=head_dim,
                ffn_size=int(get("feed_forward_length")),
                rope_base=base,
                norm_eps=float(get("attention.layer_norm_rms_epsilon")),
                max_context=min(context, int(get("attention.sliding_window", 0)) or context),
                tied_embeddings="output.weight" not in shapes,
                qkv_bias="blk.0.attn_q.bias" in shapes,
                qk_norm="blk.0.attn_q_norm.weight" in shapes,
                eos_token_ids=gguf_eos_token_ids(metadata),
                rope_divisors=rope_divisors or _divisors(scaling, base, head_dim),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ModelError(
                f"the GGUF file is not a complete {family} model ({_what(error)}): "
                "download the model again"
            ) from error


def feature_layers(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and a high layer, whose inputs are features (EAGLE-3, section 3.1)."""
    return (min(2, layers - 1), layers // 2, max(layers - 3, 0))


def inverse_frequencies(config: ModelConfig) -> ProbArray:
    """Return the rotary angle per position, float64 `[head_dim // 2]`, in radians."""
    plain = rotary_frequencies(config.rope_base, config.head_dim)
    if config.rope_divisors is None:
        return plain
    return plain / np.asarray(config.rope_divisors, dtype=np.float64)


def gguf_eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end-of-text and end-of-turn ids of GGUF metadata."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(int(metadata[name]) for name in names if name in metadata))


def hf_eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end ids of the first config that has any: generation config, then model config."""
    for config in configs:
        ids = config.get("eos_token_id")
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def _family(name: object) -> Family:
    if name not in _FAMILIES:
        raise ModelError(
            f"architecture {name!r} is not one of {', '.join(_FAMILIES)}: {_ELSEWHERE}"
        )
    return cast(Family, name)


def _unsupported(feature: str) -> ModelError:
    return ModelError(f"this runtime does not support {feature}: {_ELSEWHERE}")


def _what(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)


def _reader(metadata: Mapping[str, Any], family: str) -> Callable[..., Any]:
    def get(name: str, *default: Any) -> Any:
        key = f"{family}.{name}"
        return metadata.get(key, default[0]) if default else metadata[key]

    return get


def _refuse_hf_extras(config: Mapping[str, Any]) -> None:
    if config.get("attention_bias") and config.get("model_type") != "qwen2":
        raise _unsupported("a bias on the attention output")
    if config.get("mlp_bias"):
        raise _unsupported("a bias in the feed-forward layers")
    if config.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"the activation {config['hidden_act']!r}")
    if config.get("quantization_config"):
        raise _unsupported("checkpoints quantised for another library")


def _hf_window(config: Mapping[str, Any], family: Family) -> int | None:
    if family.startswith("qwen") and not config.get("use_sliding_window"):
        return None
    return config.get("sliding_window")


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    # Newer configs have one dict; older ones rope_theta beside an optional rope_scaling.
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise _unsupported("partial rotary positions")
    return parameters


def rotary_frequencies(base: float, head_dim: int) -> ProbArray:
    """Return `inverse_frequencies` without context extension."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    return np.asarray(base**-exponents, dtype=np.float64)


def _divisors(rope: Mapping[str, Any], base: float, head_dim: int) -> tuple[float, ...] | None:
    kind = rope["rope_type"]
    if kind == "default":
        return None
    if kind == "linear":
        return (float(rope["factor"]),) * (head_dim // 2)
    if kind == "llama3":
        return _llama3_divisors(rope, rotary_frequencies(base, head_dim))
    raise _unsupported(f"rotary positions of type {kind!r}")


def _llama3_divisors(rope: Mapping[str, Any], frequencies: ProbArray) -> tuple[float, ...]:
    # Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
    factor = float(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = float(rope["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1.0 / (kept + (1.0 - kept) / factor)).tolist())

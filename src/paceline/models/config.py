"""Config of a decoder model, from Hugging Face `config.json` or GGUF metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from paceline.core.types import CanvasTraits, Capabilities, LogitArray, ProbArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.ops import Activation, Experts, Multipliers, Rotary, StateHeads, Temperature

ELSEWHERE = "use --runtime transformers"
# Whose `attention_bias` says nothing of the attention output; and whose output has one.
_QKV_BIASED = ("qwen2", "Dream", "Fast_dLLM_Qwen", "wedlm")
_OUTPUT_BIASED = ("gpt_oss",)
# Whose capped logits are read.
_CAPPED = ("gemma4_text",)

FINAL = -1
"""Boundary after the final norm; boundary b is the state that enters layer b."""

Pooling = Literal["last", "mean", "cls", "rank"]
# By their numbers in GGUF files; 0 is none.
_POOLINGS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last", 4: "rank"}


# Of a GGUF file's tensors by name, outer dimension first.
Shapes = Mapping[str, tuple[int, ...]]


def as_it_is(metadata: Mapping[str, Any], _: Shapes) -> Mapping[str, Any]:
    """Return metadata that need no other words."""
    return metadata


@dataclass(frozen=True, slots=True)
class Latents:
    """Keys and values as low-rank latents (DeepSeek-AI 2024, arXiv:2405.04434).

    Attributes:
        query_rank: of the latents that queries are made of; 0 for none.
        rank: of the latents.
        rotated: numbers of a query and a key that have rotary positions.
        plain: other numbers of a query, as files have them.
        values: of a head.
    """

    query_rank: int
    rank: int
    rotated: int
    plain: int
    values: int

    def shapes(self, heads: int, width: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer with so many heads over rows of `width`, but its norm.

        Those that it has not have a size of 0: queries are made of latents, or of rows.
        """
        low, queries = self.query_rank, heads * (self.rotated + self.plain)
        return {
            **{"q_a_norm": (low,), "kv_a_norm": (self.rank,), "q_a": (low, width)},
            **{"q_b": (queries, low), "q": (queries, 0 if low else width)},
            **{"kv_a": (self.rotated + self.rank, width), "o": (width, heads * self.values)},
            **{f"heads.{each}.k": (self.rank, self.plain) for each in range(heads)},
            **{f"heads.{each}.v": (self.values, self.rank) for each in range(heads)},
        }


@dataclass(frozen=True, slots=True)
class Encoder:
    """What makes a memory for a decoder; width, heads and feed-forward blocks are the decoder's.

    Attributes:
        layers: of the encoder.
        rows: most rows of a memory, each of two frames.
        mels: numbers of a frame.
    """

    layers: int
    rows: int
    mels: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder model with RMS norms, rotary positions and gated feed-forward blocks.

    Attributes:
        family: its `model_type` in Hugging Face configs.
        kv_heads: key and value heads; divides `heads`.
        max_context: longest sequence in tokens.
        qk_norm: queries and keys are RMS-normed per head.
        norms_after: norms follow attention and feed-forward blocks, and none precede them.
        sinks: attention has a score of no key by head, see `Heads`.
        rope_divisors: divisors of the rotary frequencies (context extension).
        rope_factor: of cosines and sines (YaRN, LongRoPE).
        rotated: first numbers of a head that are rotated; 0 for all.
        local_rope_base: rotary base of layers with a window, not extended; None for `rope_base`.
        windows: newest keys that each layer sees, 0 for all; empty if no layer has a window.
        no_positions: layers without rotary positions.
        learned_positions: rows of a table, by position, are added to embeddings.
        encoder: makes what layers look at beside the text; None for none.
        attention_scale: of scores; 0 for `head_dim ** -0.5`.
        experts: in place of feed-forward blocks, but for `dense_layers`; None for none.
        state_heads: of layers in `recurrent`; None for short convolutions.
        short_taps: rows that a short convolution reads, the last its own; 0 for none.
        temperature: of queries, by position; None for none.
        latents: which a head of keys holds behind their rotated numbers; None for none.
        recurrent: layers with a state in place of attention, or beside it if `both`.
        multipliers: of the parts of such layers.
        feed_forward_layers: those that are this block alone, which the others then lack.
        full_kv_heads: those of layers without a window, where they differ; likewise
            `full_head_dim`.
        values_are_keys: layers without a window have no value matrix: their values are their keys
            before norm and rotary.
        value_norm: values are RMS-normed per head, without weights.
        lenders: the layer whose keys and values each layer reads, itself or one before; empty if
            none lends.
        layer_inputs: numbers that each layer reads of a token beside the stream; 0 for none.
        logit_cap: logits lie between it and its opposite, by their tanh; 0 for none.
        denoises: how it fills a canvas, if it was trained to.
        pooling: how the state of a text is made of those of its tokens.
        token_to_come: it was trained to foretell where this id stands for tokens (PARD).
    """

    family: str
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
    qkv_bias: bool = False
    qk_norm: bool = False
    norms_after: bool = False
    sinks: bool = False
    eos_token_ids: tuple[int, ...] = ()
    rope_divisors: tuple[float, ...] | None = None
    rope_factor: float = 1.0
    rotated: int = 0
    local_rope_base: float | None = None
    windows: tuple[int, ...] = ()
    no_positions: tuple[int, ...] = ()
    learned_positions: bool = False
    encoder: Encoder | None = None
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0
    logit_scale: float = 1.0
    experts: Experts | None = None
    dense_layers: tuple[int, ...] = ()
    state_heads: StateHeads | None = None
    short_taps: int = 0
    temperature: Temperature | None = None
    latents: Latents | None = None
    recurrent: tuple[int, ...] = ()
    both: bool = False
    multipliers: Multipliers | None = None
    feed_forward_layers: tuple[int, ...] = ()
    full_kv_heads: int = 0
    full_head_dim: int = 0
    values_are_keys: bool = False
    value_norm: bool = False
    lenders: tuple[int, ...] = ()
    layer_inputs: int = 0
    logit_cap: float = 0.0
    denoises: CanvasTraits | None = None
    pooling: Pooling = "last"
    token_to_come: int | None = None

    def __post_init__(self) -> None:
        full = self.full_kv_heads or self.kv_heads, self.full_head_dim or self.head_dim
        for kv_heads, width in ((self.kv_heads, self.head_dim), full):
            few = min(self.heads, kv_heads, width) < 1
            if few or self.heads % kv_heads or width % 2:
                raise ModelError(
                    f"{self.heads} heads over {kv_heads} key-value heads of width {width} are not "
                    f"a shape of family {self.family}: {ELSEWHERE}"
                )

    def refuse_added_embeddings(self) -> None:
        """Raise InvalidOption if layers read tokens too: rows of other embeddings have none."""
        if self.layer_inputs:
            raise InvalidOption(
                f"layers of family {self.family} read tokens too, so no row has an embedding of "
                "another: choose a method that drafts tokens"
            )

    def refuse_to_lend(self, network: str, to: ModelConfig) -> None:
        """Raise InvalidOption if layers differ in shape, and those of a network do not."""
        if (self.full_head_dim or self.full_kv_heads) and not to.full_head_dim:
            raise InvalidOption(
                f"network '{network}' reads keys and values of its target, whose layers differ in "
                "shape: choose one that reads none"
            )

    def refuse_to_look(self, network: str) -> None:
        """Raise InvalidOption if texts of this model are of no sound."""
        if self.encoder is None:
            raise InvalidOption(
                f"network '{network}' needs a sound, and this model hears none: choose a Whisper"
            )

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that store keys and values, in the order of a cache."""
        lent = (i for i, lender in enumerate(self.lenders) if lender != i)
        others = {*(() if self.both else self.recurrent), *self.feed_forward_layers, *lent}
        return tuple(index for index in range(self.layers) if index not in others)

    def kv_shape(self, index: int) -> tuple[int, int]:
        """Return how many key-value heads a layer has, and how wide its heads are."""
        if self.windows and self.windows[index]:
            return self.kv_heads, self.head_dim
        return self.full_kv_heads or self.kv_heads, self.full_head_dim or self.head_dim

    @property
    def kv_shapes(self) -> tuple[tuple[int, int], ...]:
        """`kv_shape` of `attention_layers`."""
        return tuple(map(self.kv_shape, self.attention_layers))

    @property
    def widest(self) -> tuple[int, int]:
        """Most key-value heads of a layer, and the greatest width of a head."""
        return (
            max(self.kv_heads, self.full_kv_heads),
            max(self.head_dim, self.full_head_dim),
        )

    @property
    def taps(self) -> int:
        """Rows that the convolutions of recurrent layers read; 0 if it has none."""
        return self.short_taps if self.state_heads is None else self.state_heads.taps

    def capabilities(self, runtime: str, device: str, precision: str) -> Capabilities:
        """Return what a runtime that runs the model's layers and networks beside it can do."""
        return Capabilities(
            runtime=runtime,
            device=device,
            precision=precision,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            hidden_size=self.hidden_size,
            hidden_states=True,
            bit_exact=False,
            feature_layers=feature_layers(self.layers),
            blocks=not self.recurrent,
            rollback=0 if self.recurrent else None,
            networks=True,
            denoises=self.denoises,
        )

    @property
    def slides(self) -> bool:
        """Whether tokens may leave a text: layers know places by their distance alone."""
        return not self.recurrent and self.encoder is None and self.temperature is None

    @property
    def is_plain(self) -> bool:
        """Whether its layers are Llama's: no windows, extended positions, scales, experts."""
        scales = (self.embedding_scale, self.residual_scale, self.logit_scale)
        return (
            scales == (1.0, 1.0, 1.0)
            and not (self.windows or self.no_positions or self.attention_scale or self.rotated)
            and self.rope_factor == 1.0
            and self.temperature is None
            and self.activation == "silu"
            and not self.norms_after
            and self.experts is None
            and not (self.recurrent or self.sinks or self.lenders or self.layer_inputs)
            and self.encoder is None
            and not (self.logit_cap or self.full_kv_heads or self.full_head_dim or self.value_norm)
        )

    def hf_sizes(self) -> dict[str, Any]:
        """Return sizes, activation and norm of a Llama, as a `config.json` has them."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.ffn_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
        }

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        family: str,
        changes: Callable[[Mapping[str, Any]], dict[str, Any]],
        eos_token_ids: tuple[int, ...] = (),
        entries: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> ModelConfig:
        """Read a `config.json`; raises ModelError as `families.hf_config`."""
        try:
            config = entries(config)
            _refuse_hf_extras(config)
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            head_dim = int(config.get("head_dim") or hidden // heads)
            rope = _rope_parameters(config)
            rotated = _rotated(head_dim, rope["partial_rotary_factor"])
            base, context = float(rope["rope_theta"]), int(config["max_position_embeddings"])
            divisors, factor = _extension(rope, base, rotated or head_dim, context)
            general = {
                "family": family,
                "vocab_size": int(config["vocab_size"]),
                "hidden_size": hidden,
                "layers": int(config["num_hidden_layers"]),
                "heads": heads,
                "kv_heads": int(config.get("num_key_value_heads") or heads),
                "head_dim": head_dim,
                "ffn_size": int(config["intermediate_size"]),
                "rope_base": base,
                "norm_eps": float(config["rms_norm_eps"]),
                "max_context": context,
                "tied_embeddings": bool(config.get("tie_word_embeddings", family == "gemma3_text")),
                "eos_token_ids": eos_token_ids,
                "rope_divisors": divisors,
                "rope_factor": factor,
                "rotated": rotated,
                "token_to_come": config.get("pard_token", config.get("ptd_token_id")),
            }
            return cls(**{**general, **changes(config)})
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise ModelError(
                f"config.json is not that of a complete {family} model ({_what(error)}): "
                "download the model again"
            ) from error

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        shapes: Shapes,
        family: str,
        changes: Callable[[Entries], dict[str, Any]],
        divisors: Mapping[str, Sequence[float]],
        entries: Callable[[Mapping[str, Any], Shapes], Mapping[str, Any]] = as_it_is,
    ) -> ModelConfig:
        """Read GGUF metadata; arguments and errors as for `families.gguf_config`."""
        if "blk.0.attn_output.bias" in shapes and family not in _OUTPUT_BIASED:
            raise _unsupported("a bias on the attention output")
        try:
            get = Entries(entries(metadata, shapes))
            hidden, heads = int(get("embedding_length")), int(get("attention.head_count"))
            head_dim = int(get("attention.key_length", hidden // heads))
            rotated = int(get("rope.dimension_count", head_dim))
            if rotated % 2 or not 0 < rotated <= head_dim:
                raise _unsupported(f"rotary positions over {rotated} numbers of {head_dim}")
            base, context = float(get("rope.freq_base", 10000.0)), int(get("context_length"))
            extended, factor = _gguf_extension(get, divisors, base, rotated, context)
            general = {
                "family": family,
                "vocab_size": int(shapes["token_embd.weight"][0]),
                "hidden_size": hidden,
                "layers": int(get("block_count")),
                "heads": heads,
                "kv_heads": _by_layer(get("attention.head_count_kv", heads), "key-value heads"),
                "head_dim": head_dim,
                "ffn_size": _by_layer(
                    get("feed_forward_length", get("expert_feed_forward_length", 0)),
                    "feed-forward sizes",
                ),
                "rope_base": base,
                "norm_eps": float(_epsilon(get)),
                "max_context": context,
                "tied_embeddings": "output.weight" not in shapes,
                "qkv_bias": "blk.0.attn_q.bias" in shapes,
                "qk_norm": "blk.0.attn_q_norm.weight" in shapes,
                "eos_token_ids": gguf_eos_token_ids(metadata),
                "rope_divisors": extended,
                "rope_factor": factor,
                "rotated": 0 if rotated == head_dim else rotated,
                "pooling": _POOLINGS.get(int(get("pooling_type", 0)), "last"),
            }
            found = cls(**{**general, **changes(get)})
            if not found.ffn_size:
                raise KeyError("feed_forward_length")
            if 0 in np.atleast_1d(get("attention.head_count_kv", heads)) and not found.recurrent:
                raise _unsupported(f"layers without attention of family {family}")
            if get("expert_count", 0) and found.experts is None:
                raise _unsupported(f"mixtures of experts of family {family}")
            get.refuse_unread(found)
            return found
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ModelError(
                f"the GGUF file is not a complete {family} model ({_what(error)}): "
                "download the model again"
            ) from error


def _epsilon(get: Entries) -> Any:
    # Files of Nemotron may have the other name alone, as llama.cpp reads them.
    other = get("attention.layer_norm_epsilon", None)
    name = "attention.layer_norm_rms_epsilon"
    return get(name) if other is None else get(name, other)


def _by_layer(count: Any, what: str) -> int:
    # A number, or one by layer, which is 0 where there is none.
    counts = {int(each) for each in np.atleast_1d(count)} - {0}
    if len(counts) > 1:
        raise _unsupported(f"layers of {sorted(counts)} {what}")
    return counts.pop() if counts else 0


def feature_layers(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and a high layer, whose inputs are features (EAGLE-3, section 3.1)."""
    return (min(2, layers - 1), layers // 2, max(layers - 3, 0))


def features_with(
    layers: int, more: tuple[int, ...], asked: Sequence[int]
) -> tuple[tuple[int, ...], list[int]]:
    """Return `more`, boundaries that features have behind the usual ones, with those asked for.

    And the places of these among the parts of `Output.features`.
    """
    known = [*feature_layers(layers), FINAL, *more]
    fresh = [each for each in dict.fromkeys(asked) if each not in known]
    known += fresh
    return (*more, *fresh), [known.index(each) for each in asked]


def inverse_frequencies(config: ModelConfig) -> ProbArray:
    """Return the rotary angle per position, float64 `[rotated // 2]`, in radians.

    Those of layers without a window, where they differ.
    """
    width = config.full_head_dim or config.head_dim
    plain = rotary_frequencies(config.rope_base, config.rotated or width)
    if config.rope_divisors is None:
        return plain
    return plain / np.asarray(config.rope_divisors, dtype=np.float64)


@lru_cache(maxsize=64)
def rotary(config: ModelConfig, index: int) -> Rotary | None:
    """Return the rotary positions of a layer; None if it has none."""
    if index in config.no_positions:
        return None
    if config.local_rope_base is not None and config.windows and config.windows[index]:
        local = rotary_frequencies(config.local_rope_base, config.rotated or config.head_dim)
        return Rotary(tuple(local.tolist()))
    return Rotary(tuple(inverse_frequencies(config).tolist()), config.rope_factor)


def temperature(strength: float, span: int, context: int) -> Temperature | None:
    """Return `1 + strength * log(1 + position // span)` up to a context; None if that is 1."""
    factors = tuple(1 + strength * _log(1 + step) for step in range(-(-context // span)))
    return Temperature(span, factors) if any(each != 1 for each in factors) else None


def gguf_eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end-of-text and end-of-turn ids of GGUF metadata."""
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return tuple(dict.fromkeys(int(metadata[name]) for name in names if name in metadata))


def hf_eos_token_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end ids of the first config that has any: generation config, then model config.

    Raises ModelError if they are no ids.
    """
    given = (config.get("eos_token_id") for config in configs)
    found: Any = next((each for each in given if each is not None), [])
    ids = tuple(found) if isinstance(found, list) else (found,)
    if not all(type(each) is int for each in ids):
        raise ModelError(
            f"the config's eos_token_id is {str(found)[:40]!r}: give the ids of tokens"
        )
    return ids


def _unsupported(feature: str) -> ModelError:
    return ModelError(f"this runtime does not support {feature}: {ELSEWHERE}")


def _what(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)


# Entries of GGUF files that change what a model computes, by the beginning of their names or a word
# in them; and values at which they change nothing.
_CHANGES = re.compile(
    r"rope\.|attention\.|expert|activation|leading_dense|"
    r".*(scale|capping|clamp|parallel|residual|multiplier|interleave|loop|hidden_act)"
)
_NEUTRAL = {
    "attention.causal": True,
    "expert_gating_func": 1,  # softmax
    "expert_weights_norm": True,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    # llama.cpp reads these of no family here.
    "rope.scaling.yarn_ext_factor": -1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.finetuned": True,
}
# Of shapes that the tensors have, or of norms that no family here has.
_SHAPES = (
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "attention.layer_norm_epsilon",
)


class Entries:
    """Reads a family's entries of GGUF metadata: `entries(name)`, or `entries(name, default)`."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._prefix = f"{metadata.get('general.architecture')}."
        self._metadata, self._read = metadata, set[str]()

    def __call__(self, name: str, *default: Any) -> Any:
        self._read.add(name)
        key = self._prefix + name
        return self._metadata.get(key, default[0]) if default else self._metadata[key]

    def refuse_unread(self, config: ModelConfig) -> None:
        """Raise ModelError for an entry that was not read and changes what is computed."""
        same = {
            **_NEUTRAL,
            "attention.value_length": config.head_dim,
            "rope.dimension_count_swa": config.rotated or config.head_dim,
            "embedding_scale": config.embedding_scale,
            "attention.scale": config.attention_scale or config.head_dim**-0.5,
        }
        for key, value in self._metadata.items():
            name = key.removeprefix(self._prefix)
            if name == key or name in self._read or name in _SHAPES or not _CHANGES.match(name):
                continue
            if name == "attention.sliding_window" and int(value) >= config.max_context:
                continue
            usual = same.get(name, 1.0 if "scale" in name else 0)
            neutral = isinstance(value, int | float) and (
                not value or math.isclose(value, usual, rel_tol=1e-6)
            )
            if not neutral or (name == "attention.causal" and not value):
                raise _unsupported(f"{key} {value}")


def _refuse_hf_extras(config: Mapping[str, Any]) -> None:
    biased = (*_QKV_BIASED, *_OUTPUT_BIASED)
    if config.get("attention_bias") and config.get("model_type") not in biased:
        raise _unsupported("a bias on the attention output")
    if config.get("mlp_bias"):
        raise _unsupported("a bias in the feed-forward layers")
    activation = config.get("hidden_activation") or config.get("hidden_act", "silu")
    if activation not in ("silu", "gelu_pytorch_tanh"):
        raise _unsupported(f"the activation {activation!r}")
    capped = config.get("model_type") not in _CAPPED and config.get("final_logit_softcapping")
    if capped or config.get("attn_logit_softcapping"):
        raise _unsupported("capped scores or logits")
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        raise _unsupported("attention to later tokens")
    more = ["linear_attention"] if "linear_num_value_heads" in config else []
    more += ["conv"] if "conv_L_cache" in config else []
    for kind in config.get("layer_types") or ():
        if kind not in ("full_attention", "sliding_attention", *more):
            raise _unsupported(f"layers of type {kind!r}")


_ROPE_NAMES = """
rope_type type rope_theta factor original_max_position_embeddings attention_factor beta_fast
beta_slow mscale mscale_all_dim truncate low_freq_factor high_freq_factor short_factor long_factor
partial_rotary_factor finetuned short_mscale long_mscale
"""
_ROPE = frozenset(_ROPE_NAMES.split())


def _rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    # Newer configs have one dict, or one by kind of layer; older ones rope_theta beside an optional
    # rope_scaling.
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters = dict(parameters.get("full_attention", parameters))
    for name in sorted(parameters.keys() - _ROPE):
        if parameters[name]:
            raise _unsupported(f"rotary positions with {name} {parameters[name]!r}")
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    if parameters["rope_type"] == "su":
        parameters["rope_type"] = "longrope"
    parameters.setdefault("partial_rotary_factor", config.get("partial_rotary_factor"))
    original = config.get("original_max_position_embeddings")
    parameters.setdefault(
        "original_max_position_embeddings", original or config["max_position_embeddings"]
    )
    return parameters


def _rotated(head_dim: int, share: float | None) -> int:
    rotated = int(head_dim * (1.0 if share is None else share))
    if rotated % 2 or not 0 < rotated <= head_dim:
        raise _unsupported(f"rotary positions over {rotated} numbers of {head_dim}")
    return 0 if rotated == head_dim else rotated


def rotary_frequencies(base: float, head_dim: int) -> ProbArray:
    """Return `inverse_frequencies` without context extension."""
    return np.array(_powers(base, head_dim))


# Decimals are rounded alike everywhere; powers and logarithms of C libraries are not.
_DECIMAL = Context(prec=40, traps=[])


@lru_cache(maxsize=64)
def _powers(base: float, head_dim: int) -> tuple[float, ...]:
    exponents = (Decimal(-index / head_dim) for index in range(0, head_dim, 2))
    return tuple(float(_DECIMAL.power(Decimal(base), each)) for each in exponents)


def _log(x: float) -> float:
    return float(_DECIMAL.ln(Decimal(x)))


def exponentials(x: LogitArray) -> LogitArray:
    """Return e^x of some numbers, rounded once."""
    found = [float(_DECIMAL.exp(Decimal(each))) for each in x.ravel().tolist()]
    return np.array(found, dtype=np.float32).reshape(x.shape)


def _extension(
    rope: Mapping[str, Any], base: float, rotated: int, context: int
) -> tuple[tuple[float, ...] | None, float]:
    # Divisors of the frequencies, and the factor of cosines and sines.
    kind = rope["rope_type"]
    if kind in ("default", "dynamic"):  # up to the model's own context these are the same
        return None, 1.0
    if kind == "linear":
        return (_factor(rope["factor"]),) * (rotated // 2), 1.0
    if kind == "llama3":
        return _llama3_divisors(rope, rotary_frequencies(base, rotated)), 1.0
    if kind == "yarn":
        return yarn(rope, base, rotated)
    if kind == "longrope":
        return _longrope(rope, context)
    raise _unsupported(f"rotary positions of type {kind!r}")


def yarn(rope: Mapping[str, Any], base: float, rotated: int) -> tuple[tuple[float, ...], float]:
    """Return divisors of the frequencies, and the factor of cosines and sines (Peng et al. 2023).

    Slow frequencies are interpolated, fast ones kept, those between blended; `rope` is as in a
    Hugging Face config, `rotated` the numbers of a head that are.
    """
    factor, original = _factor(rope["factor"]), float(rope["original_max_position_embeddings"])

    def place(turns: float) -> float:
        return rotated * _log(original / (turns * 2 * math.pi)) / (2 * _log(base))

    low = place(float(rope.get("beta_fast") or 32))
    high = place(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = (np.arange(rotated // 2) - low) / max(high - low, 0.001)
    slow = np.clip(ramp, 0.0, 1.0)
    attention = rope.get("attention_factor")
    if attention is None:
        parts = [rope.get(name) for name in ("mscale", "mscale_all_dim")]
        over, under = parts if all(parts) else (1.0, 0.0)
        attention = stretch(factor, float(over or 0.0)) / stretch(factor, float(under or 0.0))
    return tuple((1.0 / (1 - slow + slow / factor)).tolist()), float(attention)


def _factor(given: Any) -> float:
    factor = float(given)
    if not 0 < factor < math.inf:
        raise ValueError(f"positions are scaled by {factor}")
    return factor


def stretch(factor: float, scale: float) -> float:
    """Return how YaRN makes scores larger where it extends positions by a factor."""
    return 0.1 * scale * _log(factor) + 1.0 if factor > 1 else 1.0


# Divisors of frequencies from which on numbers are not rotated at all.
_STILL = 1e30


def _gguf_extension(
    get: Entries, divisors: Mapping[str, Sequence[float]], base: float, rotated: int, context: int
) -> tuple[tuple[float, ...] | None, float]:
    # By llama.cpp's rules: scaling is linear unless the file says otherwise, `attn_factor` is of
    # what the kind of scaling gives, and factors by frequency multiply it.
    kind = str(get("rope.scaling.type", "linear"))
    found = get("rope.scaling.factor", None)
    factor = _factor(float(get("rope.scale_linear", 0.0) if found is None else found) or 1.0)
    get("rope.scale_linear", None)
    times = float(get("rope.scaling.attn_factor", 1.0))
    original = get("rope.scaling.original_context_length", context) or context
    given: Sequence[float] | None = None
    long = divisors.get("rope_factors_long.weight")
    if "rope_freqs.weight" in divisors:
        given = divisors["rope_freqs.weight"]
    elif long is not None:
        short = divisors["rope_factors_short.weight"]
        given = long if context > original else short
    extended: Sequence[float] | None = None
    if kind == "yarn":
        if given is not None:
            raise _unsupported("yarn beside factors by frequency")
        # Of what shrinks again with the factor; llama.cpp divides by it.
        again = float(get("rope.scaling.yarn_log_multiplier", 0.0))
        rope = {"factor": factor, "original_max_position_embeddings": original}
        rope |= {"mscale": 1.0, "mscale_all_dim": again} if again else {}
        extended, attention = yarn(rope, base, rotated)
        times *= attention
    elif kind in ("linear", "longrope", "none"):
        if kind != "none" and factor != 1.0:
            extended = (factor,) * (rotated // 2)
    else:
        raise _unsupported(f"rotary positions of type {kind!r}")
    if given is not None:
        given = [math.inf if each >= _STILL else each for each in given]
        extended = [f * (extended[i] if extended else 1.0) for i, f in enumerate(given)]
    return None if extended is None else tuple(map(float, extended)), times


def _longrope(rope: Mapping[str, Any], context: int) -> tuple[tuple[float, ...], float]:
    # One set of factors for contexts as in training, another for longer ones (Ding et al. 2024).
    original = int(rope["original_max_position_embeddings"])
    factors = rope["long_factor" if context > original else "short_factor"]
    attention = rope.get("attention_factor")
    if attention is None:
        stretch = float(rope.get("factor") or context / original)
        attention = math.sqrt(1 + _log(stretch) / _log(original)) if stretch > 1 else 1.0
    return tuple(map(float, factors)), float(attention)


def _llama3_divisors(rope: Mapping[str, Any], frequencies: ProbArray) -> tuple[float, ...]:
    # Long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
    factor = _factor(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    turns = float(rope["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple((1.0 / (kept + (1.0 - kept) / factor)).tolist())

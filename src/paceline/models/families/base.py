"""What families of decoder models share: names, readers of configs, and the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.core.target import Half, Layer
from paceline.models.config import Encoder, ModelConfig, Shapes, as_it_is, feature_layers, rotary
from paceline.models.ops import Activation, Heads, Ops, Rows, Sight

# Tensors outside the layers in Hugging Face checkpoints, by canonical name.
HF_ENDS = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
GGUF_ENDS = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
# Parts of a layer in Hugging Face checkpoints and in GGUF files, by canonical name.
HF_PARTS = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
GGUF_PARTS = {
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}

# Half of the layer of some index: what comes in to what goes out.
Step = Callable[[Ops, ModelConfig, int, Rows], Rows]

# Reads an entry of a config: `get(name)`, or `get(name, default)`.
Get = Callable[..., Any]


def _nothing(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    Attributes:
        hf: its `model_type` in Hugging Face configs.
        gguf: its architecture in GGUF files; empty if they are not read.
        hf_ends: names of the tensors outside the layers in checkpoints.
        gguf_ends: names of them in GGUF files, beside Llama's or in place of them.
        hf_layers: what the names of a layer's tensors begin with, before its index.
        hf_encoder: likewise those of an encoder's layers, whose parts have the same names.
        hf_parts: names of a layer's parts in checkpoints; "{}" is the number of an expert.
        gguf_parts: names of a layer's parts in GGUF files.
        fused: parts that lie in one tensor where a format names it by all of them.
        interleaved: GGUF files interleave the rotary halves of query and key rows.
        norms_less_one: checkpoints hold the weights of norms less one, but those of `whole`.
        whole: parts.
        hf_stacked: names in checkpoints of tensors with a part of all experts, where they are
            there; parts of one tensor are rows of each expert in turn. Likewise `gguf_stacked`,
            beside GGUF's usual ones, of any part.
        rows: parts that are matrices of one row, which GGUF files have as vectors.
        bare: names in files that have no ".weight" behind them; of no norms.
        convolutions: matrices that checkpoints have as `[outputs, inputs, taps]`.
        logarithms: parts of which checkpoints hold the logarithm of the opposite.
        gated_queries: of each head "q" has first its queries, then what gates its results.
        wraps: each `model_type` of configs whose text model is of this family.
        usual: what these leave out of that model's, where it is as in transformers.
        entries: a Hugging Face config in the words of Llama's.
        gguf_entries: likewise a GGUF file's metadata, from these and the shapes of its tensors.
        from_hf: changes of the general config, from those entries.
        from_gguf: changes of it, from a GGUF file's metadata.
        facts: of denoisers: fields of `CanvasTraits` that hold for every checkpoint unless it says
            otherwise; empty for autoregressive families.
        hf_mtp: names in checkpoints of what stands around the layer behind the last, by part; with
            "{}", which is its number, its own names count on, else they begin "mtp.layers.0".
        mtp: that layer, which drafts, or two of half a layer; None if a model brings none.
        stacked: checkpoints hold the experts of a layer as `models.stacked` says.
        halves: of a layer, attention and feed-forward block; None for those of Llama.
        reading: makes them from the rows' tokens, where layers read these too.
        encoder: writes the memory of frames, which the layers look at; None for none.
    """

    hf: str
    gguf: str
    hf_ends: Mapping[str, str] = field(default_factory=lambda: HF_ENDS)
    gguf_ends: Mapping[str, str] = field(default_factory=dict)
    hf_layers: str = "model.layers"
    hf_encoder: str = ""
    hf_parts: Mapping[str, str] = field(default_factory=lambda: HF_PARTS)
    gguf_parts: Mapping[str, str] = field(default_factory=lambda: GGUF_PARTS)
    fused: Sequence[tuple[str, ...]] = ()
    interleaved: bool = False
    norms_less_one: bool = False
    whole: Sequence[str] = ()
    hf_stacked: Mapping[str, str] = field(default_factory=dict)
    gguf_stacked: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[str] = ()
    bare: Sequence[str] = ()
    convolutions: Sequence[str] = ()
    logarithms: Sequence[str] = ()
    gated_queries: bool = False
    wraps: Sequence[str] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    entries: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    gguf_entries: Callable[[Mapping[str, Any], Shapes], Mapping[str, Any]] = as_it_is
    from_hf: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing
    from_gguf: Callable[[Get], dict[str, Any]] = _nothing
    facts: Mapping[str, Any] = field(default_factory=dict)
    hf_mtp: Mapping[str, str] = field(default_factory=dict)
    mtp: Callable[[Ops, ModelConfig, int, Rows, Sight], Rows] | None = None
    stacked: bool = False
    halves: tuple[Step, Step] | None = None
    reading: Callable[[Ops, ModelConfig, Rows], tuple[Step, Step]] | None = None
    encoder: Callable[[Ops, ModelConfig, Encoder, Rows, bool], None] | None = None


def heads_of(config: ModelConfig, index: int) -> Heads:
    """Return the attention of a layer."""
    name = f"layers.{index}"
    scale = config.attention_scale or 1 / math.sqrt(config.head_dim)
    window = config.windows[index] if config.windows else 0
    kv_heads, width = config.kv_shape(index)
    return Heads(
        config.heads,
        kv_heads,
        width,
        scale,
        rotary(config, index),
        window,
        f"{name}.q_norm" if config.qk_norm else None,
        f"{name}.k_norm" if config.qk_norm else None,
        config.temperature,
        f"{name}.sinks" if config.sinks else None,
        config.value_norm,
    )


class LayerNames(NamedTuple):
    """Names of a layer's tensors; `norm` is that of attention, None for none."""

    norm: str | None
    qkv: Sequence[str]
    o: str
    ffn_norm: str
    gate_up: Sequence[str]
    down: str

    @classmethod
    def of(cls, index: int, side: str = "") -> LayerNames:
        """Return those of a layer; `side` is "encoder." for one of an encoder."""
        name = f"{side}layers.{index}"
        return cls(
            f"{name}.attention_norm",
            [f"{name}.{part}" for part in "qkv"],
            f"{name}.o",
            f"{name}.ffn_norm",
            [f"{name}.gate", f"{name}.up"],
            f"{name}.down",
        )


def attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """Return attention over normed rows, before its output matrix."""
    names = LayerNames.of(index)
    qkv = ops.linear(x, names.qkv, norm=names.norm)
    layer = config.attention_layers.index(index) if config.recurrent else index
    return ops.attend(layer, qkv, heads_of(config, index))


def feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """Return the gated half of the feed-forward block, over normed rows."""
    names = LayerNames.of(index)
    return ops.gated(x, names.gate_up, activation=config.activation, norm=names.ffn_norm)


def add_attention(
    ops: Ops,
    config: ModelConfig,
    names: LayerNames,
    x: Rows,
    sees: Sight = "context",
    layer: int = 0,
    *,
    read: Rows | None = None,
) -> Rows:
    """Return the stream with attention added.

    Attention is that of `layer`, caches as it, and reads `read`, or else the stream `x`. After
    "last" the stream goes on with the last rows.
    """
    qkv = ops.linear(x if read is None else read, names.qkv, norm=names.norm)
    mixed = ops.attend(layer, qkv, heads_of(config, layer), sees)
    residual = ops.last(x) if sees == "last" else x
    return ops.linear(mixed, [names.o], residual=residual)


def add_feed_forward(
    ops: Ops, names: LayerNames, x: Rows, activation: Activation = "silu", scale: float = 1.0
) -> Rows:
    """Return the stream with a gated feed-forward block added."""
    gated = ops.gated(x, names.gate_up, activation=activation, norm=names.ffn_norm)
    return ops.linear(gated, [names.down], scale=scale, residual=x)


def llama_attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """Attention, added to the stream (Touvron et al. 2023)."""
    mixed, scale = attention(ops, config, index, x), config.residual_scale
    return ops.linear(mixed, [LayerNames.of(index).o], scale=scale, residual=x)


def llama_feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """SwiGLU, added to the stream."""
    names = LayerNames.of(index)
    return add_feed_forward(ops, names, x, config.activation, config.residual_scale)


LLAMA_HALVES = (llama_attention, llama_feed_forward)


def embed(ops: Ops, config: ModelConfig, tokens: Rows) -> Rows:
    """Return the embeddings of token ids, as the backend has them."""
    x = ops.embed(tokens, config.embedding_scale)
    return ops.placed(x, "positions") if config.learned_positions else x


def forward(
    ops: Ops,
    config: ModelConfig,
    halves: tuple[Step, Step],
    x: Rows,
    *,
    layers: Sequence[Layer] | None = None,
    features: list[Rows] | None = None,
    states: list[Rows] | None = None,
    boundaries: Sequence[int] = (),
) -> Rows:
    """Return the hidden states after the final norm.

    Args:
        ops: of a backend.
        config: of the model.
        halves: of a layer, of the family.
        x: rows to go on from, `embed`'s if all layers run.
        layers: the layers to run, or halves of them, in order; None for all.
        features: collects the inputs of the feature layers, and the result.
        states: collects the rows before the final norm, which other layers may go on from.
        boundaries: what features collect behind these: inputs of layers, and as the number of
            layers the rows before the final norm.
    """
    read = feature_layers(config.layers)
    wanted = {*read, *boundaries}
    entered: dict[int, Rows] = {}
    for layer in range(config.layers) if layers is None else layers:
        index, steps = (layer, halves) if isinstance(layer, int) else _half(halves, *layer)
        if features is not None and index in wanted:
            entered.setdefault(index, x)
        for step in steps:
            x = step(ops, config, index, x)
    if states is not None:
        states.append(x)
    entered[config.layers] = x
    x = ops.norm(x, "norm")
    if features is not None:
        features += [*(entered[each] for each in read if each in entered), x]
        features += [entered[each] for each in boundaries if each in entered]
    return x


def _half(halves: tuple[Step, Step], index: int, half: Half) -> tuple[int, tuple[Step, ...]]:
    return index, halves[:1] if half == "attention" else halves[1:]


def head(ops: Ops, config: ModelConfig, x: Rows) -> Rows:
    """Return logits of hidden states after the final norm."""
    cap = config.logit_cap
    if not cap:
        return ops.head(x, scale=config.logit_scale)
    return ops.times(ops.tanh(ops.head(x, scale=config.logit_scale / cap)), cap)

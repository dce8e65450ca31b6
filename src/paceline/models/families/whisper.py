"""Whisper: text from sound, by an encoder and a decoder (Radford et al. 2022, arXiv:2212.04356).

The encoder reads log-mel frames, two to a row, and ends by writing what the decoder looks at: keys
and values by decoder layer, of all of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models.config import ELSEWHERE, Encoder, ModelConfig
from paceline.models.families.base import Family, LayerNames, add_attention, heads_of
from paceline.models.ops import KV, Ops, Rows

# Names of a layer's parts in checkpoints; encoders have the same, but for those of the look.
_PARTS = {
    "attention_norm": "self_attn_layer_norm",
    **{each: f"self_attn.{each}_proj" for each in "qkv"},
    "o": "self_attn.out_proj",
    "look_norm": "encoder_attn_layer_norm",
    **{f"look_{each}": f"encoder_attn.{each}_proj" for each in "qkv"},
    "look_o": "encoder_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}


# Of a config, whole numbers from 1 on.
_SIZES = (
    "d_model vocab_size max_source_positions max_target_positions num_mel_bins encoder_layers "
    "encoder_attention_heads encoder_ffn_dim decoder_layers decoder_attention_heads decoder_ffn_dim"
)


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    told = {"num_mel_bins": 80} | dict(config)
    for name in _SIZES.split():
        size = told[name]
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}")
    heads = int(config["decoder_attention_heads"])
    ffn = int(config["decoder_ffn_dim"])
    same = heads == config["encoder_attention_heads"] and ffn == config["encoder_ffn_dim"]
    activation = config.get("activation_function", "gelu")
    if not same or activation != "gelu" or config.get("scale_embedding"):
        raise ModelError(
            "this runtime runs Whisper with heads and feed-forward blocks alike on both sides, "
            f"plain embeddings and activation gelu, not {activation}: {ELSEWHERE}"
        )
    return dict(config) | {
        "hidden_size": config["d_model"],
        "num_attention_heads": heads,
        "num_hidden_layers": config["decoder_layers"],
        "intermediate_size": ffn,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": config["max_target_positions"],
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = int(config["num_hidden_layers"])
    rows, mels = int(config["max_source_positions"]), int(config.get("num_mel_bins", 80))
    return {
        "no_positions": tuple(range(layers)),
        "learned_positions": True,
        "encoder": Encoder(int(config["encoder_layers"]), rows, mels),
    }


def check_frames(config: ModelConfig, frames: LogitArray, past: int = 0) -> Encoder:
    """Return the encoder for frames `[n, mels]` behind `past` rows.

    InvalidOption: it does not read them.
    """
    shape = config.encoder
    if shape is None:
        raise InvalidOption(f"family {config.family} hears nothing: choose a Whisper")
    (count, width), most = frames.shape, 2 * (shape.rows - past)
    if count % 2 or not 0 < count <= most or width != shape.mels:
        behind = f" behind {2 * past}" if past else ""
        raise InvalidOption(
            f"the encoder reads an even number of frames up to {most}{behind}, of {shape.mels} "
            f"mels, not {count} of {width}: cut the sound into windows"
        )
    return shape


def needs_sound(family: str) -> InvalidOption:
    """Return the error for a text without a sound that it is of."""
    return InvalidOption(f"family {family} writes down sound: use `paceline transcribe`")


def check_sight(sees: IntArray, past: int) -> None:
    """Raise InvalidOption unless rows behind `past` others see at least up to themselves."""
    own = past + np.arange(len(sees))
    if ((sees <= own) | (sees > past + len(sees))).any():
        raise InvalidOption(
            "rows of a sound see themselves, those before, and none that come later"
        )


def neighbours_of(sees: IntArray, past: int) -> dict[int, IntArray]:
    """Return by stride `[n, 3]`, the rows that each row of a convolution reads; -1 for zeros.

    `sees` is that of `HearsOn.hear`: no frame of a later row is read. Behind `past` rows the two
    frames of the last of them come again, in front.
    """
    lead = 2 if past else 0
    ends = np.concatenate([np.full(lead, lead), lead + 2 * (sees - past).repeat(2)])
    taps = np.arange(-1, 2)
    frames = np.arange(len(ends))[:, None] + taps
    rows = lead + 2 * np.arange(len(sees))[:, None] + taps
    return {1: np.where(frames < ends[:, None], frames, -1), 2: rows}


def encoder(
    ops: Ops, config: ModelConfig, shape: Encoder, frames: Rows, kept: bool = False
) -> None:
    """Write a memory of log-mel `frames`; rows see what the backend says.

    Keys of a layer are forgotten with the next, or `kept` for rows that come later.
    """
    x = _activated(ops, ops.neighbours(frames), "encoder.conv1")
    x = _activated(ops, ops.neighbours(x, 2), "encoder.conv2")
    x = ops.placed(x, "encoder.positions")
    for index in range(shape.layers):
        names = LayerNames.of(index, "encoder.")
        qkv = ops.linear(x, names.qkv, norm=names.norm)
        mixed = ops.attend(index if kept else 0, qkv, heads_of(config, 0))
        x = _add_feed_forward(ops, names, ops.linear(mixed, [names.o], residual=x))
    x = ops.norm(x, "encoder.norm")
    for index in range(config.layers):
        kv = ops.linear(x, [f"layers.{index}.look_{each}" for each in "kv"])
        ops.store(index, kv, heads_of(config, index))


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    x = add_attention(ops, config, LayerNames.of(index), x, layer=index)
    look = f"layers.{index}.look"
    queries = ops.linear(x, [f"{look}_q"], norm=f"{look}_norm")
    seen = ops.attend(KV(index, memory=True), queries, heads_of(config, index))
    return ops.linear(seen, [f"{look}_o"], residual=x)


def _feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    return _add_feed_forward(ops, LayerNames.of(index), x)


def _add_feed_forward(ops: Ops, names: LayerNames, x: Rows) -> Rows:
    _, up = names.gate_up
    inner = _activated(ops, x, up, names.ffn_norm)
    return ops.linear(inner, [names.down], residual=x)


def _activated(ops: Ops, x: Rows, name: str, norm: str | None = None) -> Rows:
    return ops.gelu(ops.linear(x, [name], norm=norm), exact=True)


WHISPER = Family(
    "whisper",
    "",
    hf_ends={
        "embed": "model.decoder.embed_tokens.weight",
        "positions": "model.decoder.embed_positions.weight",
        "norm": "model.decoder.layer_norm.weight",
        "head": "proj_out.weight",
        "encoder.conv1": "model.encoder.conv1.weight",
        "encoder.conv2": "model.encoder.conv2.weight",
        "encoder.positions": "model.encoder.embed_positions.weight",
        "encoder.norm": "model.encoder.layer_norm.weight",
    },
    hf_layers="model.decoder.layers",
    hf_encoder="model.encoder.layers",
    hf_parts=_PARTS,
    convolutions=("encoder.conv1", "encoder.conv2"),
    entries=_entries,
    from_hf=_from_hf,
    halves=(_attention, _feed_forward),
    encoder=encoder,
)

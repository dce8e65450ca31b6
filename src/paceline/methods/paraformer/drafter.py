"""Paraformer for Whisper: a transcript in one pass, then drafts of it (arXiv:2206.08317).

A predictor weighs the encoder's rows, which fire by `Firing`: once for each token. A decoder that
is not autoregressive says all tokens in one pass; the model verifies. The paper's is a recogniser
of its own. Here the encoder is Whisper's, frozen; the decoder's two layers begin as Whisper's last
two, whose keys and values of the sound they look at, and see tokens both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from paceline.core.types import LogitArray
from paceline.methods.gad.transcript import TranscriptDrafter
from paceline.methods.paraformer.firing import Firing
from paceline.models.config import ModelConfig
from paceline.models.families.base import LayerNames, add_attention, heads_of
from paceline.models.families.whisper import WHISPER
from paceline.models.ops import KV, Ops, Rows
from paceline.networks.base import Network, Shapes

LAYERS = 2
_TAPS = 3  # rows that a weight is read of


class Paraformer(Network):
    """Say the tokens of emissions; `width` of them see one another."""

    name: ClassVar[str] = "paraformer"
    trained_by: ClassVar[str] = "paceline train"
    looks = True

    def __init__(self, config: ModelConfig, *, width: int = 64) -> None:
        super().__init__(config, steps=1, width=width)
        self.overlap = width - 1

    @property
    def feature_width(self) -> int:
        return self.config.hidden_size

    def shapes(self) -> Shapes:
        config, width = self.config, self.config.hidden_size
        wide, read = config.heads * config.head_dim, 2 * config.kv_heads * config.head_dim
        out: Shapes = {"scale": (read,), "fuse": (width, read), "taps": (_TAPS, width)}
        out |= {"fire": (1, width), "fire.bias": (1,), "slots": (self.width, width)}
        for layer in range(LAYERS):
            name = f"layers.{layer}"
            out |= {f"{name}.{part}": (wide, width) for part in ("q", "k", "v", "look_q")}
            out |= {f"{name}.{part}": (width, wide) for part in ("o", "look_o")}
            out |= {
                f"{name}.up": (config.ffn_size, width),
                f"{name}.down": (width, config.ffn_size),
            }
            out |= {f"{name}.{part}_norm": (width,) for part in ("attention", "look", "ffn")}
            biased = [each for each in out if each.startswith(name) and not each.endswith(".k")]
            out |= {f"{each}.bias": out[each][:1] for each in biased}
        return {**out, "embed_norm": (width,), "norm": (width,), "norm.bias": (width,)}

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self.fill(ops, ops.last(features, self.width))

    def fill(self, ops: Ops, emitted: Rows) -> Rows:
        """Return the states of emissions `[..., width, hidden]`, which look at all of the sound."""
        config, x = self.config, emitted + ops.weight("slots")
        heads = replace(heads_of(config, 0), rotary=None)
        for layer in range(LAYERS):
            look = f"layers.{layer}.look"
            x = add_attention(ops, config, LayerNames.of(layer), x, "slots")
            queries = ops.linear(x, [f"{look}_q"], norm=f"{look}_norm")
            seen = ops.attend(KV(layer - LAYERS, memory=True), queries, heads, "root")
            x = ops.linear(seen, [f"{look}_o"], residual=x)
            assert WHISPER.halves is not None
            x = WHISPER.halves[1](ops, config, layer, x)
        return x


def weighed(parameters: Mapping[str, Any], rows: Any) -> tuple[Any, Any]:
    """Return what is emitted of rows `[n + 2, width]`, `[n, hidden]`, and log-odds of its weights.

    NumPy or torch; rows begin and end with one of zeros.
    """
    x = (rows * parameters["scale"]) @ parameters["fuse"].T
    taps, here = parameters["taps"], x[1:-1]
    mixed = here + taps[0] * x[:-2] + taps[1] * here + taps[2] * x[2:]
    return here, (mixed * (mixed > 0)) @ parameters["fire"][0] + parameters["fire.bias"]


def fired(parameters: Mapping[str, LogitArray], rows: LogitArray) -> LogitArray:
    """Return what fires of rows of a sound, float32 `[tokens, hidden]`."""
    here, odds = weighed(parameters, np.pad(rows, ((1, 1), (0, 0))))
    firing = Firing(here.shape[1])
    found = [*firing.push(1 / (1 + np.exp(-odds, dtype=np.float64)), here), *firing.end()]
    return np.array(found, np.float32).reshape(-1, here.shape[1])


class ParaformerDrafter(TranscriptDrafter):
    name: ClassVar[str] = "paraformer"
    requires = "a Whisper; weights for it (paceline train paraformer)"
    paper = "after Paraformer, Gao et al. 2022, arXiv:2206.08317"
    marks: ClassVar[bool] = False

    def transcript(self, rows: LogitArray, cache: Any) -> Sequence[int]:
        return self.said(fired(self._trained.parameters, rows), cache)

"""Conversion of fused decoder-layer weights and LM heads to Hugging Face tensor names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.export.layout import Tensors
from paceline.models.source import ModelSource
from paceline.networks.base import Geometry
from paceline.types import IntArray, LogitArray


def layer_tensors(
    parameters: Mapping[str, LogitArray], name: str, geometry: Geometry, theirs: str
) -> Tensors:
    """Return a decoder layer's tensors under prefix `theirs`, without its input norm."""
    wide, narrow = geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim
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
    return weights["model.embed_tokens.weight" if tied else "lm_head.weight"][ids]


def whole_head(target: ModelSource, ids: IntArray) -> LogitArray:
    """Return the LM head with zero rows outside `ids`, for engines without a draft vocabulary.

    Those tokens get logit 0, which the argmax exceeds in practice.
    """
    out = np.zeros((target.config.vocab_size, target.config.hidden_size), np.float32)
    out[ids] = head_rows(target, ids)
    return out

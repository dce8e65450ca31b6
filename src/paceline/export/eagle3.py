"""Export of EAGLE-3 to vLLM: the speculators format, class `LlamaForCausalLMEagle3`.

vLLM shares the target's embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.errors import InvalidOption
from paceline.export.hugging_face import architecture, config_entries
from paceline.export.layers import head_rows, layer_tensors
from paceline.export.layout import Layout, Tensors
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.source import ModelSource
from paceline.networks.eagle3 import Eagle3
from paceline.networks.weights import Trained
from paceline.types import IntArray


def eagle3_layout(trained: Trained, target: ModelSource, verifier: str) -> Layout:
    """Build the directory of an EAGLE-3 drafter, of class `Eagle3`.

    Args:
        verifier: name of the target that vLLM loads when given this directory as a model.

    Raises:
        InvalidOption: the target has too few layers.
    """
    network, given = trained.network, trained.parameters
    assert isinstance(network, Eagle3)
    layers = feature_layers(target.config.layers)
    if not layers[0] < layers[1] < layers[2]:
        raise InvalidOption(
            f"{target.name} has {target.config.layers} layers, and no three in rising order for "
            "vLLM to read: use a target of 7 or more"
        )
    tensors: Tensors = {
        # vLLM scales no features, so that the matrix does it.
        "fc.weight": given["fuse"] * given["scale"],
        "layers.0.input_layernorm.weight": given["embed_norm"],
        "layers.0.hidden_norm.weight": given["hidden_norm"],
        **layer_tensors(given, "layer", network.geometry, "layers.0"),
        "norm.weight": given["norm"],
        "lm_head.weight": head_rows(target, trained.draft_ids),
    }
    if len(trained.draft_ids) < target.config.vocab_size:
        tensors |= token_maps(trained.draft_ids, target.config.vocab_size)
    return Layout(
        method="eagle3",
        depth=network.depth,
        config=_config(network, target.config, verifier, layers, len(trained.draft_ids)),
        tensors=tensors,
        metadata=trained.metadata,
    )


def token_maps(draft_ids: IntArray, vocab_size: int) -> Tensors:
    """Return vLLM's vocabulary maps: "d2t" int64 `[draft vocabulary]`, offset from draft index to
    token id; "t2d" bool `[vocabulary]`, membership in the draft vocabulary.
    """
    can_be_drafted = np.zeros(vocab_size, dtype=np.bool_)
    can_be_drafted[draft_ids] = True
    return {"d2t": draft_ids - np.arange(len(draft_ids)), "t2d": can_be_drafted}


def _config(
    network: Eagle3, target: ModelConfig, verifier: str, layers: tuple[int, ...], vocabulary: int
) -> dict[str, Any]:
    layer = replace(
        target,
        family="llama",
        layers=1,
        ffn_size=network.ffn_size,
        tied_embeddings=False,
        rope_divisors=None,  # networks take the base alone
    )
    proposal = {"proposal_type": "greedy", "speculative_tokens": network.depth}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": [architecture(target)]},
        },
        "transformer_layer_config": config_entries(layer),
        "draft_vocab_size": vocabulary,
        # vLLM counts as we do: layer i stands for what enters it.
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }

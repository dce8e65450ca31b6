"""Export to vLLM: networks that it supports, and the directory of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.lab.export.layout import (
    Layout,
    Tensors,
    architecture,
    config_entries,
    head_rows,
    layer_tensors,
    model_layout,
    tokenizer_files,
    whole_head,
)
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.source import ModelSource, resolve
from paceline.networks.eagle3 import Eagle3
from paceline.networks.weights import Trained, load_network


def draft_lm_layout(trained: Trained, target: ModelSource, verifier: str) -> Layout:
    """Build the directory; arguments as for `eagle3_layout`.

    Includes the target's embedding and LM head; `verifier` is not written.
    """
    network, given = trained.network, trained.parameters
    config = replace(
        target.config,
        family="llama",
        layers=network.layers,
        ffn_size=len(given["layer.0.gate_up"]) // 2,
        tied_embeddings=False,  # the head knows the draft vocabulary alone
        rope_divisors=None,  # networks take the base alone
    )
    tensors: Tensors = {
        "model.embed_tokens.weight": target.weights()["embed"],
        "model.norm.weight": given["norm"],
        "lm_head.weight": whole_head(target, trained.draft_ids),
    }
    for index in range(network.layers):
        theirs = f"model.layers.{index}"
        tensors[f"{theirs}.input_layernorm.weight"] = given[f"layer.{index}.norm"]
        tensors |= layer_tensors(given, f"layer.{index}", network.config, theirs)
    return Layout(
        method="draft_model",
        depth=network.depth,
        config={**config_entries(config), "dtype": "float32"},
        tensors=tensors,
        metadata=trained.metadata,
        texts=tokenizer_files(target.tokenizer()),
    )


def medusa_layout(trained: Trained, target: ModelSource, verifier: str) -> Layout:
    """Build the directory of Medusa heads; arguments as for `eagle3_layout`.

    `verifier` is not written: the config has no entry for it. The LM head is a full one: vLLM 0.32
    reads trimmed ones, but refuses their vocabulary map.
    """
    network = trained.network
    blocks = np.split(trained.parameters["heads.residual"], network.width)
    tensors: Tensors = {f"blocks.{i}.layers.0.weight": each for i, each in enumerate(blocks)}
    return Layout(
        method="medusa",
        depth=network.depth,
        config={
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.config.vocab_size,
            "num_heads": network.width,
            "num_hidden_layers": 1,
            "original_lm_head": True,  # one for all heads
            "medusa_fc_bias": False,
            "dtype": "float32",
        },
        tensors={**tensors, "lm_head.weight": whole_head(target, trained.draft_ids)},
        metadata=trained.metadata,
    )


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
        **layer_tensors(given, "layer", network.config, "layers.0"),
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
        # Read back, it is the very same: fc over the scale, as the weights file holds it.
        metadata={**trained.metadata, "feature_scale": given["scale"].tobytes().hex()},
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


# Networks that vLLM supports.
NETWORKS: dict[str, Callable[[Trained, ModelSource, str], Layout]] = {
    "eagle3": eagle3_layout,
    "medusa": medusa_layout,
    "draft-lm": draft_lm_layout,
    "s2d": draft_lm_layout,
}


def vllm_layout(drafter: str, model: str, progress: bool = True) -> Layout:
    """Build the vLLM directory of a drafter: network weights (`*.safetensors`), or any draft model.

    Raises:
        InvalidOption: vLLM does not support the network, or it is of another model.
        ModelError: a model cannot be found or read.
    """
    if Path(drafter).suffix != ".safetensors":
        return model_layout(resolve(drafter, progress), resolve(model, progress))
    trained = load_network(Path(drafter))
    name = trained.network.name
    if name not in NETWORKS:
        raise InvalidOption(
            f"{drafter} holds network '{name}', which vLLM does not run: train one of "
            f"{', '.join(NETWORKS)}"
        )
    target = resolve(model, progress)
    if trained.metadata.get("model") != target.fingerprint:
        meant = trained.metadata.get("model_name", "another model")
        raise InvalidOption(
            f"{drafter} was trained for {meant}, and not for {target.name}: name its own target "
            "with --model"
        )
    return NETWORKS[name](trained, target, model)

"""Export of a trained stand-alone draft model: a Llama in Hugging Face format."""

from __future__ import annotations

from dataclasses import replace

from paceline.export.hugging_face import config_entries, tokenizer_files
from paceline.export.layers import layer_tensors, whole_head
from paceline.export.layout import Layout, Tensors
from paceline.models.source import ModelSource
from paceline.networks.draft_lm import DraftLM
from paceline.networks.weights import Trained


def draft_lm_layout(trained: Trained, target: ModelSource, verifier: str) -> Layout:
    """Build the directory; arguments as for `eagle3.eagle3_layout`, of class `DraftLM`.

    Includes the target's embedding and LM head; `verifier` is not written.
    """
    network, given = trained.network, trained.parameters
    assert isinstance(network, DraftLM)
    config = replace(
        target.config,
        family="llama",
        layers=network.layers,
        ffn_size=network.ffn_size,
        tied_embeddings=False,  # the head knows the draft vocabulary alone
        rope_divisors=None,  # networks take the base alone
    )
    tensors: Tensors = {
        "model.embed_tokens.weight": target.weights()["model.embed_tokens.weight"],
        "model.norm.weight": given["norm"],
        "lm_head.weight": whole_head(target, trained.draft_ids),
    }
    for index in range(network.layers):
        theirs = f"model.layers.{index}"
        tensors[f"{theirs}.input_layernorm.weight"] = given[f"layer.{index}.norm"]
        tensors |= layer_tensors(given, f"layer.{index}", network.geometry, theirs)
    return Layout(
        method="draft_model",
        depth=network.depth,
        config={**config_entries(config), "dtype": "float32"},
        tensors=tensors,
        metadata=trained.metadata,
        texts=tokenizer_files(target.tokenizer()),
    )

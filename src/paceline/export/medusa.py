"""Export of Medusa heads to vLLM: one residual block per head and one LM head."""

from __future__ import annotations

import numpy as np

from paceline.export.layers import whole_head
from paceline.export.layout import Layout, Tensors
from paceline.models.source import ModelSource
from paceline.networks.medusa import Medusa
from paceline.networks.weights import Trained


def medusa_layout(trained: Trained, target: ModelSource, verifier: str) -> Layout:
    """Build the directory of Medusa heads; arguments as for `eagle3.eagle3_layout`.

    `verifier` is not written: the config has no entry for it. The LM head is a full one: vLLM 0.32
    reads trimmed ones, but refuses their vocabulary map.
    """
    network = trained.network
    assert isinstance(network, Medusa)
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

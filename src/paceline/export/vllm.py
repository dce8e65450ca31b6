"""Export to vLLM: networks that it supports, and the directory of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import InvalidOption
from paceline.export.draft_lm import draft_lm_layout
from paceline.export.eagle3 import eagle3_layout
from paceline.export.hugging_face import model_layout
from paceline.export.layout import Layout
from paceline.export.medusa import medusa_layout
from paceline.models.source import ModelSource, resolve
from paceline.networks.weights import Trained, load_network

# Networks that vLLM supports.
NETWORKS: dict[str, Callable[[Trained, ModelSource, str], Layout]] = {
    "eagle3": eagle3_layout,
    "medusa": medusa_layout,
    "draft-lm": draft_lm_layout,
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

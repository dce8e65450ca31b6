"""What vLLM can draft with, and the folder that it wants for each."""

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

NETWORKS: dict[str, Callable[[Trained, ModelSource, str], Layout]] = {
    "eagle3": eagle3_layout,
    "medusa": medusa_layout,
    "draft-lm": draft_lm_layout,
}
"""Networks that vLLM runs as they are."""


def vllm_layout(drafter: str, model: str, progress: bool = True) -> Layout:
    """What vLLM loads for a drafter.

    Args:
        drafter: weights of a network, as `paceline train drafter` writes them (`*.safetensors`),
            or any model as a draft model, as `models.source.resolve` finds it.
        model: the target, likewise.
        progress: show downloads.

    Raises:
        InvalidOption: vLLM does not run the network, or it was trained for another model.
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

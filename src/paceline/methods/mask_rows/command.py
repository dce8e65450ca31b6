"""`paceline train mask-rows`: train a mask embedding and an adapter on text of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli import options as o
from paceline.cli.train import train_beside
from paceline.methods.ppd.recipe import MaskRecipe
from paceline.registry.options import Options

_SIZES = ("steps", "depth", "rank", "chains", "batch_tokens")
_RATES = ("rate", "loss", "training_precision", "seed")


def mask_rows(
    *,
    data: o.Data = Path("data"),
    out: Annotated[Path, "Where the mask rows go."] = Path("mask-rows.safetensors"),
    recipe: Annotated[MaskRecipe, o.Takes(*_SIZES, *_RATES)],
    asked: Annotated[Options, o.Takes("model", "device", "threads")],
    as_json: o.AsJson = False,
) -> None:
    """Train mask rows; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stands a card (NAME.md, NAME.json).
    """
    from paceline.methods.mask_rows.training import MaskTask

    command = f"mask-rows --data DATA {recipe.words(*_SIZES, *_RATES)}"
    train_beside(MaskTask, recipe, command, data=data, out=out, asked=asked, as_json=as_json)

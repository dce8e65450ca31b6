"""`paceline train prompt-tokens`: train the embeddings of drafter `ppd` on text of the target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli import options as o
from paceline.cli.train import train_beside
from paceline.methods.ppd.recipe import PromptRecipe
from paceline.registry.options import Options

_RECIPE = (
    "steps",
    "depth",
    "chains",
    "batch_tokens",
    "rate",
    "loss",
    "training_precision",
    "seed",
)


def prompt_tokens(
    *,
    data: o.Data = Path("data"),
    out: Annotated[Path, "Where the prompt tokens go."] = Path("ppd.safetensors"),
    recipe: Annotated[PromptRecipe, o.Takes(*_RECIPE)],
    asked: Annotated[Options, o.Takes("model", "device", "threads")],
    as_json: o.AsJson = False,
) -> None:
    """Train prompt tokens; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stands a card (NAME.md, NAME.json).
    """
    from paceline.methods.ppd.training import PromptTask

    command = f"prompt-tokens --data DATA {recipe.words(*_RECIPE)}"
    train_beside(PromptTask, recipe, command, data=data, out=out, asked=asked, as_json=as_json)

"""`paceline train experts`: train a small mixture of experts on tasks of lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.train import folder, train
from paceline.lab.training.recipe import ExpertRecipe

_SIZES = ("steps", "batch", "width", "layers", "experts", "inner", "used")
_RATES = ("locality", "chunk", "balance", "matrix_rate", "vector_rate", "seed")


def experts(
    kind: Annotated[str, typer.Argument(help="top-k or blockffn.")],
    *,
    out: Annotated[Path | None, "Folder of the model. Default: experts-KIND."] = None,
    recipe: Annotated[ExpertRecipe, o.Takes(*_SIZES, *_RATES)],
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train a small mixture of experts from nothing; Ctrl-C saves, and the same command goes on.

    Kind top-k is Mixtral's; blockffn is BlockFFN's, whose losses keep the experts few that tokens
    in a row use together (0 for none). The folder is a Hugging Face model with a card.
    """
    o.check_at_least_one(threads=threads)
    from paceline.lab.training.experts import ExpertTask, publish
    from paceline.lab.training.setup import use_threads

    use_threads(threads)
    named: Any = {"kind": kind}
    recipe = replace(recipe, **named)
    place = folder(out, f"experts-{kind}")
    command = f"paceline train experts {kind} {recipe.words(*_SIZES, *_RATES)}"
    task = ExpertTask(recipe)
    train(task, place, lambda run: publish(run, place, command), as_json=as_json, whole=True)

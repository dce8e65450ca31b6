"""`paceline train conformer`: a small recogniser of letters that hears chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli import options as o
from paceline.cli.train import train
from paceline.methods.conformer.recipe import ConformerRecipe

_RECIPE = ("steps", "batch", "chunks", "matrix_rate", "vector_rate", "seed")


def conformer(
    *,
    data: Annotated[Path, "Folder of NAME.wav with NAME.txt: short sentences of few words."],
    out: Annotated[Path, "Where the weights go."] = Path("conformer.safetensors"),
    recipe: Annotated[ConformerRecipe, o.Takes(*_RECIPE)],
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train a conformer from nothing; Ctrl-C saves, and the same command goes on."""
    o.check_at_least_one(threads=threads)
    from paceline.lab.training.setup import use_threads
    from paceline.methods.conformer.encoder import ConformerShape
    from paceline.methods.conformer.training import ConformerTask, publish, read_letters

    use_threads(threads)
    task = ConformerTask(ConformerShape(), read_letters(data), recipe)
    train(task, out, lambda run: publish(run, out), as_json=as_json)

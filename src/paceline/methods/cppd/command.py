"""`paceline train cppd`: a recogniser of words in pictures, from words that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.train import train
from paceline.methods.cppd.recipe import CPPDRecipe

_RECIPE = ("steps", "batch", "matrix_rate", "vector_rate", "seed")


def cppd(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Files with words.")],
    *,
    fonts: Annotated[list[Path], typer.Option("--font", help="TrueType file; repeatable.")],
    width: Annotated[int, "Numbers of a row, a multiple of 32."] = 128,
    out: Annotated[Path, "Where the weights go."] = Path("cppd.safetensors"),
    recipe: Annotated[CPPDRecipe, o.Takes(*_RECIPE)],
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train CPPD on words of texts; Ctrl-C saves, and the same command goes on."""
    o.check_at_least_one(threads=threads)
    from paceline.lab.training.setup import use_threads
    from paceline.methods.cppd.recogniser import CPPDShape
    from paceline.methods.cppd.training import CPPDTask, publish
    from paceline.methods.cppd.words import load_fonts, words_of

    use_threads(threads)
    words = words_of(" ".join(each.read_text(encoding="utf-8") for each in texts))
    task = CPPDTask(CPPDShape(width), words, load_fonts(fonts), recipe)
    train(task, out, lambda run: publish(run, out), as_json=as_json)

"""`paceline train paraformer`: train a drafter of a Whisper's whole transcripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from paceline.cli import options as o
from paceline.core.expressions import Expression
from paceline.lab.training.recipe import DrafterRecipe
from paceline.methods.gad.command import RECIPE, Sounds, SoundTraining, Vocabulary, Windows
from paceline.registry.options import Options


def paraformer(
    files: Sounds = None,
    *,
    data: Windows = Path("windows"),
    width: Annotated[int, "Tokens of a block, which see one another."] = 64,
    out: Annotated[Path, "Where the weights go."] = Path("paraformer.safetensors"),
    vocabulary: Vocabulary = 8192,
    recipe: Annotated[DrafterRecipe, o.Takes(*RECIPE)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train Paraformer on a Whisper's encoder; Ctrl-C saves, and the same command goes on.

    Takes the windows of `paceline train gad`.
    """
    from paceline.methods.paraformer.training import ParaformerTask

    named = Expression("", "paraformer", {"width": str(width)})
    hearing = SoundTraining(f"paraformer --width {width}", files or (), data, vocabulary, asked)
    hearing.train(ParaformerTask, named, out, recipe, as_json=as_json)

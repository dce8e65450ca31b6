"""`paceline train denoiser`: train a small denoiser on tasks for parallel decoding, or on text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.train import folder, train
from paceline.errors import InvalidOption
from paceline.lab.training.recipe import DenoiserRecipe, TextDenoiserRecipe

_SIZES = ("steps", "batch", "width", "layers", "ffn", "matrix_rate", "vector_rate")
_TASKS = ("certainty", "own", "corrupt", "stages", "guesses")
_TEXT = ("depth", "groups", "training_precision")
_SHARED = ("steps", "batch", "layers", "matrix_rate", "vector_rate", "seed")


def denoiser(
    kind: Annotated[str, typer.Argument(help="full, block, order, or text.")],
    *,
    out: Annotated[Path | None, "Folder of the model. Default: denoiser-KIND."] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Denoiser, or of text a draft-lm, to start from."),
    ] = None,
    recipe: Annotated[DenoiserRecipe, o.Takes(*_SIZES, *_TASKS, "seed")],
    data: o.Data = Path("data"),
    model: o.Model = "smollm2-135m",
    of_text: Annotated[TextDenoiserRecipe, o.Takes(*_TEXT)],
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train a denoiser from nothing; Ctrl-C saves, and the same command goes on.

    Kinds are those of LLaDA (full), of block diffusion with an autoregressive stream (block), and
    of models that decode in any order (order). The folder is a Hugging Face model with a card.

    Kind text drafts for a model (--model) by drafters deer and diffuspec: it learns from what
    that wrote (--data), begins as a draft-lm (--from FILE) or as some of the model's layers, and
    has the model's embedding, head and widths.
    """
    o.check_at_least_one(threads=threads)
    from paceline.lab.training.setup import use_threads

    use_threads(threads)
    place = folder(out, f"denoiser-{kind}")
    if kind == "text":
        if any(getattr(recipe, name) for name in _TASKS):
            raise InvalidOption(f"{', '.join(_TASKS)} are of tasks: leave them out")
        shared: Any = {name: getattr(recipe, name) for name in _SHARED}
        _text(place, data, model, start, replace(of_text, **shared), as_json)
        return
    from paceline.lab.training.denoisers.files import load_denoiser
    from paceline.lab.training.denoisers.task import DenoiserTask, publish

    named: Any = {"kind": kind}
    recipe, begin = replace(recipe, **named), {}
    command = f"paceline train denoiser {kind} {recipe.words(*_SIZES, *_TASKS, 'seed')}"
    if start is not None:
        earlier, shape = load_denoiser(start)
        sizes = (recipe.width, recipe.layers, recipe.ffn)
        if (shape.width, shape.layers, shape.ffn) != sizes:
            raise InvalidOption(
                f"{start} has width {shape.width}, {shape.layers} layers and ffn {shape.ffn}: "
                "give the same sizes"
            )
        begin = earlier.stored()
        command += " --from START"
    task = DenoiserTask(recipe, begin)
    train(task, place, lambda run: publish(run, place, command), as_json=as_json, whole=True)


def _text(
    out: Path,
    data: Path,
    model: str,
    start: Path | None,
    recipe: TextDenoiserRecipe,
    as_json: bool,
) -> None:
    from paceline.lab.training.card import Teacher, publish
    from paceline.lab.training.denoisers import text as training
    from paceline.models.source import resolve

    source = resolve(model)
    teacher = Teacher.of([data], source)
    config, weights = source.config, source.weights()
    if start is None:
        begin = training.of_target(config, weights, recipe.layers)
    else:
        begin = training.of_draft_lm(start, source.fingerprint)
    trunk = training.trunk(config, weights, begin)
    mask = training.free_token(source)
    recipe = replace(recipe, mask=mask, layers=trunk.config.layers)
    words = recipe.words(*_SHARED, *_TEXT)
    command = f"paceline train denoiser text --data DATA --model {source.name} {words}"
    command += "" if start is None else f" --from {start.name}"
    task = training.TextDenoiserTask(trunk, teacher.texts, recipe, model)
    train(task, out, lambda run: publish(run, out, teacher, command), as_json=as_json)

"""`paceline train canvas-filter`: train the filter of sampler `filter` for a denoiser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import progress_bar
from paceline.cli.train import train
from paceline.errors import InvalidOption
from paceline.training.recipe import FilterRecipe

if TYPE_CHECKING:
    from paceline.training.run import TrainingRun

_RECIPE = ("block", "room", "cases", "steps", "seed")


@o.spread_options
def canvas_filter(
    *,
    model: Annotated[str, typer.Option(help="Denoiser that sees every row.")] = "lists-mdm",
    recipe: Annotated[FilterRecipe, o.Takes(*_RECIPE)],
    out: Annotated[Path, typer.Option(help="Where the filter goes.")] = Path(
        "canvas-filter.safetensors"
    ),
    as_json: o.AsJson = False,
) -> None:
    """Replay a denoiser's own answers, and learn which picks of a forward are right (Learn2PD).

    One case in ten is left out and judged. Cases are never those that benchmarks hold out.
    """
    from paceline.models.source import DirectorySource, resolve
    from paceline.training.denoisers.confidence_filter import FilterTask, collect
    from paceline.training.denoisers.files import load_denoiser

    source = resolve(model)
    if not isinstance(source, DirectorySource):
        raise InvalidOption(f"{model} is no folder of `paceline train denoiser`: name one")
    denoiser, theirs = load_denoiser(source.path)
    if theirs.kind != "full":
        raise InvalidOption(f"{model} sees a {theirs.kind}: name a denoiser of kind full")
    cases, sizes = recipe.cases, (recipe.block, recipe.room)
    with progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar:
        replayed = bar.add_task("replay", total=2)
        taught = collect(denoiser, cases, *sizes, recipe.seed)
        bar.advance(replayed)
        apart = collect(denoiser, max(1, cases // 10), *sizes, recipe.seed + 1)
        bar.advance(replayed)
    task = FilterTask(recipe, taught, apart)
    command = f"paceline train canvas-filter --model {source.name} {recipe.words(*_RECIPE)}"
    metadata = {"model": source.fingerprint, "model_name": source.name, "command": command}

    def publish(_: TrainingRun) -> tuple[dict[str, Any], str]:
        judged, count = task.judge(), len(taught[0])
        task.save(out, metadata)
        line = (
            f"{out}: {count} forwards replayed; left out: of picks above 0.9, "
            f"{judged['precision']:.1%} right, {judged['recall']:.1%} of the right ones found"
        )
        figures = {"out": str(out), "examples": count, "left_out": judged, "block": recipe.block}
        return figures, line

    train(task, out, publish, as_json=as_json)

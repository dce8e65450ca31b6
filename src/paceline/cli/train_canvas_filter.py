"""`paceline train canvas-filter`: train the filter of sampler `filter` for a denoiser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import progress_bar, report
from paceline.errors import InvalidOption


@o.spread_options
def canvas_filter(
    *,
    model: Annotated[str, typer.Option(help="Denoiser that sees every row.")] = "lists-mdm",
    block: Annotated[int, typer.Option(help="Places of a block.")] = 20,
    room: Annotated[int, typer.Option(help="Places of an answer, whole blocks.")] = 20,
    cases: Annotated[int, typer.Option(help="Cases to replay, of all tasks by turns.")] = 600,
    steps: Annotated[int, typer.Option(help="Updates.")] = 8000,
    out: Annotated[Path, typer.Option(help="Where the filter goes.")] = Path(
        "canvas-filter.safetensors"
    ),
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Replay a denoiser's own answers, and learn which picks of a forward are right (Learn2PD).

    One case in ten is left out and judged. Cases are never those that benchmarks hold out.
    """
    o.check_at_least_one(block=block, room=room, cases=cases, steps=steps)

    from paceline.models.source import DirectorySource, resolve
    from paceline.training.denoisers import confidence_filter as training
    from paceline.training.denoisers.files import load_denoiser

    source = resolve(model)
    if not isinstance(source, DirectorySource):
        raise InvalidOption(f"{model} is no folder of `paceline train denoiser`: name one")
    module, recipe = load_denoiser(source.path)
    if recipe.kind != "full":
        raise InvalidOption(f"{model} sees a {recipe.kind}: name a denoiser of kind full")
    left_out = max(1, cases // 10)
    with progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar:
        task = bar.add_task("replay", total=2)
        taught = training.collect(module, cases, block, room, seed)
        bar.advance(task)
        apart = training.collect(module, left_out, block, room, seed + 1)
        bar.advance(task)
    network = training.fit(taught, steps=steps, seed=seed)
    judged = training.judge(network, apart)
    command = (
        f"paceline train canvas-filter --model {source.name} --block {block} --room {room} "
        f"--cases {cases} --steps {steps} --seed {seed}"
    )
    metadata = {"model": source.fingerprint, "model_name": source.name, "command": command}
    training.save_filter(out, network, metadata)
    figures = {"out": str(out), "examples": len(taught[0]), "left_out": judged, "block": block}
    line = (
        f"{out}: {len(taught[0])} forwards replayed; left out: of picks above 0.9, "
        f"{judged['precision']:.1%} right, {judged['recall']:.1%} of the right ones found"
    )
    report(figures, line, as_json=as_json)

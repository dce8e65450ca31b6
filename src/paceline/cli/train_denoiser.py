"""`paceline train denoiser`: train a small denoiser on the tasks for parallel decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.errors import InvalidOption


@o.spread_options
def denoiser(
    kind: Annotated[str, typer.Argument(help="What rows see: full, block or order.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model. Default: denoiser-KIND.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Denoiser to start from, instead of drawn weights."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates.")] = 3000,
    batch: Annotated[int, typer.Option(help="Examples per update.")] = 64,
    width: Annotated[int, typer.Option(help="Hidden size, a multiple of 32.")] = 160,
    layers: Annotated[int, typer.Option(help="Layers.")] = 4,
    ffn: Annotated[int, typer.Option(help="Inner size of feed-forward blocks.")] = 448,
    matrix_rate: Annotated[float, typer.Option(help="Peak learning rate of matrices.")] = 0.02,
    vector_rate: Annotated[float, typer.Option(help="Peak learning rate of the rest.")] = 3e-3,
    certainty: Annotated[
        float, typer.Option(help="Weight of the entropy of masks that are right (dParallel).")
    ] = 0.0,
    own: Annotated[
        int, typer.Option(help="Learn from so many answers of the model itself, with --from.")
    ] = 0,
    corrupt: Annotated[
        float, typer.Option(help="Of full: share of visible tokens that are wrong (ReDiff).")
    ] = 0.0,
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Train a denoiser from nothing; Ctrl-C saves, and the same command goes on.

    Kinds are those of LLaDA (full), of block diffusion with an autoregressive stream (block), and
    of models that decode in any order (order). The folder is a Hugging Face model with a card
    (README.md, card.json); while training, a checkpoint stands beside it.
    """
    from paceline.training.denoisers.files import card_of, load_denoiser, save_denoiser
    from paceline.training.denoisers.module import DenoiserRecipe, Kind
    from paceline.training.denoisers.run import DenoiserTraining

    recipe = DenoiserRecipe(
        cast(Kind, kind),
        steps=steps,
        batch=batch,
        width=width,
        layers=layers,
        ffn=ffn,
        matrix_rate=matrix_rate,
        vector_rate=vector_rate,
        certainty=certainty,
        own=own,
        corrupt=corrupt,
        seed=seed,
    )
    out = out or Path(f"denoiser-{kind}")
    if out.is_file():
        raise InvalidOption(f"{out} is a file: give a folder as --out")
    given = None
    if start is not None:
        earlier, shape = load_denoiser(start)
        if (shape.width, shape.layers, shape.ffn) != (width, layers, ffn):
            raise InvalidOption(
                f"{start} has width {shape.width}, {shape.layers} layers and ffn {shape.ffn}: "
                "give the same sizes"
            )
        given = {name: each.detach() for name, each in earlier.named_parameters()}
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    run = DenoiserTraining(recipe, start=given, checkpoint_at=checkpoint)
    finished = train_with_bar(run)
    command = (
        f"paceline train denoiser {kind} --steps {steps} --batch {batch} --width {width} "
        f"--layers {layers} --ffn {ffn} --matrix-rate {matrix_rate} --vector-rate {vector_rate} "
        f"--certainty {certainty} --own {own} --corrupt {corrupt} --seed {seed}"
        f"{' --from START' if start else ''}"
    )
    found = run.judge() if finished else {}
    if finished:
        save_denoiser(out, run.module, recipe, card_of(run, found, command))
    run.finish()
    figures = {
        "out": str(out),
        "steps": run.step,
        "seconds": run.course.seconds,
        "held_out": found,
        "finished": finished,
    }
    shares = {name: sum(each.values()) / len(each) for name, each in found.items()}
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; right on held-out cases: {said}"
    )
    if not finished:
        line = f"{checkpoint}: {run.step} of {steps} updates; the same command goes on"
    report(figures, line, as_json=as_json, finished=finished)

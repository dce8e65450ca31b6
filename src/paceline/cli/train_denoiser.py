"""`paceline train denoiser`: train a small denoiser on tasks for parallel decoding, or on text."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.core.processor import usable_threads
from paceline.errors import InvalidOption


@o.spread_options
def denoiser(
    kind: Annotated[str, typer.Argument(help="full, block, order, or text.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model. Default: denoiser-KIND.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", help="Denoiser, or of text a draft-lm, to start from."),
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
    data: o.Data = Path("data"),
    model: o.Model = "smollm2-135m",
    depth: Annotated[int, typer.Option(help="Of text: masks of a group, at most.")] = 4,
    groups: Annotated[int, typer.Option(help="Of text: groups of masks in a text.")] = 24,
    training_precision: o.TrainingPrecision = "bf16",
    threads: o.Threads = None,
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Train a denoiser from nothing; Ctrl-C saves, and the same command goes on.

    Kinds are those of LLaDA (full), of block diffusion with an autoregressive stream (block), and
    of models that decode in any order (order). The folder is a Hugging Face model with a card
    (README.md, card.json); while training, a checkpoint stands beside it.

    Kind text drafts for a model (--model) by drafters deer and diffuspec: it learns from what
    that wrote (--data), begins as a draft-lm (--from FILE) or as some of the model's layers, has
    the model's embedding, head and widths, and stands in a folder that names it.
    """
    if kind == "text":
        if certainty or own or corrupt:
            raise InvalidOption("certainty, own and corrupt are of tasks: leave them out")
        sizes = {"steps": steps, "batch": batch, "layers": layers, "depth": depth}
        rates = {"matrix_rate": matrix_rate, "vector_rate": vector_rate}
        more = {"groups": groups, "precision": training_precision, "seed": seed}
        recipe_of = {**sizes, **rates, **more}
        _text(out or Path("denoiser-text"), data, model, start, threads, recipe_of, as_json)
        return
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
        line = f"{checkpoint}: {run.step} of {steps} updates"
    report(figures, line, as_json=as_json, finished=finished)


def _text(
    out: Path,
    data: Path,
    model: str,
    start: Path | None,
    threads: int | None,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    o.check_at_least_one(threads=threads)
    import torch

    from paceline.models.source import resolve
    from paceline.training.card import write_card
    from paceline.training.data import Shards
    from paceline.training.denoisers import text as training
    from paceline.training.setup import check_texts, figures, provenance

    if threads is not None:
        torch.set_num_threads(usable_threads(threads))
    shards, source = Shards(data), resolve(model)
    check_texts(data, shards.settings, source)
    recipe = training.TextRecipe(training.free_token(source), **settings)
    config, weights = source.config, source.weights()
    if start is None:
        begin = training.of_target(config, weights, recipe.layers)
    else:
        begin = training.of_draft_lm(start, source.fingerprint)
    trunk = training.Trunk(config, weights, begin)
    recipe = replace(recipe, layers=trunk.config.layers)
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    run = training.TextTraining(trunk, shards.read(), recipe, checkpoint_at=checkpoint)
    train_with_bar(run)
    hits = run.judge()
    settings["layers"] = recipe.layers
    shown = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in settings.items())
    shown = shown.replace("--precision", "--training-precision")
    command = f"paceline train denoiser text --data DATA --model {source.name} {shown}"
    command += "" if start is None else f" --from {start.name}"
    metadata = provenance(source, shards.settings, run, command)
    metadata["block_efficiency"] = f"{hits.block_efficiency:.4f}"
    training.save_text_denoiser(out, run, model, metadata)
    write_card(
        out / "model.safetensors",
        run,
        hits,
        drafter="denoiser",
        metadata=metadata,
        parameters=sum(each.numel() for each in trunk.own.values()),
        settings=asdict(recipe),
        data=shards.settings,
        licence="as the base model's, whose text it was trained on and whose layers it began as",
        conditions="greedy drafts of full depth against texts as they stand, at random places",
    )
    share = " ".join(f"{each:.2f}" for each in hits.acceptance)
    line = f"{out}: {run.step} updates in {run.course.seconds:.0f} s; right by place {share}"
    points = run.course.points
    found = figures(out, run, recipe, points[-1].training if points else math.nan, hits)
    report(found, line, as_json=as_json, finished=run.finish())

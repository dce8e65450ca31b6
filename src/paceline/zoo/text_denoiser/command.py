"""`paceline train text-denoiser`: train the draft model of drafters `deer` and `diffuspec`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar


def text_denoiser(
    data: o.Data = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("text-denoiser"),
    steps: Annotated[int, typer.Option(help="Updates.")] = 2000,
    span: Annotated[int, typer.Option(help="Masks behind a cut: how far ahead it drafts.")] = 8,
    recent: Annotated[int, typer.Option(help="Tokens before a cut that are read.")] = 64,
    cuts: Annotated[int, typer.Option(help="Places per text to cut at.")] = 8,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of the texts of an update.")] = 1024,
    decay: Annotated[float, typer.Option(help="Of weights by place, in the second half.")] = 0.7,
    width: Annotated[int, typer.Option(help="Hidden size, a multiple of 32.")] = 192,
    layers: Annotated[int, typer.Option(help="Layers.")] = 4,
    ffn: Annotated[int, typer.Option(help="Inner size of feed-forward blocks.")] = 512,
    seed: o.Seed = 0,
    model: o.Model = "smollm2-135m",
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train a small denoiser over a model's tokens; Ctrl-C saves, and the same command goes on.

    The folder is a Hugging Face model, for --draft-model; while training, a checkpoint stands
    beside it.
    """
    import torch

    from paceline.export.layout import check_folder, write_layout
    from paceline.models.source import resolve
    from paceline.training.data import Shards
    from paceline.training.denoisers.module import DenoiserRecipe
    from paceline.training.setup import check_texts, figures, provenance
    from paceline.zoo.text_denoiser.training import TextDenoising, TextRecipe

    if threads is not None:
        torch.set_num_threads(threads)
    check_folder(out, force=False)
    shape = DenoiserRecipe("full", steps, width=width, layers=layers, ffn=ffn, seed=seed)
    recipe = TextRecipe(span, recent, cuts, decay, batch_tokens)
    shards, source = Shards(data), resolve(model)
    check_texts(data, shards.settings, source)
    out.parent.mkdir(parents=True, exist_ok=True)
    run = TextDenoising(
        source.weights()["embed"],
        source.config.eos_token_ids,
        shards.read(),
        shape,
        recipe,
        checkpoint_at=out.with_name(f"{out.name}.checkpoint"),
    )
    finished = train_with_bar(run)
    loss, hits = run.judge()
    command = (
        f"paceline train text-denoiser --data DATA --steps {steps} --span {span} --recent {recent} "
        f"--cuts {cuts} --batch-tokens {batch_tokens} --decay {decay} --width {width} "
        f"--layers {layers} --ffn {ffn} --seed {seed} --model {model}"
    )
    found = figures(out, run, recipe, loss, hits)
    if finished:
        write_layout(run.layout(source, provenance(source, shards.settings, run, command)), out)
    share = " ".join(f"{each:.2f}" for each in hits.acceptance)
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; held out: loss {loss:.3f}, "
        f"right by place {share}"
    )
    report(found, line, as_json=as_json, finished=run.finish())

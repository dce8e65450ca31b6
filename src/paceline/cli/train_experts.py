"""`paceline train experts`: train a small mixture of experts on tasks of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.core.processor import usable_threads
from paceline.errors import InvalidOption


@o.spread_options
def experts(
    kind: Annotated[str, typer.Argument(help="top-k or blockffn.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model. Default: experts-KIND.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates.")] = 2400,
    batch: Annotated[int, typer.Option(help="Texts per update.")] = 64,
    width: Annotated[int, typer.Option(help="Hidden size, a multiple of 32.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers.")] = 4,
    count: Annotated[int, typer.Option("--experts", help="Experts of a layer.")] = 16,
    inner: Annotated[int, typer.Option(help="Size of an expert, a multiple of 32.")] = 32,
    used: Annotated[int, typer.Option(help="Experts of a row, of top-k.")] = 2,
    locality: Annotated[
        float, typer.Option(help="Of blockffn: weight of the loss on experts that change.")
    ] = 0.1,
    chunk: Annotated[
        float, typer.Option(help="Of blockffn: weight of the loss on experts of 8 tokens together.")
    ] = 0.3,
    balance: Annotated[
        float, typer.Option(help="Of top-k: weight of the loss on experts used unevenly.")
    ] = 0.01,
    matrix_rate: Annotated[float, typer.Option(help="Peak learning rate of matrices.")] = 0.02,
    vector_rate: Annotated[float, typer.Option(help="Peak learning rate of the rest.")] = 3e-3,
    threads: o.Threads = None,
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Train a small mixture of experts from nothing; Ctrl-C saves, and the same command goes on.

    Kind top-k is Mixtral's; blockffn is BlockFFN's, whose losses keep the experts few that tokens
    in a row use together (0 for none). The folder is a model with a card (README.md, card.json);
    while training, a checkpoint stands beside it.
    """
    o.check_at_least_one(threads=threads)
    import torch

    from paceline.training.experts import ExpertRecipe, Kind
    from paceline.training.experts_run import ExpertTraining, save_experts

    if threads is not None:
        torch.set_num_threads(usable_threads(threads))
    sizes: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "width": width,
        "layers": layers,
        "experts": count,
    }
    sizes |= {"inner": inner, "used": used}
    weights: dict[str, Any] = {"locality": locality, "chunk": chunk, "balance": balance}
    rates: dict[str, Any] = {"matrix_rate": matrix_rate, "vector_rate": vector_rate}
    recipe = ExpertRecipe(cast(Kind, kind), **sizes, **weights, **rates, seed=seed)
    out = out or Path(f"experts-{kind}")
    if out.is_file():
        raise InvalidOption(f"{out} is a file: give a folder as --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    run = ExpertTraining(recipe, checkpoint_at=checkpoint)
    finished = train_with_bar(run)
    line = f"{checkpoint}: {run.step} of {steps} updates"
    figures = {"out": str(out), "steps": run.step, "finished": finished}
    if finished:
        quality = run.judge()
        shown = {**sizes, **weights, **rates, "seed": seed}
        given = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in shown.items())
        save_experts(out, run, quality, f"paceline train experts {kind} {given}")
        right = sum(quality.right.values()) / len(quality.right)
        few = " ".join(f"{share:.0%}" for share in quality.experts.values())
        line = (
            f"{out}: {run.step} updates in {run.course.seconds:.0f} s; {right:.1%} of held-out "
            f"cases right; experts in use by {', '.join(quality.experts)} tokens in a row: {few}"
        )
        figures |= {"seconds": run.course.seconds, **quality._asdict()}
        run.finish()
    report(figures, line, as_json=as_json, finished=finished)

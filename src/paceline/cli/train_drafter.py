"""`paceline train drafter`: train a drafter network on text that the target wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.registry.options import Options


@o.spread_options
def drafter(
    network: Annotated[str, typer.Argument(help="Network, with sizes: hydra:steps=5.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[
        Path | None, typer.Option(help="Where the weights go. Default: NETWORK.safetensors.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Weights to start from, instead of drawn: of the same network, or of another, of "
            "which the tensors of the same name and shape are taken.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on, repeats counted.")] = 1_000_000,
    keep_features: o.KeepFeatures = None,
    stored: Annotated[
        str, typer.Option(help="How the file holds matrices: F16, Q8_0 or Q4_0.")
    ] = "F16",
    teaching: o.TrainingOptions,
    asked: Annotated[Options, o.Takes(*o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter; Ctrl-C saves, and the same command goes on.

    Beside the weights stand a card (NAME.md, NAME.json) and, while training, a checkpoint.
    `draft-lm` is trained twice (FastDraft): on all text, with --loss cross-entropy and
    --prompt-weight 1, and --from that on what the target wrote, by a divergence.
    """

    from paceline.core.options import require
    from paceline.networks.weights import STORED
    from paceline.training.setup import TrainingSetup, train_drafter

    require(stored in STORED, "--stored", stored, ", ".join(STORED))
    recipe = teaching.recipe(tokens)
    setup = TrainingSetup(
        data,
        replace(asked, model=teaching.model),
        vocabulary=teaching.vocabulary,
        keep_features=keep_features,
    )
    out = out or Path(f"{network.partition(':')[0]}.safetensors")
    told = replace(teaching, model=setup.source.name).words
    command = f"paceline train drafter {network} --data DATA --tokens {tokens} {told}"
    if stored != "F16":
        command += f" --stored {stored}"
    figures = train_drafter(
        setup,
        network,
        recipe,
        out,
        command,
        drive=train_with_bar,
        stored=stored,
        start=start,
        remark=lambda text: typer.echo(text, err=True),
    )
    held_out = figures["held_out"]
    share = " ".join(f"{each:.2f}" for each in held_out["acceptance"])
    line = (
        f"{out}: {figures['tokens']} tokens in {figures['seconds']:.0f} s; held out: block "
        f"efficiency {held_out['block_efficiency']:.3f}, acceptance by depth {share}"
    )
    report(figures, line, as_json=as_json, finished=figures["finished"])

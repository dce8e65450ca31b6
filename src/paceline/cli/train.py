"""`paceline train`: drafters, and what goes with them. Plugins add to it (`cli.app`)."""

from __future__ import annotations

import typer

from paceline.cli.train_data import data
from paceline.cli.train_drafter import drafter
from paceline.cli.train_heads import acceptance_head, head_preview
from paceline.cli.train_scaling import scaling

train = typer.Typer(
    name="train",
    help="Train drafters (data, drafter), and small heads for drafters and verifiers.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

train.command("data")(data)
train.command("drafter")(drafter)
train.command("acceptance-head")(acceptance_head)
train.command("head-preview")(head_preview)
train.command("scaling")(scaling)

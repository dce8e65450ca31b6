"""`paceline train`: drafters, and heads for the rules that need one."""

from __future__ import annotations

import typer

from paceline.cli.train_data import data
from paceline.cli.train_drafter import drafter
from paceline.cli.train_heads import acceptance_head, head_preview
from paceline.cli.train_scaling import scaling
from paceline.zoo.heads.command import judge, pivot
from paceline.zoo.ppd.command import prompt_tokens

train = typer.Typer(
    name="train",
    help="Train drafters (data, drafter), and small heads of verifiers (judge, pivot).",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

train.command("data")(data)
train.command("drafter")(drafter)
train.command("prompt-tokens")(prompt_tokens)
train.command("acceptance-head")(acceptance_head)
train.command("head-preview")(head_preview)
train.command("scaling")(scaling)
train.command("judge")(judge)
train.command("pivot")(pivot)

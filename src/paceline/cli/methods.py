"""`paceline methods`: every registered drafter, verifier, controller and runtime."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, shipped_lines
from paceline.errors import InvalidOption
from paceline.registry import table as registry

_COLUMNS = ("method", "kind", "guarantee", "needs", "paper")

_INTRODUCTION = """\
# Methods

Every method that is registered, built in or by a plugin. This page is the output of
`paceline methods --markdown`.

*Lossless*: the output distribution is that of plain decoding of the same target on the same runtime
with the same sampling parameters. *Seed-exact*: with the same seed, also the same tokens.
*After* a paper: [differences](differences.md) says how the method differs from it.

Drafters combine: `A+B` puts both drafts in one tree, `graft:floor=0.3+A+B` and `fuse+A+B` merge
them after Graft and RASD, `"A>B"` asks B where A expects little, and `"A|B"` lets them take turns,
whichever pays. Options follow a colon, as in `suffix-tree:mode=path`. A *growth* says how a draft
model or a trained network draws its tree: `draft-model:growth=branching-3.2.1`.

"""


def methods(
    as_json: o.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/methods.md.")] = False,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="The cards of the weights that ship, in place of methods."),
    ] = False,
) -> None:
    """List methods: what they are, what they guarantee, what they need, where they come from.

    With --weights: what each file of trained weights is, what it was trained on and by which
    command, and how it does on held-out text.
    """
    if markdown and (weights or as_json):
        raise InvalidOption("--markdown stands alone: leave out --weights and --json")
    if weights:
        from paceline.networks.weights import shipped_cards

        cards = shipped_cards()
        if as_json:
            print_json([asdict(card) for card in cards])
        else:
            typer.echo("\n".join(shipped_lines(cards)))
    elif as_json:
        print_json([dict(zip(_COLUMNS, row, strict=True)) for row in _rows()])
    elif markdown:
        typer.echo(page(), nl=False)
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in _COLUMNS:
            table.add_column(column, overflow="fold", no_wrap=column == "method")
        for row in _rows():
            table.add_row(*row)
        Console().print(table, markup=False)


def page() -> str:
    """The methods as a markdown page."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    for name, *rest in _rows():
        lines.append("| " + " | ".join([f"`{name}`", *rest]) + " |")
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _rows() -> list[tuple[str, ...]]:
    return [(m.name, m.kind, m.guarantee, m.needs, m.paper) for m in registry.methods()]

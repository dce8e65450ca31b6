"""`paceline methods`: every registered drafter, verifier, controller and runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json
from paceline.errors import InvalidOption
from paceline.registry import table as registry

if TYPE_CHECKING:
    from paceline.networks.weights import ShippedCard

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
    markdown: Annotated[bool, "Print docs/methods.md."] = False,
    weights: Annotated[bool, "The cards of the weights that ship, in place of methods."] = False,
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


def shipped_lines(cards: Sequence[ShippedCard]) -> list[str]:
    """Format the cards of shipped weights, a line for each fact."""
    out: list[str] = []
    for card in cards:
        found = [(label, text) for label, text in _entries(card) if text]
        width = max(len(label) for label, _ in found)
        large = card.bytes >= 2**20
        size = f"{card.bytes / 2**20:.1f} MiB" if large else f"{card.bytes / 2**10:.1f} KiB"
        out += ["", f"{card.file}  ({size})"]
        out += [f"  {label:<{width}}  {text}" for label, text in found]
    return out[1:]


def _entries(card: ShippedCard) -> list[tuple[str, str]]:
    # A text is empty where the file does not say it.
    given = card.metadata
    settings = ", ".join(f"{key} {value}" for key, value in card.settings.items())
    drafts = "" if card.draft_vocabulary is None else f", {card.draft_vocabulary} draft tokens"
    return [
        ("what", f"{card.kind}: {settings}" if settings else card.kind),
        ("size", f"{card.parameters} parameters{drafts}"),
        ("target", f"{given.get('model_name', 'unknown')} ({given.get('model', 'unknown')})"),
        ("trained on", _seen(card)),
        ("held out", _held_out(card)),
        ("command", str(given.get("command", ""))),
        ("text from", str(given.get("data_command", ""))),
        ("before that", str(given.get("from_command", ""))),
        ("data", _data(given.get("data"))),
    ]


def _seen(card: ShippedCard) -> str:
    given = card.metadata
    if "tokens" in given:
        return f"{given['tokens']} tokens, repeats counted"
    if "prompts_labelled" in given:
        return f"{given['prompts_labelled']} prompts (digest {given.get('prompts', 'unknown')})"
    return ""


def _held_out(card: ShippedCard) -> str:
    given = card.metadata
    if "block_efficiency" in given:
        return f"block efficiency {float(given['block_efficiency']):.3f}"
    figures = given.get("held_out")
    if not isinstance(figures, dict):
        return ""
    shares = {name.replace("_", " "): _share(each) for name, each in figures.items()}
    said = ", ".join(f"{name} {share}" for name, share in shares.items() if share)
    return f"{figures.get('examples', 'some')} examples: {said}"


def _share(figure: Any) -> str:
    if isinstance(figure, dict):
        return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure:.3f}" if isinstance(figure, float) else ""


def _data(settings: Any) -> str:
    if not isinstance(settings, dict):
        return ""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())

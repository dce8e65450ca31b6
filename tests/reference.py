"""The reference of all commands, docs/cli.md: `python -m tests.reference [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import typer

from paceline.cli.app import commands
from paceline.cli.options import CANVAS, CHATS, VERIFICATION, SamplingOptions

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

_INTRODUCTION = """\
# Commands

Every command with its help, plugins included. This page is written by
`python -m tests.reference` and compared by a test. `paceline COMMAND --help` prints the
same. Errors end as one line on standard error with exit code 2, Ctrl-C with 130. What two
commands or more have alike stands once, [at the end](#options-of-many-commands), in groups.
"""


SHARED = 2
"""So many commands have an option alike before it is said once for all of them."""


GROUPS = {
    "Model": ("model", "runtime", "device", "precision", "threads"),
    "Drafts": ("drafter", *VERIFICATION),
    "Canvas": CANVAS,
    "Context": ("max_context", "kv_precision", *CHATS),
    "Sampling": tuple(field.name for field in fields(SamplingOptions)),
    "Labels": (
        *("examples", "drafters", "graded", "limit", "new_tokens", "ahead"),
        *("cost", "penalty", "held_out"),
    ),
}
"""Options that a command takes all of, or that are named one by one, by the group's title."""


class Section(NamedTuple):
    """A command: its words on the command line, its help, its usage, and a row per parameter."""

    path: str
    help: str
    usage: str
    rows: list[Row]


class Row(NamedTuple):
    """A parameter: its names, and its line of a table."""

    names: str
    line: str


def page() -> str:
    """Return the reference of all commands that the application holds, as Markdown."""
    sections = list(_sections(typer.main.get_command(commands()), "paceline"))
    uses = Counter(row for section in sections for row in section.rows)
    shared = [row for row in uses if uses[row] >= SHARED]
    groups = {title: _group(names, shared, uses) for title, names in GROUPS.items()}
    grouped = [row for rows in groups.values() for row in rows]
    return "".join(
        [
            _INTRODUCTION,
            *(_written(section, shared, groups) for section in sections),
            "\n## Options of many commands\n",
            *(f"\n### {title}\n{_table(rows)}" for title, rows in groups.items()),
            "\n### Others\n",
            _table([row for row in shared if row not in grouped]),
        ]
    )


def _group(names: Sequence[str], shared: list[Row], uses: Counter[Row]) -> list[Row]:
    """Return the rows of these options as most commands have them."""
    flags = [f"`--{name.replace('_', '-')}`" for name in names]
    alike = [[row for row in shared if row.names.split(", ")[0] == flag] for flag in flags]
    return [max(rows, key=lambda row: uses[row]) for rows in alike]


def _written(section: Section, shared: list[Row], groups: Mapping[str, list[Row]]) -> str:
    own = [row for row in section.rows if row not in shared]
    usage = "" if section.usage == f"{section.path} [OPTIONS]" else f"\n    {section.usage}\n"
    out = f"\n## {section.path}\n\n{section.help}\n{usage}{_table(own)}"
    whole = {title: rows for title, rows in groups.items() if set(rows) <= set(section.rows)}
    said = [f"[{title}](#{title.lower()})" for title in whole]
    grouped = [row for rows in whole.values() for row in rows]
    said += [row.names for row in section.rows if row in shared and row not in grouped]
    return out + (f"\nAnd {', '.join(said)}.\n" if said else "")


def _table(rows: list[Row]) -> str:
    lines = [row.line for row in rows]
    return "\n".join(["\n| option | default | |\n|---|---|---|", *lines, ""]) if rows else ""


def _sections(command: Any, path: str) -> Iterator[Section]:
    inner = getattr(command, "commands", {})
    usage, rows = [path], []
    for each in command.params:
        if each.param_type_name == "argument":
            name = each.metavar or each.name.upper() + "..." * (each.nargs == -1)
            usage.append(name if each.required else f"[{name}]")
            names = f"`{name}`"
        else:
            names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
        text = (each.help or "").replace("|", "\\|")
        rows.append(Row(names, f"| {names} | {_default(each)} | {text} |"))
    usage += ["[OPTIONS]"] * bool(rows) + ["COMMAND"] * bool(inner)
    yield Section(path, inspect.cleandoc(command.help or ""), " ".join(usage), rows)
    for name, each in inner.items():
        yield from _sections(each, f"{path} {name}")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if any(value is nothing for nothing in (None, False, ())):
        return ""
    values = value if isinstance(value, list | tuple) else [value]
    return f"`{' '.join(map(str, values))}`"


def main() -> int:
    """Write the page, or with --check return 1 if it is out of date."""
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

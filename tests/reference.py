"""The reference of all commands, docs/cli.md: `python -m tests.reference [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from paceline.cli.app import commands

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

_INTRODUCTION = """\
# Commands

Every command with its help, plugins included. This page is written by
`python -m tests.reference` and compared by a test. `paceline COMMAND --help` prints the
same. Errors end as one line on standard error with exit code 2, Ctrl-C with 130.
"""


def page() -> str:
    """Return the reference of all commands that the application holds, as Markdown."""
    return _INTRODUCTION + "".join(_sections(typer.main.get_command(commands()), "paceline"))


def _sections(command: Any, path: str) -> Iterator[str]:
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
        rows.append(f"| {names} | {_default(each)} | {text} |")
    usage += ["[OPTIONS]"] * bool(rows) + ["COMMAND"] * bool(inner)
    yield f"\n## {path}\n\n{inspect.cleandoc(command.help or '')}\n\n    {' '.join(usage)}\n"
    if rows:
        yield "\n| option | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
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

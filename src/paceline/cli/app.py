"""The command line as a whole: its commands, and how errors leave it."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, NoReturn, cast

import typer

from paceline.cli.audit import audit
from paceline.cli.batch import batch
from paceline.cli.bench import bench
from paceline.cli.bench_batches import batches
from paceline.cli.bench_methods import methods as bench_methods
from paceline.cli.bench_parallel import parallel
from paceline.cli.bounds import bounds
from paceline.cli.chat import chat
from paceline.cli.doctor import doctor
from paceline.cli.export import export
from paceline.cli.generate import generate
from paceline.cli.index import index
from paceline.cli.methods import methods
from paceline.cli.pull import pull
from paceline.cli.serve import serve
from paceline.cli.train_canvas_filter import canvas_filter
from paceline.cli.train_corpus import corpus
from paceline.cli.train_data import data
from paceline.cli.train_denoiser import denoiser
from paceline.cli.train_drafter import drafter
from paceline.cli.train_experts import experts
from paceline.cli.train_heads import acceptance_head, head_preview
from paceline.cli.train_scaling import scaling
from paceline.cli.train_vocabulary import vocabulary
from paceline.cli.tune import tune
from paceline.errors import PacelineError
from paceline.version import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

# The base of all usage errors. Typer exports its subclasses under stable names, but not itself.
_UsageProblem = cast(type[Exception], typer.BadParameter.__mro__[2])

app = typer.Typer(
    name="paceline",
    help="Faster decoding of language models with the same output.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# `paceline train`: drafters, and what goes with them.
train = typer.Typer(
    name="train",
    help="Train drafters (data, drafter), and small heads for drafters and verifiers.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

train.command("data")(data)
train.command("corpus")(corpus)
train.command("drafter")(drafter)
train.command("denoiser")(denoiser)
train.command("experts")(experts)
train.command("acceptance-head")(acceptance_head)
train.command("canvas-filter")(canvas_filter)
train.command("head-preview")(head_preview)
train.command("scaling")(scaling)
train.command("vocabulary")(vocabulary)

# `paceline bench`: drafters; and canvases.
bench_group = typer.Typer(
    name="bench",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_group.callback()(bench)
bench_group.command("batches")(batches)
bench_group.command("methods")(bench_methods)
bench_group.command("parallel")(parallel)

for command in (
    generate,
    chat,
    serve,
    batch,
    tune,
    bounds,
    doctor,
    export,
    index,
    methods,
    pull,
):
    app.command()(command)
app.add_typer(bench_group)
app.add_typer(audit)
app.add_typer(train)


def _add_plugins() -> None:
    # An entry point of this group is a command; "train.NAME" belongs to `paceline train`.
    places = {"": app, "audit": audit, "bench": bench_group, "train": train}
    for point in entry_points(group="paceline.commands"):
        place, _, name = point.name.rpartition(".")
        try:
            places[place].command(name)(point.load())
        except Exception as error:
            typer.echo(
                f"paceline: warning: the command {point.value} cannot be loaded ({error}): mend "
                "or uninstall it",
                err=True,
            )


_add_plugins()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Faster decoding of language models with the same output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    Errors that a user can cause end as one line on standard error and code 2; Ctrl-C as code 130.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # model output must not fail on a poor terminal
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="paceline", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (PacelineError, _UsageProblem) as error:
        text = getattr(error, "format_message", error.__str__)()
        typer.echo(f"paceline: error: {' '.join(text.split())}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Entry point of the command."""
    sys.exit(run(sys.argv[1:]))

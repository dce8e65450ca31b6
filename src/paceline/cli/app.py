"""The command line as a whole: its commands, and how errors leave it."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.main import get_command

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
from paceline.errors import InvalidOption, PacelineError
from paceline.version import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
READER_GONE = 141
"""Exit code as of a process that a closed pipe has ended."""

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

    Errors that a user can cause end as one line on standard error and code 2; Ctrl-C as code 130,
    and a reader that has gone, as of `| head`, as code 141 without a line.
    """
    streams: list[tuple[TextIO | None, str]] = [(sys.stdout, "replace"), (sys.stderr, "replace")]
    # Model output must not fail on a poor terminal; bytes that are no text are found where read.
    for stream, errors in [*streams, (sys.stdin, "surrogateescape")]:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        command = get_command(app)
        _check_numbers(command)
        given = list(arguments) or ["--help"]
        code = command(args=given, prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return READER_GONE
    except BrokenPipeError:
        return READER_GONE
    except (PacelineError, _UsageProblem) as error:
        return _say(getattr(error, "format_message", error.__str__)())
    except OSError as error:  # of files, those that have a name; else of the output
        what = "the output cannot be written" if error.filename is None else error.filename
        return _say(f"{what} ({error.strerror or error}): mend that or name another place")
    except UnicodeError as error:
        return _say(f"some text is no UTF-8 ({error}): convert it first")
    except MemoryError:
        return _say("there is not enough memory: use a smaller model, cache or batch")
    return code if isinstance(code, int) else 0


def _check_numbers(command: Any) -> None:
    # Of all options of all commands: numbers that are none, or that no machine counts to.
    for each in getattr(command, "commands", {}).values():
        _check_numbers(each)
    work, options = command.callback, {each.name: max(each.opts) for each in command.params}

    def checked(**given: Any) -> None:
        for name, value in given.items():
            most = 2**63 if isinstance(value, int) else math.inf
            if isinstance(value, int | float) and not abs(value) < most:
                raise InvalidOption(f"{options[name]} {value} is no number below 2**63: mend it")
            if name == "seed" and value < 0:
                raise InvalidOption(f"--seed must be 0 or more, not {value}")
        work(**given)

    command.callback = work and checked


def _say(text: str) -> int:
    with suppress(OSError):
        typer.echo(f"paceline: error: {' '.join(text.split())}", err=True)
    return 2


def main() -> NoReturn:
    """Entry point of the command."""
    shut = _open_standard_streams()
    if shut and sys.argv[1:2] != ["serve"]:
        code = _say("standard output is closed: send it to a file, or to /dev/null")
    else:
        code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):  # Python would complain of what is left at its end
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _open_standard_streams() -> bool:
    # Files that are opened must not take their places. True if standard output was closed.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    shut = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    return shut

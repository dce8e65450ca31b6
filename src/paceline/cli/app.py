"""The command line as a whole: its commands, and how errors leave it."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer
from typer.main import get_command

from paceline.cli.options import spread_options
from paceline.cli.output import one_line, remark, remarked
from paceline.errors import InvalidOption, PacelineError
from paceline.version import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
READER_GONE = 141
"""Exit code as of a process that a closed pipe has ended."""

# The base of all usage errors. Typer exports its subclasses under stable names, but not itself.
_UsageProblem = cast(type[Exception], typer.BadParameter.__mro__[2])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Faster decoding of language models with the same output."""


# Each is imported when it is asked for. "train.NAME" belongs to `paceline train`.
_COMMANDS = {
    "generate": "paceline.cli.generate:generate",
    "chat": "paceline.cli.chat:chat",
    "serve": "paceline.cli.serve:serve",
    "batch": "paceline.cli.batch:batch",
    "transcribe": "paceline.cli.transcribe:transcribe",
    "tune": "paceline.cli.tune:tune",
    "bounds": "paceline.cli.bounds:bounds",
    "doctor": "paceline.cli.doctor:doctor",
    "export": "paceline.cli.export:export",
    "inspect": "paceline.cli.inspect:inspect",
    "methods": "paceline.cli.methods:methods",
    "pull": "paceline.cli.pull:pull",
    "bench": "paceline.cli.bench:bench",
    "bench.batches": "paceline.cli.bench_batches:batches",
    "bench.methods": "paceline.cli.bench_methods:methods",
    "bench.parallel": "paceline.cli.bench_parallel:parallel",
    "audit.inside": "paceline.cli.audit:inside",
    "audit.outside": "paceline.cli.audit:outside",
    "train.data": "paceline.cli.train_data:data",
    "train.corpus": "paceline.cli.train_data:corpus",
    "train.drafter": "paceline.cli.train_drafter:drafter",
    "train.denoiser": "paceline.cli.train_denoiser:denoiser",
    "train.experts": "paceline.cli.train_experts:experts",
    "train.acceptance-head": "paceline.cli.train_heads:acceptance_head",
    "train.canvas-filter": "paceline.cli.train_heads:canvas_filter",
    "train.head-preview": "paceline.cli.train_heads:head_preview",
    "train.vocabulary": "paceline.cli.train_vocabulary:vocabulary",
}

_GROUPS = ("bench", "audit", "train")

_STYLE: dict[str, Any] = {
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


@cache
def commands(first: str = "") -> typer.Typer:
    """Return the command line: all of it, or what begins with a word, if anything does.

    Entry points of group `paceline.commands` are commands, too, by the same names.
    """
    app = typer.Typer(
        name="paceline",
        help="Faster decoding of language models with the same output.",
        add_completion=False,
        pretty_exceptions_enable=False,
        **_STYLE,
    )
    app.callback()(_root)
    bench = typer.Typer(name="bench", invoke_without_command=True, **_STYLE)
    train = typer.Typer(
        name="train",
        help="Train drafters (data, drafter), and small heads for drafters and verifiers.",
        **_STYLE,
    )
    audit = typer.Typer(
        name="audit",
        help="Prove or test that speculation leaves the output distribution alone.",
        **_STYLE,
    )
    places = {"": app, "bench": bench, "train": train, "audit": audit}
    alone = first in _COMMANDS and first not in _GROUPS  # then no plugin is of interest
    found = () if alone else entry_points(group="paceline.commands")
    plugins = sorted((each.name, each.value) for each in found)
    known = [*_COMMANDS.items(), *plugins]
    wanted = [each for each in known if each[0].partition(".")[0] == first] or known
    for name, value in wanted:
        place, _, last = name.rpartition(".")
        try:
            made = spread_options(resolve_name(value))
            if name == "bench":
                bench.callback()(made)
            else:
                places[place].command(last)(made)
        except Exception as error:
            if (name, value) not in plugins:
                raise
            remark(
                f"paceline: warning: the command {value} cannot be loaded ({error}): mend "
                "or uninstall it"
            )
    for group in _GROUPS:
        if any(name.partition(".")[0] == group for name, _ in wanted):
            app.add_typer(places[group])
    return app


@remarked()
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
        given = list(arguments) or ["--help"]
        command = get_command(commands(given[0]))
        _check_numbers(command)
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
        typer.echo(f"paceline: error: {one_line(text)}", err=True)
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

"""`paceline tune`: what is fastest here becomes the default of drafter "auto"."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.bench.builtin import BUILT_IN
from paceline.bench.prompts import read_prompts
from paceline.cli import options as o
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.types import SamplingParams
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.loading import Loaded
    from paceline.tuned import Choice
    from paceline.tuning.tuner import Tuner

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    prompts: Annotated[
        Path | None,
        typer.Option(help="Spec-Bench JSONL: question_id, category, turns. Default: built-in mix."),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(help="Seconds, or as in 90s, 5m, 1h, without loading.")
    ] = "5m",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print why the saved choice was made, no more."),
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop the saved choice and what was measured.")
    ] = False,
    max_new_tokens: o.MaxNewTokens = 48,
    model: o.Model = "smollm2-135m",
    runtime: o.Runtime = "auto",
    device: o.Device = None,
    precision: o.Precision = None,
    layout: o.TreeLayout = None,
    threads: o.Threads = None,
    max_context: o.MaxContext = None,
    temperature: o.Temperature = 0.0,
    seed: o.Seed = 0,
    as_json: o.AsJson = False,
) -> None:
    """Find the fastest drafter and sizes for this machine, model and prompts, and keep them.

    Ctrl-C ends the search with what there is, and the same command goes on with it. What is saved
    was faster than plain decoding on prompts that took no part in the search; if nothing was,
    plain decoding is saved.
    """
    seconds = _seconds(time_limit)
    if explain and forget:
        raise InvalidOption("--explain and --forget do not go together: give one of them")
    checked = o.runtime_options(device, precision, layout, threads, max_context)
    o.check_names(runtime, "auto", "auto")
    params = SamplingParams(temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)
    chosen = BUILT_IN if prompts is None else read_prompts(prompts)

    from paceline import loading, tuned

    loaded = loading.load_model(model, runtime=runtime, options=checked)
    journal = tuned.path_of(loaded.place).with_suffix(".journal")
    if forget:
        _forget(loaded, journal)
        return
    if explain:
        choice = tuned.read(loaded.place)
        if choice is None:
            raise InvalidOption(
                f"nothing is tuned for {loaded.source.name} at "
                f"{loaded.target.capabilities.precision} on this machine: run paceline tune first"
            )
        _report(choice, None, as_json)
        return
    if find_spec("optuna") is None:
        raise RuntimeUnavailable("tuning needs optuna: pip install 'paceline[tune]'")

    from paceline.cli.interrupt import interruptible
    from paceline.tuning.explain import evidence
    from paceline.tuning.search import Search
    from paceline.tuning.space import EVERYTHING
    from paceline.tuning.track import ModelTrack
    from paceline.tuning.tuner import Tuner

    track = ModelTrack(loaded, chosen, params)
    settings = {
        "prompts": "built-in" if prompts is None else prompts.name,
        "prompts_sha256": _digest(track.work.content),
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        "max_context": max_context,
    }
    # A study goes on only where all that its figures depend on is the same.
    study = _digest(repr((__version__, loaded.place, settings, list(EVERYTHING))))
    search = Search(journal, study, len(track.searching), seed)
    saved = None
    with interruptible() as interrupt, _progress(seconds) as watch:
        tuner = Tuner(search, track, seconds, interrupted=lambda: interrupt.requested, watch=watch)
        for found in tuner.run():
            if found is not None:
                saved = tuned.Choice(found, evidence(loaded, tuner, settings, found.name))
                tuned.write(loaded.place, saved)
    if saved is None:
        _undecided(tuner, as_json)
    else:
        _report(saved, tuned.path_of(loaded.place), as_json)
    if interrupt:
        raise typer.Exit(130)


def _seconds(text: str) -> float:
    """Seconds in a time limit as users write it."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < math.inf:
        raise InvalidOption(f"--time-limit {text!r} is no time: write it as in 90, 90s, 5m, 1h")
    return seconds


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _report(choice: Choice, path: Path | None, as_json: bool) -> None:
    """Print a choice; `path` is where it was just saved."""
    from dataclasses import asdict

    from paceline.cli.output import print_json
    from paceline.tuning import explain

    if as_json:
        print_json({**asdict(choice), "saved": None if path is None else str(path)})
        return
    if path is None:
        for line in explain.lines(choice):
            typer.echo(line)
        return
    typer.echo(explain.table(choice.evidence["finals"]))
    typer.echo(f"why: {choice.evidence['why']}")
    typer.echo(f"drafter auto is now {choice.configuration.name}, saved in {path}")


def _undecided(tuner: Tuner, as_json: bool) -> None:
    """Say that too little was measured."""
    from paceline.cli.output import print_json
    from paceline.tuning.explain import kept, table

    rows = kept(tuner.searched())
    if as_json:
        print_json({"configuration": None, "search": rows, "saved": None})
        return
    if rows:
        typer.echo(table(rows, tuner.pruned))
    typer.echo(
        "too little was measured to choose by, and nothing was saved: what there is was kept, and "
        "the same command goes on"
    )


def _forget(loaded: Loaded, journal: Path) -> None:
    from paceline import tuned

    found = [path for path in (tuned.path_of(loaded.place), journal) if path.exists()]
    for path in found:
        path.unlink()
    typer.echo("forgotten" if found else "there was nothing to forget")


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[float, str], None]]:
    """A bar over the time limit on standard error if that is a terminal; yields what moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    hidden = not sys.stderr.isatty()
    columns = ("tune: {task.description}", BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task("", total=seconds)

        def watch(elapsed: float, text: str) -> None:
            bar.update(task, completed=min(elapsed, seconds), description=text)

        yield watch

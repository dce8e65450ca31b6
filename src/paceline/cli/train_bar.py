"""Runs trainings to their end with a progress bar; Ctrl-C saves, and the same run goes on later."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from paceline.cli.output import Interrupt
    from paceline.training.run import TrainingRun

_SAVE_SECONDS = 60.0


class TrainingBar:
    """A bar for the run at hand, and one above it for all runs if there are several.

    Attributes:
        interrupt: whether Ctrl-C was pressed.
    """

    def __init__(self, progress: Progress, interrupt: Interrupt) -> None:
        """Draw into `progress`, which its owner starts and stops."""
        self.interrupt = interrupt
        self._progress = progress
        self._run: TaskID | None = None
        self._whole: TaskID | None = None
        self._before = 0

    def expect(self, title: str, tokens: int) -> None:
        """Show a bar for all runs, of so many tokens together."""
        self._whole = self._progress.add_task(title, total=tokens, detail="")

    def passed(self, tokens: int) -> None:
        """Count a run as done."""
        self._before += tokens
        self._show_whole(0)

    def train(self, run: TrainingRun[Any], title: str = "training") -> bool:
        """Run to the end or until Ctrl-C, with checkpoints; return if it got to the end."""
        if self._run is not None:
            self._progress.remove_task(self._run)
        self._run = task = self._progress.add_task(
            title, total=run.steps, completed=run.step, detail=""
        )
        saved = perf_counter()
        try:
            for report in run.run():
                detail = f"{run.course.tokens_per_second:.0f} tokens/s"
                if isfinite(report.loss):
                    detail = f"loss {report.loss:.3f}, {detail}"
                self._progress.update(task, completed=report.step, detail=detail)
                self._show_whole(report.tokens)
                if self.interrupt:
                    break
                if perf_counter() - saved > _SAVE_SECONDS:
                    run.save()
                    saved = perf_counter()
        finally:
            run.save()
        return run.step >= run.steps

    def _show_whole(self, tokens: int) -> None:
        if self._whole is not None:
            self._progress.update(self._whole, completed=self._before + tokens)


@contextmanager
def training_bar() -> Iterator[TrainingBar]:
    """Bars on standard error while the context lasts, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from paceline.cli.output import interruptible

    columns = (
        "{task.description}",
        BarColumn(),
        TaskProgressColumn(),
        "{task.fields[detail]}",
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with (
        Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress,
        interruptible() as interrupt,
    ):
        yield TrainingBar(progress, interrupt)


def train_with_bar(run: TrainingRun[Any]) -> bool:
    """Train one run under a bar of its own, as `TrainingBar.train`."""
    with training_bar() as bar:
        return bar.train(run)


def report(figures: Mapping[str, Any], line: str, *, as_json: bool, finished: bool) -> None:
    """Print the figures of a training, or a line for people; exit 130 if it was interrupted."""
    from paceline.cli.output import print_json

    if as_json:
        print_json(figures)
    else:
        typer.echo(line)
    if not finished:
        raise typer.Exit(130)

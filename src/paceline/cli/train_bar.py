"""Runs trainings to their end with a progress bar; Ctrl-C saves, and the same run goes on later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from paceline.cli.output import Interrupt
    from paceline.training.run_card import Course
    from paceline.training.trainer import Report

_SAVE_SECONDS = 60.0


class Resumable(Protocol):
    """A training that can be saved between two updates.

    Attributes:
        step: updates done.
        steps: of the whole run.
        notes: plain values that checkpoints keep.
    """

    step: int
    steps: int
    notes: dict[str, Any]

    def run(self) -> Iterator[Report]:
        """Train to the end, one update at a time."""
        ...

    def save(self) -> None:
        """Write the checkpoint."""
        ...


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

    def train(self, trainer: Resumable, course: Course, title: str = "training") -> bool:
        """Run to the end, or until Ctrl-C; whether it got there. The checkpoint is written
        meanwhile.

        Args:
            trainer: what to run.
            course: notes every update, and goes into the checkpoints.
            title: before the bar.
        """
        if self._run is not None:
            self._progress.remove_task(self._run)
        self._run = task = self._progress.add_task(
            title, total=trainer.steps, completed=trainer.step, detail=""
        )
        saved = perf_counter()
        try:
            for report in trainer.run():
                course.add(report)
                rate = f"{course.tokens / course.seconds:.0f}"
                detail = f"loss {report.loss:.3f}, {rate} tokens/s"
                self._progress.update(task, completed=report.step, detail=detail)
                self._show_whole(report.tokens)
                trainer.notes = course.as_dict()
                if self.interrupt:
                    break
                if perf_counter() - saved > _SAVE_SECONDS:
                    trainer.save()
                    saved = perf_counter()
        finally:
            trainer.save()
        return trainer.step >= trainer.steps

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


def train_with_bar(trainer: Resumable, course: Course) -> bool:
    """One run under a bar of its own, as `TrainingBar.train`."""
    with training_bar() as bar:
        return bar.train(trainer, course)

"""Runs a training to its end with a progress bar; Ctrl-C saves, and the same run goes on later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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


def train_with_bar(trainer: Resumable, course: Course) -> bool:
    """Run to the end, or until Ctrl-C; whether it got there. The checkpoint is written meanwhile.

    Args:
        trainer: what to run.
        course: notes every update, and goes into the checkpoints.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from paceline.cli.interrupt import interruptible

    columns = (
        "training",
        BarColumn(),
        TaskProgressColumn(),
        "loss {task.fields[loss]}, {task.fields[rate]} tokens/s",
        TimeRemainingColumn(),
    )
    console, saved = Console(stderr=True), perf_counter()
    with (
        Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar,
        interruptible() as interrupt,
    ):
        task = bar.add_task("", total=trainer.steps, completed=trainer.step, loss="-", rate="-")
        try:
            for report in trainer.run():
                course.add(report)
                rate = f"{course.tokens / course.seconds:.0f}"
                bar.update(task, completed=report.step, loss=f"{report.loss:.3f}", rate=rate)
                trainer.notes = course.as_dict()
                if interrupt:
                    break
                if perf_counter() - saved > _SAVE_SECONDS:
                    trainer.save()
                    saved = perf_counter()
        finally:
            trainer.save()
    return trainer.step >= trainer.steps

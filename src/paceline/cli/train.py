"""The shell of commands that train: a bar, checkpoints, Ctrl-C that saves, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.cli.output import interruptible, progress_bar, report
from paceline.errors import InvalidOption
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.lab.training.card import TaughtTask
    from paceline.lab.training.data import Text
    from paceline.lab.training.recipe import Recipe
    from paceline.lab.training.run import TrainingRun, TrainingTask
    from paceline.runtimes.torch.model import TorchModel

Tasked = TypeVar("Tasked", bound="TrainingTask[Any, Any]")

_SAVE_SECONDS = 60.0


def train(
    task: Tasked,
    out: Path,
    publish: Callable[[TrainingRun[Tasked]], tuple[dict[str, Any], str]],
    *,
    as_json: bool,
    whole: bool = False,
) -> None:
    """Train a task to its end or until Ctrl-C, or go on with it, and report.

    Args:
        out: the checkpoint stands beside it.
        publish: judges and writes what there is, and returns figures and a line for people.
        whole: of a run that was interrupted nothing is written but the checkpoint.

    Raises:
        InvalidOption: a file cannot be written, the loss is not finite, or other settings began.
        ModelError: the checkpoint is damaged.
    """
    from paceline.lab.training.run import TrainingRun

    checkpoint = out.with_name(f"{out.name.removesuffix('.safetensors')}.checkpoint")
    run = TrainingRun(task, checkpoint)
    _drive(run)
    figures: dict[str, Any] = {}
    line = f"{checkpoint}: {run.step} of {run.steps} updates"
    if run.finished or not whole:
        figures, line = publish(run)
    run.close()
    if whole:
        figures = {"out": str(out), "steps": run.step, "finished": run.finished, **figures}
    report(figures, line, as_json=as_json, finished=run.finished)


def _drive(run: TrainingRun[Any]) -> None:
    words = "{task.percentage:>3.0f}% {task.fields[detail]}"
    with progress_bar(words) as bar, interruptible() as interrupt:
        task = bar.add_task("training", total=run.steps, completed=run.step, detail="")
        saved = perf_counter()
        try:
            for step in run.run():
                loss = f"loss {step.loss:.3f}, " if isfinite(step.loss) else ""
                detail = f"{loss}{run.course.tokens_per_second:.0f} tokens/s"
                bar.update(task, completed=step.step, detail=detail)
                if interrupt:
                    break
                if perf_counter() - saved > _SAVE_SECONDS:
                    run.save()
                    saved = perf_counter()
        finally:
            run.save()


def train_beside(
    make: Callable[[TorchModel, Sequence[Text], Any], TaughtTask[Any]],
    recipe: Recipe,
    command: str,
    *,
    data: Path,
    out: Path,
    asked: Options,
    as_json: bool,
) -> None:
    """Train rows beside a frozen model on its text; errors as of `train`.

    Args:
        make: the task, from the model, texts and recipe.
        command: the words of the command line, without the model.
    """
    import torch

    from paceline.lab.training.card import Teacher, publish
    from paceline.lab.training.setup import use_threads
    from paceline.models.source import resolve
    from paceline.runtimes.torch.model import TorchModel
    from paceline.runtimes.torch.target import torch_device

    use_threads(asked.threads)
    place, source = torch_device(asked.device or "cpu"), resolve(asked.model)
    teacher = Teacher.of([data], source)
    network = TorchModel(source.config, source.weights(), place, torch.float32)
    task = make(network, teacher.texts, recipe)
    words = f"paceline train {command} --model {asked.model}"
    train(task, out, lambda run: publish(run, out, teacher, words), as_json=as_json)


def folder(out: Path | None, default: str) -> Path:
    """Return the place of a model directory, whose parent is made; InvalidOption for a file."""
    out = out or Path(default)
    if out.is_file():
        raise InvalidOption(f"{out} is a file: give a folder as --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    return out

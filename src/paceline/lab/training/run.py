"""The one loop of all training: a task's batches and losses, updates, checkpoints, exact resume."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import InvalidOption
from paceline.lab.training import checkpoint
from paceline.lab.training.data import Text
from paceline.lab.training.optimisers import Rated, update
from paceline.lab.training.recipe import Recipe

Chosen = TypeVar("Chosen", bound=Recipe)
Quality = TypeVar("Quality", covariant=True)


class TrainingTask(ABC, Generic[Chosen, Quality]):
    """A thing to train: its parameters, its batches, what they minimise, and how it is judged.

    Attributes:
        module: checkpoints hold its parameters and persistent buffers.
        steps: updates of a whole run.
        texts, held_out: those that it learns from, and those that `judge` reads.
        generator: of the initial parameters, on the CPU.
        rng: of draws while it trains, resumed with the run.
    """

    module: nn.Module
    steps: int

    def __init__(
        self, recipe: Chosen, texts: Sequence[Text] = (), held_out: Sequence[Text] = ()
    ) -> None:
        self.recipe, self.texts, self.held_out = recipe, texts, held_out
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.rng = np.random.default_rng(recipe.seed)
        self._batches: list[list[Text]] = []
        self._passed = 0

    @property
    def chosen(self) -> dict[str, Any]:
        """The recipe, as cards show it."""
        return asdict(self.recipe)

    @property
    def settings(self) -> dict[str, Any]:
        """JSON-serialisable values that a resumed run must share."""
        return {**self.chosen, "texts": len(self.texts)}

    @abstractmethod
    def optimisers(self) -> list[Rated]:
        """Return optimisers of all parameters, with peak learning rates."""
        ...

    def begin(self) -> None:
        """Set what is found in the texts; not called where a run goes on."""
        return

    def passing(self, number: int) -> list[list[Text]]:
        """Return the batches of a pass over the texts, by its number; here all texts at once."""
        return [list(self.texts)]

    def batch(self, step: int) -> list[Text]:
        """Return the texts of a step (from 0), a function of its number: pass after pass."""
        while step >= len(self._batches):
            self._batches += self.passing(self._passed)
            self._passed += 1
        return self._batches[step]

    @abstractmethod
    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        """Yield what a batch minimises, an optimiser step each, and the loss to report."""
        ...

    @abstractmethod
    def judge(self) -> Quality:
        """Measure quality on what is held out."""
        ...


def check_finite(loss: float, step: int, checkpoint: Path | None) -> None:
    """Raise InvalidOption on a NaN or infinite loss; call it before the step's update.

    `checkpoint` is the last one saved, for the message.
    """
    if math.isfinite(loss):
        return
    kept = f"go on from {checkpoint}, which is whole," if checkpoint else "begin again"
    raise InvalidOption(
        f"the loss is {loss} at step {step}: {kept} with a lower learning rate, a longer warm-up "
        "or tighter gradient clipping"
    )


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Update of a run: step from 1, tokens so far, loss before the update (NaN if none)."""

    step: int
    tokens: int
    loss: float


@dataclass(frozen=True, slots=True)
class LossPoint:
    """Mean training loss since the last point, and held-out loss, at a step."""

    step: int
    training: float
    held_out: float | None = None


class LossCourse:
    """Losses and seconds of a run over all its sessions; `kept` continues from `as_dict`."""

    _EVERY: ClassVar[int] = 20  # updates per point

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        kept = kept or {"points": [], "seconds": 0.0, "tokens": 0}
        self.points = [LossPoint(*point) for point in kept["points"]]
        self.seconds = float(kept["seconds"])
        self.tokens = int(kept["tokens"])
        self._recent: list[float] = []
        self.start()

    def start(self) -> None:
        """Restart the clock, so that pauses do not count."""
        self._clock = perf_counter()

    def add(self, report: TrainingStep) -> None:
        now = perf_counter()
        self.seconds += now - self._clock
        self._clock = now
        self.tokens = report.tokens
        self._recent.append(report.loss)
        if len(self._recent) == self._EVERY:
            self._point(report.step, None)

    def held_out(self, step: int, loss: float) -> None:
        self._point(step, loss)

    def as_dict(self) -> dict[str, Any]:
        points = [[p.step, p.training, p.held_out] for p in self.points]
        return {"points": points, "seconds": self.seconds, "tokens": self.tokens}

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    def _point(self, step: int, held_out: float | None) -> None:
        last = self.points[-1].training if self.points else math.nan
        mean = sum(self._recent) / len(self._recent) if self._recent else last
        self.points.append(LossPoint(step, mean, held_out))
        self._recent.clear()


Tasked = TypeVar("Tasked", bound=TrainingTask[Any, Any], covariant=True)


class TrainingRun(Generic[Tasked]):
    """A run of a task; iterate over `run`, then judge.

    Attributes:
        resumed: the checkpoint was loaded.
    """

    def __init__(self, task: Tasked, checkpoint_at: Path | None = None) -> None:
        """Resume the checkpoint, if there is one.

        Raises:
            InvalidOption: the checkpoint has other settings.
            ModelError: the checkpoint is damaged.
        """
        self.task, self.steps = task, task.steps
        self.step = self.tokens = 0
        self.course = LossCourse()
        self._parameters, self._rated = list(task.module.parameters()), task.optimisers()
        self._settings, self._checkpoint = task.settings, checkpoint_at
        self._state = checkpoint.TrainingState(
            task.module, [optimiser for optimiser, _ in self._rated], task.generator, task.rng
        )
        self.resumed = self._saved = checkpoint_at is not None and checkpoint_at.exists()
        if checkpoint_at is not None and self.resumed:
            progress = checkpoint.load(checkpoint_at, self._state, self._settings)
            self.step, self.tokens = progress.step, int(progress.data["tokens"])
            self.course = LossCourse(progress.data["notes"])
        else:
            task.begin()

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    def run(self) -> Iterator[TrainingStep]:
        """Train to the end, one update at a time; InvalidOption if the loss is not finite."""
        self.course.start()
        while not self.finished:
            report = self._update(self.task.batch(self.step))
            self.course.add(report)
            yield report

    def save(self) -> None:
        if self._checkpoint is not None:
            data = {"tokens": self.tokens, "notes": self.course.as_dict()}
            progress = checkpoint.Progress(self.step, data)
            checkpoint.save(self._checkpoint, self._state, progress, self._settings)
            self._saved = True

    def close(self) -> None:
        """Delete the checkpoint if all updates are done."""
        if self.finished and self._checkpoint is not None:
            self._checkpoint.unlink(missing_ok=True)

    def _update(self, texts: Sequence[Text]) -> TrainingStep:
        recipe = self.task.recipe
        for optimiser, peak in self._rated:
            for group in optimiser.param_groups:
                group["lr"] = recipe.scheduled(peak, self.step, self.steps)
        values = []
        for loss, value in self.task.losses(texts, self.step):
            for each in {value, float(loss.detach())}:
                check_finite(each, self.step, self._checkpoint if self._saved else None)
            update(self._parameters, self._rated, loss, recipe.clip)
            values.append(value)
        self.step += 1
        self.tokens += sum(len(text.tokens) for text in texts)
        return TrainingStep(self.step, self.tokens, fmean(values) if values else math.nan)

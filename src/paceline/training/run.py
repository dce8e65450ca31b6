"""Checkpointed training loop: optimisers, schedules, finite check, loss course, exact resume.

Schedules are pure functions of the step (an update, from 0), so a resumed run is identical.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.core import processor
from paceline.core.options import require
from paceline.errors import InvalidOption
from paceline.training import checkpoint
from paceline.training.batches import order
from paceline.training.data import Text
from paceline.training.module import DraftModule

Quality = TypeVar("Quality")

# Optimiser and its peak learning rate.
Rated = tuple[Optimizer, float]


# Coefficients and steps of the Newton-Schulz iteration (Jordan et al. 2024).
_QUINTIC, _ITERATIONS = (3.4445, -4.7750, 2.0315), 5


class Muon(Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al. 2024).

    That of PyTorch iterates in bfloat16, which processors without its instructions emulate, many
    times slower: there this one iterates in float32.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                found = _orthogonal(matrix.grad.lerp(mean, group["momentum"]))
                spread = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
                matrix.add_(found, alpha=-group["lr"] * spread)


def _orthogonal(matrix: Tensor) -> Tensor:
    half = matrix.is_cuda or processor.multiplies_bf16()
    x = matrix.to(torch.bfloat16 if half else torch.float32)
    tall = len(x) > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


def optimisers(module: DraftModule, matrix_rate: float, vector_rate: float) -> list[Rated]:
    """Build Muon for matrices (Jordan et al. 2024) and AdamW for all other parameters, if any."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in module.named().items():
        is_matrix = parameter.ndim == 2 and name not in ("slots", "blank")
        (matrices if is_matrix else others).append(parameter)
    out: list[Rated] = []
    if matrices:
        out.append((Muon(matrices, matrix_rate), matrix_rate))
    if others:
        betas = (0.9, 0.95)
        adam = torch.optim.AdamW(others, lr=vector_rate, betas=betas, weight_decay=0.0)
        out.append((adam, vector_rate))
    return out


def update(
    parameters: Iterable[Tensor], rated: Sequence[Rated], loss: Tensor, clip: float | None
) -> None:
    """Make one optimiser step on a finite scalar loss; `clip` is the gradient norm limit."""
    for optimiser, _ in rated:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    for optimiser, _ in rated:
        optimiser.step()


def warm_up(step: int, steps: int) -> float:
    """Return the factor of linear warm-up, from 1 / `steps` at the first step to 1 at the last."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def cosine(step: int, *, peak: float, steps: int, warm: int = 0, floor: float = 0.0) -> float:
    """Return the learning rate of cosine decay (SGDR, arXiv:1608.03983) from `peak` to `floor`.

    `steps` includes the `warm` steps of linear warm-up, the last of which has the peak rate.

    Raises:
        InvalidOption: the warm-up fills the run, or the floor is above the peak.
    """
    require(0 <= warm < steps, "warm-up", warm, f"0 to {steps - 1} of {steps} steps")
    require(0 <= floor <= peak, "floor", floor, f"0 to the peak of {peak}")
    if step < warm:
        return peak * warm_up(step, warm)
    first = max(0, warm - 1)  # the step that has the full rate
    done = min(1.0, (step - first) / max(1, steps - 1 - first))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))


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


class TrainingRun(ABC, Generic[Quality]):
    """Resumable run over texts; iterate over `run`, then `judge`.

    Attributes:
        warm_up: share of the updates.
        clip: gradient norm limit.
        resumed: the checkpoint was loaded.
        held_out: texts that `judge` reads.
    """

    warm_up: float = 0.0
    clip: float | None = None

    def __init__(
        self,
        module: nn.Module,
        rated: Sequence[Rated],
        generator: torch.Generator,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        *,
        steps: int,
        batch_tokens: int,
        seed: int,
        settings: Mapping[str, Any],
        checkpoint_at: Path | None,
    ) -> None:
        """Resume the checkpoint, if there is one.

        Args:
            generator: of the initial parameters, on the CPU.
            settings: JSON-serialisable values that a resumed run must share.

        Raises:
            InvalidOption: the checkpoint has other settings.
            ModelError: the checkpoint is damaged.
        """
        self.texts, self.held_out = texts, held_out
        self.steps, self.step, self.tokens = steps, 0, 0
        self.rng = np.random.default_rng(seed)
        self.course = LossCourse()
        self._batch_tokens, self._seed = batch_tokens, seed
        self._parameters, self._rated = list(module.parameters()), rated
        self._settings, self._checkpoint = settings, checkpoint_at
        self._state = checkpoint.TrainingState(
            module, [optimiser for optimiser, _ in rated], generator, self.rng
        )
        self.resumed = self._saved = checkpoint_at is not None and checkpoint_at.exists()
        if checkpoint_at is not None and self.resumed:
            progress = checkpoint.load(checkpoint_at, self._state, settings)
            self.step, self.tokens = progress.step, int(progress.data["tokens"])
            self.course = LossCourse(progress.data["notes"])

    @abstractmethod
    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        """Yield what a batch minimises, an optimiser step each, and the loss to report."""
        ...

    @abstractmethod
    def judge(self) -> Quality:
        """Measure quality on the held-out texts."""
        ...

    def rate(self, peak: float) -> float:
        """Return the learning rate at the current step: warm-up, then cosine decay to 2%."""
        warm = round(self.warm_up * self.steps) if self.steps > 1 else 0
        return cosine(self.step, peak=peak, steps=self.steps, warm=warm, floor=0.02 * peak)

    def batches(self, epoch: int) -> list[list[Text]]:
        """Return the batches of a pass over the texts, a pure function of its number."""
        return order(self.texts, self._batch_tokens, self._seed + epoch)

    def run(self) -> Iterator[TrainingStep]:
        """Train to the end, one update at a time; InvalidOption if the loss is not finite."""
        self.course.start()
        groups: list[list[Text]] = []
        begin = epoch = 0
        while self.step < self.steps:
            while self.step >= begin + len(groups):
                begin += len(groups)
                groups = self.batches(epoch)
                epoch += 1
            report = self._update(groups[self.step - begin])
            self.course.add(report)
            yield report

    def save(self) -> None:
        if self._checkpoint is not None:
            data = {"tokens": self.tokens, "notes": self.course.as_dict()}
            progress = checkpoint.Progress(self.step, data)
            checkpoint.save(self._checkpoint, self._state, progress, self._settings)
            self._saved = True

    def finish(self) -> bool:
        """Return if all updates are done; then delete the checkpoint."""
        done = self.step >= self.steps
        if done and self._checkpoint is not None:
            self._checkpoint.unlink(missing_ok=True)
        return done

    def _update(self, texts: Sequence[Text]) -> TrainingStep:
        for optimiser, peak in self._rated:
            for group in optimiser.param_groups:
                group["lr"] = self.rate(peak)
        values = []
        for loss, value in self.losses(texts):
            for each in {value, float(loss.detach())}:
                check_finite(each, self.step, self._checkpoint if self._saved else None)
            update(self._parameters, self._rated, loss, self.clip)
            values.append(value)
        self.step += 1
        self.tokens += sum(len(text.tokens) for text in texts)
        return TrainingStep(self.step, self.tokens, fmean(values) if values else math.nan)

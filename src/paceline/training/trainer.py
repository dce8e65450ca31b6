"""Training loop of drafter networks: Muon and AdamW, cosine schedule, exact resume.

Schedules are pure functions of the step (an update, from 0), so a resumed run is identical.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.networks.base import Network, describe
from paceline.training import checkpoint
from paceline.training.batches import Batch, FeatureSource, hold_out, order
from paceline.training.checkpoint import digest
from paceline.training.losses import find_loss, fused
from paceline.training.module import DraftModule, Drafts, Reveal
from paceline.training.objective import Hits, argmax_tokens, forward, hits
from paceline.training.on_policy import OnPolicy, check
from paceline.training.vocabulary import DraftVocabulary
from paceline.training.writing import Text

# What turns gradients of a drafter network into updates.

# Optimiser and its peak learning rate.
Rated = tuple[Optimizer, float]


def optimisers(module: DraftModule, matrix_rate: float, vector_rate: float) -> list[Rated]:
    """Build Muon for matrices (Jordan et al. 2024) and AdamW for all other parameters, if any."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in module.named().items():
        is_matrix = parameter.ndim == 2 and name not in ("slots", "blank")
        (matrices if is_matrix else others).append(parameter)
    out: list[Rated] = []
    if matrices:
        muon = torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.0)
        out.append((muon, matrix_rate))
    if others:
        betas = (0.9, 0.95)
        adam = torch.optim.AdamW(others, lr=vector_rate, betas=betas, weight_decay=0.0)
        out.append((adam, vector_rate))
    return out


def update(module: DraftModule, rated: Sequence[Rated], loss: Tensor, clip: float) -> None:
    """Make one optimiser step on a finite scalar loss; `clip` is the gradient norm limit."""
    for optimiser, _ in rated:
        optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
    for optimiser, _ in rated:
        optimiser.step()


# What changes as training goes on, as pure functions of the step, so that a run resumes
# exactly.


def warm_up(step: int, steps: int) -> float:
    """Return the factor of linear warm-up, from 1 / `steps` at the first step to 1 at the last."""
    return min(1.0, (step + 1) / steps) if steps else 1.0


def constant(step: int, *, peak: float, warm: int = 0) -> float:
    """Return the constant learning rate `peak`, after `warm` steps of linear warm-up."""
    return peak * warm_up(step, warm)


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


def on_policy_share(step: int, *, first: float, last: float, steps: int) -> float:
    """Return the share of on-policy batches, linear from `first` to `last` over `steps`.

    Off-policy text teaches an untrained drafter; on-policy text is what decoding meets
    (DistillSpec, arXiv:2310.08461). InvalidOption if a share is outside [0, 1].
    """
    require(0 <= first <= 1, "first on-policy share", first, "in [0, 1]")
    require(0 <= last <= 1, "last on-policy share", last, "in [0, 1]")
    return first + (last - first) * min(1.0, step / max(1, steps - 1))


def is_on_policy(step: int, share: float, seed: int) -> bool:
    """Draw if a step's batch is on-policy, with probability `share`, keyed by seed and step."""
    return bool(np.random.default_rng((seed, step)).random() < share)


# A loss that is no number stops a run, before the weights that it would spoil are saved.


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
class Recipe:
    """Hyperparameters of drafter training.

    Attributes:
        tokens: training tokens, repeats counted.
        loss: as for `losses.find_loss`.
        batch_tokens: per update, padding included.
        matrix_rate: peak learning rate of matrices (Muon).
        vector_rate: peak learning rate of norms, scales and slots (AdamW).
        warm_up: share of the updates.
        decay: weight of a depth relative to the one above.
        prompt_weight: loss weight of prompt tokens, which the target did not write.
        clip: gradient norm limit.
        feature_weight: of the loss on hidden states.
        precision: of training matmuls, "fp32" or "bf16".
        on_policy: share of batches that train on the network's own drafts.
    """

    tokens: int
    loss: str = "forward-kl"
    batch_tokens: int = 2048
    matrix_rate: float = 0.02
    vector_rate: float = 2e-3
    warm_up: float = 0.05
    decay: float = 0.8
    prompt_weight: float = 0.1
    clip: float = 1.0
    feature_weight: float = 1.0
    precision: str = "bf16"
    seed: int = 0
    on_policy: float = 0.0

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "tokens", self.tokens, "1 or more")
        require(self.batch_tokens >= 1, "batch tokens", self.batch_tokens, "1 or more")
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        require(self.matrix_rate > 0 < self.vector_rate, "learning rates", 0, "more than 0")
        require(0 <= self.on_policy <= 1, "on-policy share", self.on_policy, "in [0, 1]")
        find_loss(self.loss)


@dataclass(frozen=True, slots=True)
class Report:
    """Update of a run: step from 1, tokens so far, loss on the target's text before the update."""

    step: int
    tokens: int
    loss: float


class Trainer:
    """Resumable training run; iterate over `run`."""

    def __init__(
        self,
        network: Network,
        vocabulary: DraftVocabulary,
        embedding: LogitArray,
        head: LogitArray,
        texts: Sequence[Text],
        source: FeatureSource,
        recipe: Recipe,
        *,
        device: str = "cpu",
        place: Path | None = None,
        target_weights: Mapping[str, LogitArray] = MappingProxyType({}),
        start: Mapping[str, LogitArray] | None = None,
        own: OnPolicy | None = None,
    ) -> None:
        """Initialise weights, at random or from `start`, or resume the checkpoint at `place`.

        Args:
            embedding: float32 `[vocabulary, width]` of the target.
            head: float32 `[vocabulary, width]`, the target's LM head.
            start: initial float32 parameters; missing ones are random.
            own: scores on-policy drafts, if the recipe has any.

        Raises:
            InvalidOption: there are too few texts, the checkpoint has other settings, or network or
                loss cannot train on-policy.
            ModelError: the checkpoint is damaged.
        """
        self._texts, self.held_out = hold_out(texts)
        self.network = network
        self.recipe = recipe
        self._source = source
        self._device = torch.device(device)
        generator = torch.Generator().manual_seed(recipe.seed)
        rows = torch.from_numpy(np.ascontiguousarray(head[vocabulary.ids]))
        lent = _tensors(target_weights)
        self.module = DraftModule(network, torch.from_numpy(embedding), rows, generator, lent)
        self.module.to(self._device)
        every = np.arange(vocabulary.size)
        self._places = torch.from_numpy(vocabulary.labels(every)).to(self._device)
        self._loss = fused(find_loss(recipe.loss))
        if recipe.on_policy:
            assert own is not None
            check(network, find_loss(recipe.loss))
        self._own = own
        self._optimisers = optimisers(self.module, recipe.matrix_rate, recipe.vector_rate)
        size = sum(len(text.tokens) for text in self._texts)
        passes = recipe.tokens / size
        per_pass = len(order(self._texts, recipe.batch_tokens, recipe.seed))
        self.steps = max(2, round(passes * per_pass))
        self.step = 0
        self.tokens = 0
        self._place = place
        self._saved = False
        # The caller's JSON-serialisable values, saved in checkpoints.
        self.notes: dict[str, Any] = {}
        self._state = checkpoint.Run(
            self.module,
            [optimiser for optimiser, _ in self._optimisers],
            generator,
            np.random.default_rng(recipe.seed),
        )
        self._settings: dict[str, Any] = {
            **describe(network),
            **asdict(recipe),
            "vocabulary": len(vocabulary.ids),
            "texts": len(self._texts),
        }
        if not recipe.on_policy:
            del self._settings["on_policy"]  # as in checkpoints from before there was such a thing
        if start is not None:
            self._settings["start"] = digest(_tensors(start), "")
        if place is not None and place.exists():
            progress = checkpoint.load(place, self._state, self._settings)
            self.step, self.tokens = progress.step, int(progress.data["tokens"])
            self.notes = dict(progress.data["notes"])
            self._saved = True
        else:
            sample = [source.of(text) for text in self._texts[:32]]
            self.module.fit_scale(torch.from_numpy(np.concatenate(sample)).to(self._device))
            self.module.load(self.module.named() | _tensors(start or {}))

    def run(self) -> Iterator[Report]:
        """Train to the end, one update at a time; InvalidOption if the loss is not finite."""
        while self.step < self.steps:
            groups, first = self._pass()
            for texts in groups[first:]:
                if self.step >= self.steps:
                    break
                yield self._update(self._source.batch(texts), texts)

    def save(self) -> None:
        if self._place is not None:
            progress = checkpoint.Progress(self.step, {"tokens": self.tokens, "notes": self.notes})
            checkpoint.save(self._place, self._state, progress, self._settings)
            self._saved = True

    def judge(self) -> tuple[float, Hits]:
        """Return loss and greedy hits on the held-out texts."""
        losses, found = [], None
        with torch.no_grad():
            for texts in order(self.held_out, self.recipe.batch_tokens, 0):
                batch = self._source.batch(texts)
                drafts, loss = self._forward(batch)
                losses.append(float(loss))
                each = hits(argmax_tokens(self.network, drafts.logits), batch, self._places)
                found = each if found is None else found + each
        assert found is not None
        return float(np.mean(losses)), found

    def parameters(self) -> dict[str, LogitArray]:
        named = self.module.named().items()
        return {name: value.detach().float().cpu().numpy() for name, value in named}

    def _pass(self) -> tuple[list[list[Text]], int]:
        begin, number = 0, 0
        while True:
            groups = order(self._texts, self.recipe.batch_tokens, self.recipe.seed + number)
            if self.step < begin + len(groups):
                return groups, self.step - begin
            begin, number = begin + len(groups), number + 1

    def _update(self, batch: Batch, texts: Sequence[Text] = ()) -> Report:
        recipe = self.recipe
        warm = round(recipe.warm_up * self.steps)
        for optimiser, peak in self._optimisers:
            rate = cosine(self.step, peak=peak, steps=self.steps, warm=warm, floor=0.02 * peak)
            for group in optimiser.param_groups:
                group["lr"] = rate
        if not np.isfinite(batch.features).all():
            raise InvalidOption(
                f"the target gives hidden states that are no numbers at step {self.step}: its "
                "weights are damaged; fetch them again"
            )
        own = self._own if is_on_policy(self.step, recipe.on_policy, recipe.seed) else None
        progress, seed = self.step / self.steps, (recipe.seed, self.step)
        with torch.set_grad_enabled(own is None):
            reveal = self.network.reveal(batch, self._places, progress, seed)
            _, loss = self._forward(batch, reveal)
        value = float(loss.detach())  # over the target's text in any case, to be comparable
        if own is not None:
            loss = own.loss(
                self.module,
                texts,
                batch,
                self._loss,
                decay=recipe.decay,
                half=recipe.precision == "bf16",
                seed=(recipe.seed, self.step, 1),
            )
        for each in (value, float(loss.detach())):
            check_finite(each, self.step, self._place if self._saved else None)
        update(self.module, self._optimisers, loss, recipe.clip)
        self.step += 1
        self.tokens += batch.size
        return Report(self.step, self.tokens, value)

    def _forward(self, batch: Batch, reveal: Reveal | None = None) -> tuple[Drafts, Tensor]:
        recipe = self.recipe
        return forward(
            self.module,
            batch,
            self._places,
            self._loss,
            decay=recipe.decay,
            prompt_weight=recipe.prompt_weight,
            feature_weight=recipe.feature_weight,
            half=recipe.precision == "bf16",
            reveal=reveal,
        )


def _tensors(arrays: Mapping[str, LogitArray]) -> dict[str, Tensor]:
    # The tensors share memory with the arrays.
    return {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()}


# Large counts as people write them:

_UNITS = {"": 1, "k": 1000, "m": 1_000_000}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([km]?)", re.IGNORECASE)


def read_count(text: str, option: str) -> int:
    """Parse a count of 1 or more: 60000, 60k or 1.5M; else InvalidOption naming `option`."""
    found = _FORM.fullmatch(text.strip())
    value = Decimal(found[1]) * _UNITS[found[2].lower()] if found else Decimal(0)
    if value < 1 or value != int(value):
        raise InvalidOption(
            f"{option} must be whole numbers above 0, such as 60000, 60k or 1.5M, not {text!r}"
        )
    return int(value)


def short(count: int) -> str:
    """Format a count with three digits: 950, 60k, 7.08M."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        value = count / size
        if value >= 0.9995:
            places = 2 if value < 10 else 1 if value < 100 else 0
            number = f"{value:.{places}f}"
            return f"{number.rstrip('0').rstrip('.') if places else number}{unit}"
    return str(count)

"""Training of mask rows over a frozen model, after TiDAR (arXiv:2511.08923) and FlexDraft
(arXiv:2605.20022): groups of masks behind random places of a text learn what the model says there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.networks.mask_rows import PARTS
from paceline.runtimes.torch.model import TorchModel
from paceline.training.batches import hold_out
from paceline.training.data import Text
from paceline.training.losses import find_loss
from paceline.training.objective import Hits
from paceline.training.run import TrainingRun
from paceline.zoo.ppd.training import guesses, place


@dataclass(frozen=True, slots=True)
class MaskRecipe:
    """Hyperparameters of mask rows.

    Attributes:
        rank: of the adapter.
        width: masks of a group.
        loss: as for `losses.find_loss`.
        batch_tokens: text tokens of an update, padding included.
        groups: per text, at new places each time.
        rate: peak learning rate of AdamW for the adapter.
        mask_rate: the same for the mask embedding.
        warm_up: share of the updates.
        decay: weight of a place relative to the one before.
        clip: gradient norm limit.
        precision: of matmuls, "fp32" or "bf16".
    """

    steps: int = 2000
    rank: int = 32
    width: int = 3
    loss: str = "forward-kl"
    batch_tokens: int = 1024
    groups: int = 32
    rate: float = 2e-3
    mask_rate: float = 1e-2
    warm_up: float = 0.05
    decay: float = 0.8
    clip: float = 1.0
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "rank", "width", "batch_tokens", "groups"):
            value = getattr(self, name)
            require(value >= 1, name.replace("_", " "), value, "1 or more")
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        require(self.rate > 0 < self.mask_rate, "rate", self.rate, "more than 0")
        find_loss(self.loss)


class MaskQuality(NamedTuple):
    """Loss, and greedy hits of groups, on the held-out texts."""

    loss: float
    hits: Hits


class Adapter(nn.Module):
    """Mask embedding, and low-rank matrices by canonical name; `up` is 0 at the start."""

    def __init__(self, network: TorchModel, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        embed = network.tensor("embed")
        self.embedding = nn.Parameter(embed.float().mean(0))
        self.names = [f"layers.{i}.{part}" for i in range(network.config.layers) for part in PARTS]
        self._place = {name: at for at, name in enumerate(self.names)}
        shapes = [network.tensor(name).shape for name in self.names]
        self.down, self.up = nn.ParameterList(), nn.ParameterList()
        for outputs, inputs in shapes:
            drawn = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            self.down.append(nn.Parameter(drawn.to(embed.device)))
            self.up.append(nn.Parameter(torch.zeros(outputs, rank, device=embed.device)))

    def of(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return `down` and `up` of a matrix, None if it is not adapted."""
        at = self._place.get(name)
        return None if at is None else (self.down[at], self.up[at])

    def arrays(self) -> tuple[LogitArray, dict[str, LogitArray], dict[str, LogitArray]]:
        """Return embedding, `down` and `up` as float32."""
        halves = (
            {name: _array(each) for name, each in zip(self.names, parts, strict=True)}
            for parts in (self.down, self.up)
        )
        down, up = halves
        return _array(self.embedding), down, up


def _array(tensor: Tensor) -> LogitArray:
    array: LogitArray = tensor.detach().float().cpu().numpy()
    return array


class Adapted(TorchModel):
    """A model whose rows all go through the adapter too; tensors are the model's own."""

    def __init__(self, network: TorchModel, adapter: Adapter) -> None:
        self.config = network.config
        self._network, self._adapter = network, adapter

    def tensor(self, name: str) -> Tensor:
        return self._network.tensor(name)

    def bias(self, name: str) -> Tensor | None:
        return self._network.bias(name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        out, pair = super().linear(x, name), self._adapter.of(name)
        if pair is None:
            return out
        return out + functional.linear(functional.linear(x, pair[0]), pair[1])


class MaskTrainer(TrainingRun[MaskQuality]):
    """Resumable training run of mask rows.

    Raises:
        InvalidOption: there are too few texts, or the checkpoint has other settings.
        ModelError: the checkpoint is damaged.
    """

    def __init__(
        self,
        network: TorchModel,
        texts: Sequence[Text],
        recipe: MaskRecipe,
        *,
        checkpoint_at: Path | None = None,
    ) -> None:
        fitting = [t for t in texts if len(t.tokens) >= max(t.prompt_length, 2) + recipe.width]
        trained_on, held_out = hold_out(fitting)
        self.recipe, self.warm_up, self.clip = recipe, recipe.warm_up, recipe.clip
        self._network, self._loss = network, find_loss(recipe.loss)
        generator = torch.Generator().manual_seed(recipe.seed)
        self.adapter = Adapter(network, recipe.rank, generator)
        self._adapted = Adapted(network, self.adapter)
        pairs = [*self.adapter.down, *self.adapter.up]
        rated = [
            (torch.optim.AdamW(part, lr=rate, betas=(0.9, 0.95), weight_decay=0.0), rate)
            for part, rate in ((pairs, recipe.rate), ([self.adapter.embedding], recipe.mask_rate))
        ]
        super().__init__(
            self.adapter,
            rated,
            generator,
            trained_on,
            held_out,
            steps=recipe.steps,
            batch_tokens=recipe.batch_tokens,
            seed=recipe.seed,
            settings={**asdict(recipe), "texts": len(trained_on)},
            checkpoint_at=checkpoint_at,
        )

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, self.step))
        loss, _ = self._forward(texts, draws)
        yield loss, float(loss.detach())

    def judge(self) -> MaskQuality:
        losses, hits = [], Hits(0, np.zeros(self.recipe.width, dtype=np.int64))
        draws = np.random.default_rng(0)
        for text in self.held_out:
            with torch.no_grad():
                loss, found = self._forward([text], draws)
            losses.append(float(loss))
            hits += found
        return MaskQuality(float(np.mean(losses)), hits)

    def _forward(
        self, texts: Sequence[Text], draws: np.random.Generator
    ) -> tuple[Tensor, Hits]:
        width, rows = self.recipe.width, self.adapter.embedding
        batch = [place(text, self.recipe.groups, width, draws) for text in texts]
        half = self.recipe.precision == "bf16"
        with torch.autocast(rows.device.type, dtype=torch.bfloat16, enabled=half):
            student, teacher, labels = guesses(
                self._network, rows.expand(width, -1), batch, adapted=self._adapted, causal=False
            )
        weights = self.recipe.decay ** torch.arange(width, dtype=torch.float32)
        loss = self._loss(
            student.float(),
            teacher.float(),
            torch.from_numpy(labels).to(rows.device),
            weights.repeat(len(labels) // width).to(rows.device),
        )
        right = student.detach().argmax(1).cpu().numpy() == labels
        met = np.cumprod(right.reshape(-1, width), axis=1)
        return loss, Hits(len(met), met.sum(axis=0))

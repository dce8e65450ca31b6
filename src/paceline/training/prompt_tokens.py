"""Trains prompt tokens for parallel prompt decoding; resumes exactly where it stopped.

The target is frozen, gradients go through it, and a few embeddings are all that is trained (Chen et
al. 2024, arXiv:2405.18628, section 3: divergence from the target's own law at the true offset).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import InvalidOption
from paceline.models.llama import Llama
from paceline.shapes.measured import RankCounts
from paceline.training import checkpoint
from paceline.training.batches import order
from paceline.training.data.writing import Text
from paceline.training.finite import check_finite
from paceline.training.fused_losses import fused
from paceline.training.losses import find_loss
from paceline.training.objective import Hits
from paceline.training.prompt_tokens_forward import Chains, guesses, place
from paceline.training.prompt_tokens_recipe import PromptRecipe
from paceline.training.schedule import cosine
from paceline.training.trainer import Report
from paceline.types import IntArray, LogitArray

RANKS = 10
"""Guesses per prompt token whose accuracy is measured."""

_HELD_OUT_EVERY = 41
_HELD_OUT_MOST = 64


class Judged(NamedTuple):
    """How prompt tokens do on texts that are held out.

    Attributes:
        loss: mean over the texts' chains.
        hits: of their likeliest guesses.
        ranks: of all guesses, each counted where those before it were among the ranks.
    """

    loss: float
    hits: Hits
    ranks: RankCounts


class PromptTrainer:
    """One run. Iterate over `run` until it ends, or stop and go on another day."""

    def __init__(
        self,
        network: Llama,
        texts: Sequence[Text],
        recipe: PromptRecipe,
        *,
        checkpoint_at: Path | None = None,
    ) -> None:
        """Draw the first embeddings, or take up a checkpoint.

        Args:
            network: the target, frozen.
            texts: of the target; some are held out.
            recipe: how to train.
            checkpoint_at: file of the checkpoint; None keeps none.

        Raises:
            InvalidOption: there are too few texts, or the checkpoint is of other settings.
            ModelError: the checkpoint is damaged.
        """
        fitting = [t for t in texts if len(t.tokens) >= max(t.prompt_length, 2) + recipe.depth]
        self.held_out = fitting[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY][:_HELD_OUT_MOST]
        apart = {text.index for text in self.held_out}
        self._texts = [text for text in fitting if text.index not in apart]
        if not self.held_out:
            raise InvalidOption(
                f"{len(fitting)} texts whose answers have {recipe.depth} tokens are too few to "
                f"train on: write {_HELD_OUT_EVERY} or more with `paceline train data`"
            )
        self.recipe = recipe
        self.steps = recipe.steps
        self.step = 0
        self.tokens = 0
        self.notes: dict[str, Any] = {}
        """Plain values of the caller's that checkpoints keep."""
        self._network = network
        self._loss = fused(find_loss(recipe.loss))
        generator = torch.Generator().manual_seed(recipe.seed)
        self._module = _Embeddings(network.embed_tokens.weight, recipe.depth, generator)
        rows = self._module.rows
        self._optimiser = torch.optim.AdamW([rows], lr=recipe.rate, weight_decay=0.0)
        self._state = checkpoint.Run(
            self._module, [self._optimiser], generator, np.random.default_rng(recipe.seed)
        )
        self._settings = {**asdict(recipe), "width": rows.shape[1], "texts": len(self._texts)}
        self._place = checkpoint_at
        self._saved = checkpoint_at is not None and checkpoint_at.exists()
        if checkpoint_at is not None and self._saved:
            progress = checkpoint.load(checkpoint_at, self._state, self._settings)
            self.step, self.tokens = progress.step, int(progress.data["tokens"])
            self.notes = dict(progress.data["notes"])

    def run(self) -> Iterator[Report]:
        """Train to the end, one update at a time.

        Raises:
            InvalidOption: the loss is not finite.
        """
        groups: list[list[Text]] = []
        begin = number = 0
        while self.step < self.steps:
            while self.step >= begin + len(groups):
                begin += len(groups)
                groups = order(self._texts, self.recipe.batch_tokens, self.recipe.seed + number)
                number += 1
            yield self._update(groups[self.step - begin])

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self._place is not None:
            data = {"tokens": self.tokens, "notes": self.notes}
            progress = checkpoint.Progress(self.step, data)
            checkpoint.save(self._place, self._state, progress, self._settings)
            self._saved = True

    def judge(self) -> Judged:
        """Loss and accuracies on the texts that are held out."""
        losses, found = [], None
        counts = RankCounts("ppd", self.recipe.depth, RANKS)
        draws = np.random.default_rng(0)
        for text in self.held_out:
            with torch.no_grad():
                student, loss, labels = self._forward([self._chains(text, draws)])
            losses.append(float(loss))
            ranks = _ranks(student, labels)
            for chain in ranks.tolist():
                for offset, rank in enumerate(chain):
                    counts.add(offset, RANKS, rank if rank < RANKS else None)
                    if rank >= RANKS:
                        break
            each = _hits(ranks)
            found = each if found is None else found + each
        assert found is not None
        return Judged(float(np.mean(losses)), found, counts)

    def embeddings(self) -> LogitArray:
        """float32 `[depth, width]`, the prompt tokens now."""
        rows: LogitArray = self._module.rows.detach().float().cpu().numpy()
        return rows

    def _update(self, texts: Sequence[Text]) -> Report:
        recipe = self.recipe
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((recipe.seed, self.step))
        warm = round(recipe.warm_up * self.steps) if self.steps > 1 else 0
        rate = cosine(
            self.step, peak=recipe.rate, steps=self.steps, warm=warm, floor=0.02 * recipe.rate
        )
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad(set_to_none=True)
        _, loss, _ = self._forward([self._chains(text, draws) for text in texts])
        value = float(loss.detach())
        check_finite(value, self.step, self._place if self._saved else None)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), recipe.clip)
        self._optimiser.step()
        self.step += 1
        self.tokens += sum(len(text.tokens) for text in texts)
        return Report(self.step, self.tokens, value)

    def _chains(self, text: Text, draws: np.random.Generator) -> Chains:
        return place(text, self.recipe.chains, self.recipe.depth, draws)

    def _forward(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        """Guesses `[chains, depth, vocabulary]`, the loss, and labels `[chains, depth]`."""
        depth, rows = self.recipe.depth, self._module.rows
        half = self.recipe.precision == "bf16"
        with torch.autocast(rows.device.type, dtype=torch.bfloat16, enabled=half):
            student, teacher, labels = guesses(self._network, rows, batch)
        weights = self.recipe.decay ** torch.arange(depth, dtype=torch.float32)
        loss = self._loss(
            student.float(),
            teacher.float(),
            torch.from_numpy(labels).to(rows.device),
            weights.repeat(len(labels) // depth).to(rows.device),
        )
        guessed = student.detach().reshape(-1, depth, student.shape[1])
        return guessed, loss, labels.reshape(-1, depth)


class _Embeddings(nn.Module):
    """The prompt tokens, which start like tokens of the vocabulary: with its mean and spread."""

    def __init__(self, table: Tensor, depth: int, generator: torch.Generator) -> None:
        super().__init__()
        noise = torch.randn(depth, table.shape[1], generator=generator).to(table.device)
        self.rows = nn.Parameter(table.float().mean(0) + table.float().std() * noise)


def _ranks(guessed: Tensor, labels: IntArray) -> IntArray:
    """int64 `[chains, depth]`, how many tokens each guess holds for likelier than the label."""
    own = guessed.gather(2, torch.from_numpy(labels).to(guessed.device)[..., None])
    ranks: IntArray = (guessed > own).sum(2).cpu().numpy()
    return ranks


def _hits(ranks: IntArray) -> Hits:
    return Hits(len(ranks), np.cumprod(ranks == 0, axis=1).sum(axis=0))

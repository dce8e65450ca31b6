"""Training of prompt tokens for parallel prompt decoding (PPD, arXiv:2405.18628, section 3).

The target is frozen; only a few embeddings are trained, by distillation at the true offset. Chains
of prompt tokens see the text before them and themselves, so keys and values of the text are
computed once, without gradients, for all chains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training.batches import order
from paceline.lab.training.card import Judged, TaughtTask
from paceline.lab.training.chains import Chains, Read, place
from paceline.lab.training.data import Text
from paceline.lab.training.losses import find_loss
from paceline.lab.training.objective import Hits
from paceline.lab.training.optimisers import Rated, adam
from paceline.methods.ppd.prompt_tokens import NETWORK, PromptTokens, save_prompt_tokens
from paceline.methods.ppd.recipe import PromptRecipe
from paceline.runtimes.torch.model import TorchModel
from paceline.trees.shapes import RankCounts


def guesses(
    network: TorchModel,
    embeddings: Tensor,
    batch: Sequence[Chains],
    *,
    adapted: TorchModel | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor, IntArray]:
    """Run prompt tokens; return their logits, the target's logits (no gradient) and labels.

    `[rows, vocabulary]` twice and int64 `[rows]`; rows go by text, chain and offset.
    `embeddings` is `[depth, width]`. `adapted` runs the chains, if that is not `network`.
    """
    student_of, depth = adapted or network, len(embeddings)
    with torch.no_grad():
        read = Read(network, batch)
        teacher = network.logits(read.hidden[read.rows(depth)])
    student = student_of.logits(read.chains(student_of, embeddings, causal))
    return student, teacher, np.concatenate([each.labels(depth).ravel() for each in batch])


# Top-k ranks per prompt token whose accuracy is measured.
RANKS = 10

_HELD_OUT_EVERY = 41
_HELD_OUT_MOST = 64


class PromptTask(TaughtTask[PromptRecipe]):
    """Prompt tokens, beside a frozen model.

    Attributes:
        rows: the embeddings, `[depth, width]`.
        ranks: accuracy of each rank, given that all labels before were among the ranks; counted
            by `judge`.

    Raises:
        InvalidOption: there are too few texts.
    """

    name = NETWORK
    taught = "whose text they were trained on"
    conditions = "chains of greedy tokens against texts as they stand, a chain behind every node"

    def __init__(self, network: TorchModel, texts: Sequence[Text], recipe: PromptRecipe) -> None:
        fitting = [t for t in texts if len(t.tokens) >= max(t.prompt_length, 2) + recipe.depth]
        held_out = fitting[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY][:_HELD_OUT_MOST]
        apart = {text.index for text in held_out}
        if not held_out:
            raise InvalidOption(
                f"{len(fitting)} texts whose answers have {recipe.depth} tokens are too few to "
                f"train on: write {_HELD_OUT_EVERY} or more with `paceline train data`"
            )
        super().__init__(recipe, [each for each in fitting if each.index not in apart], held_out)
        self.steps, self.ranks = recipe.steps, RankCounts(NETWORK, recipe.depth, RANKS)
        self._network, self._loss = network, find_loss(recipe.loss)
        self._make()

    def _make(self) -> None:
        # What is trained; begins with the mean and spread of the vocabulary's embeddings.
        table = self._network.tensor("embed")
        noise = torch.randn(self.recipe.depth, table.shape[1], generator=self.generator)
        rows = table.float().mean(0) + table.float().std() * noise.to(table.device)
        self.rows = nn.Parameter(rows)
        self.module = nn.ParameterDict({"rows": self.rows})

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "width": self._network.config.hidden_size}

    def optimisers(self) -> list[Rated]:
        return [adam(self.module.parameters(), self.recipe.rate, betas=(0.9, 0.999))]

    def passing(self, number: int) -> list[list[Text]]:
        return order(self.texts, self.recipe.batch_tokens, self.recipe.seed + number)

    def _guesses(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        return guesses(self._network, self.rows, batch)

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, step))
        _, loss, _ = self._forward([self._chains(text, draws) for text in texts])
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> Judged:
        losses: list[float] = []
        found = Hits(0, np.zeros(self.recipe.depth, dtype=np.int64))
        self.ranks = RankCounts(NETWORK, self.recipe.depth, RANKS)
        draws = np.random.default_rng(0)
        for text in self.held_out:
            student, loss, labels = self._forward([self._chains(text, draws)])
            losses.append(float(loss))
            ranks = _ranks(student, labels)
            for chain in ranks.tolist():
                for offset, rank in enumerate(chain):
                    self.ranks.add(offset, RANKS, rank if rank < RANKS else None)
                    if rank >= RANKS:
                        break
            found += Hits(len(ranks), np.cumprod(ranks == 0, axis=1).sum(axis=0))
        return Judged(float(np.mean(losses)), found)

    def figures(self) -> dict[str, Any]:
        return {"accuracies": self.ranks.accuracies.tolist()}

    def save(self, out: Path, metadata: dict[str, str]) -> Path:
        save_prompt_tokens(out, PromptTokens(self.embeddings(), self.ranks.accuracies, metadata))
        return out

    def embeddings(self) -> LogitArray:
        """Return float32 `[depth, width]`."""
        rows: LogitArray = self.rows.detach().float().cpu().numpy()
        return rows

    def _chains(self, text: Text, draws: np.random.Generator) -> Chains:
        return place(text, self.recipe.chains, self.recipe.depth, draws)

    def _forward(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        # Logits `[chains, depth, vocabulary]`, the loss, and labels `[chains, depth]`.
        depth, device = self.recipe.depth, self._network.tensor("embed").device
        half = self.recipe.training_precision == "bf16"
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            student, teacher, labels = self._guesses(batch)
        weights = self.recipe.decay ** torch.arange(depth, dtype=torch.float32)
        loss = self._loss(
            student.float(),
            teacher.float(),
            torch.from_numpy(labels).to(device),
            weights.repeat(len(labels) // depth).to(device),
        )
        guessed = student.detach().reshape(-1, depth, student.shape[1])
        return guessed, loss, labels.reshape(-1, depth)


def _ranks(guessed: Tensor, labels: IntArray) -> IntArray:
    # int64 `[chains, depth]`, the number of tokens with a larger logit than the label's.
    own = guessed.gather(2, torch.from_numpy(labels).to(guessed.device)[..., None])
    ranks: IntArray = (guessed > own).sum(2).cpu().numpy()
    return ranks

"""Training of prompt tokens for parallel prompt decoding (PPD, arXiv:2405.18628, section 3).

The target is frozen; only a few embeddings are trained, by distillation at the true offset. Chains
of prompt tokens see the text before them and themselves, so keys and values of the text are
computed once, without gradients, for all chains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.options import check_counts, require
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.runtimes.torch.model import TorchModel
from paceline.training.chains import Chains, Read, place
from paceline.training.data import Text
from paceline.training.losses import find_loss
from paceline.training.objective import Hits
from paceline.training.run import Rated, TrainingRun
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


@dataclass(frozen=True, slots=True)
class PromptRecipe:
    """Hyperparameters of prompt tokens.

    Attributes:
        depth: prompt tokens, one per offset.
        loss: as for `losses.find_loss`.
        batch_tokens: text tokens of an update, padding included.
        chains: per text, at new places each time.
        rate: peak learning rate of AdamW.
        warm_up: share of the updates.
        decay: weight of an offset relative to the one before.
        clip: gradient norm limit.
        precision: of matmuls, "fp32" or "bf16".
    """

    steps: int = 300
    depth: int = 3
    loss: str = "forward-kl"
    batch_tokens: int = 512
    chains: int = 64
    rate: float = 1e-2
    warm_up: float = 0.05
    decay: float = 0.8
    clip: float = 1.0
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self)
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        find_loss(self.loss)


# Top-k ranks per prompt token whose accuracy is measured.
RANKS = 10

_HELD_OUT_EVERY = 41
_HELD_OUT_MOST = 64


class PromptQuality(NamedTuple):
    """Held-out quality of prompt tokens.

    Attributes:
        hits: of the argmax.
        ranks: of each rank, given that all labels before were among the ranks.
    """

    loss: float
    hits: Hits
    ranks: RankCounts


class PromptTrainer(TrainingRun[PromptQuality]):
    """Resumable training run of prompt tokens.

    Raises:
        InvalidOption: there are too few texts, or the checkpoint has other settings.
        ModelError: the checkpoint is damaged.
    """

    def __init__(
        self,
        network: TorchModel,
        texts: Sequence[Text],
        recipe: PromptRecipe,
        *,
        checkpoint_at: Path | None = None,
    ) -> None:
        fitting = [t for t in texts if len(t.tokens) >= max(t.prompt_length, 2) + recipe.depth]
        held_out = fitting[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY][:_HELD_OUT_MOST]
        apart = {text.index for text in held_out}
        trained_on = [text for text in fitting if text.index not in apart]
        if not held_out:
            raise InvalidOption(
                f"{len(fitting)} texts whose answers have {recipe.depth} tokens are too few to "
                f"train on: write {_HELD_OUT_EVERY} or more with `paceline train data`"
            )
        self.recipe, self.warm_up, self.clip = recipe, recipe.warm_up, recipe.clip
        self._network = network
        self._loss = find_loss(recipe.loss)
        generator = torch.Generator().manual_seed(recipe.seed)
        super().__init__(
            *self._made(generator),
            generator,
            trained_on,
            held_out,
            steps=recipe.steps,
            batch_tokens=recipe.batch_tokens,
            seed=recipe.seed,
            settings={
                **asdict(recipe),
                "width": network.config.hidden_size,
                "texts": len(trained_on),
            },
            checkpoint_at=checkpoint_at,
        )

    def _made(self, generator: torch.Generator) -> tuple[nn.Module, list[Rated]]:
        # What is trained, and how fast.
        rate = self.recipe.rate
        self._module = _Embeddings(self._network.tensor("embed"), self.recipe.depth, generator)
        return self._module, [
            (torch.optim.AdamW([self._module.rows], lr=rate, weight_decay=0.0), rate)
        ]

    def _guesses(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        return guesses(self._network, self._module.rows, batch)

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, self.step))
        _, loss, _ = self._forward([self._chains(text, draws) for text in texts])
        yield loss, float(loss.detach())

    def judge(self) -> PromptQuality:
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
        return PromptQuality(float(np.mean(losses)), found, counts)

    def embeddings(self) -> LogitArray:
        """Return float32 `[depth, width]`."""
        rows: LogitArray = self._module.rows.detach().float().cpu().numpy()
        return rows

    def _chains(self, text: Text, draws: np.random.Generator) -> Chains:
        return place(text, self.recipe.chains, self.recipe.depth, draws)

    def _forward(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        # Logits `[chains, depth, vocabulary]`, the loss, and labels `[chains, depth]`.
        depth, device = self.recipe.depth, self._network.tensor("embed").device
        half = self.recipe.precision == "bf16"
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


class _Embeddings(nn.Module):
    # Initialised with the mean and spread of the vocabulary's embeddings.

    def __init__(self, table: Tensor, depth: int, generator: torch.Generator) -> None:
        super().__init__()
        noise = torch.randn(depth, table.shape[1], generator=generator).to(table.device)
        self.rows = nn.Parameter(table.float().mean(0) + table.float().std() * noise)


def _ranks(guessed: Tensor, labels: IntArray) -> IntArray:
    # int64 `[chains, depth]`, the number of tokens with a larger logit than the label's.
    own = guessed.gather(2, torch.from_numpy(labels).to(guessed.device)[..., None])
    ranks: IntArray = (guessed > own).sum(2).cpu().numpy()
    return ranks


def _hits(ranks: IntArray) -> Hits:
    return Hits(len(ranks), np.cumprod(ranks == 0, axis=1).sum(axis=0))

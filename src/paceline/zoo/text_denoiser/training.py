"""A small denoiser over a target's tokens learns how its answers go on, after DEER
(arXiv:2512.15176): at first all masks behind a random cut, then those near the cut above all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.export.layout import Layout, tokenizer_files
from paceline.models.source import ModelSource
from paceline.training.batches import hold_out
from paceline.training.data import Text
from paceline.training.denoisers.files import config_json, tensors
from paceline.training.denoisers.module import DenoiserModule, DenoiserRecipe
from paceline.training.denoisers.rows import Rows, pack
from paceline.training.objective import Hits
from paceline.training.run import TrainingRun


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """What a text denoiser is trained on.

    Attributes:
        span: masks behind a cut.
        recent: tokens before the cut that are read, at most.
        cuts: of a text, at new places each time.
        decay: weight of a mask relative to the one before, in the second half of the updates.
    """

    span: int = 8
    recent: int = 64
    cuts: int = 8
    decay: float = 0.7
    batch_tokens: int = 1024

    def __post_init__(self) -> None:
        for name in ("span", "recent", "cuts", "batch_tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(0 < self.decay <= 1, "decay", self.decay, "above 0, at most 1")


class TextDenoising(TrainingRun[tuple[float, Hits]]):
    """Resumable training run; `judge` returns the loss and greedy hits on held-out texts.

    Embeddings start as the principal components of the target's. The mask is the first token that
    no text holds. Errors as `TrainingRun`.
    """

    def __init__(
        self,
        embedding: LogitArray,
        ends: Sequence[int],
        texts: Sequence[Text],
        shape: DenoiserRecipe,
        recipe: TextRecipe,
        *,
        checkpoint_at: Path | None = None,
    ) -> None:
        long = [t for t in texts if len(t.tokens) >= max(t.prompt_length, 1) + recipe.span]
        trained_on, held_out = hold_out(long)
        self.shape, self.recipe = shape, recipe
        self.warm_up, self.clip = shape.warm_up, shape.clip
        known = np.unique(np.concatenate([*(t.tokens for t in texts), np.asarray(ends)]))
        self.mask = int(np.setdiff1d(np.arange(len(embedding)), known)[0])
        generator = torch.Generator().manual_seed(shape.seed)
        self.module = DenoiserModule(shape, len(embedding), generator)
        with torch.no_grad():
            self.module.embedding.copy_(_principal(embedding, shape.width))
        super().__init__(
            self.module,
            self.module.rated(shape.matrix_rate, shape.vector_rate),
            generator,
            trained_on,
            held_out,
            steps=shape.steps,
            batch_tokens=recipe.batch_tokens,
            seed=shape.seed,
            settings={**asdict(shape), **asdict(recipe), "texts": len(trained_on)},
            checkpoint_at=checkpoint_at,
        )

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        draws = np.random.default_rng((self.shape.seed, self.step))
        loss, _ = self._forward(texts, draws, self.recipe.decay if self.late else 1.0)
        yield loss, float(loss.detach())

    @property
    def late(self) -> bool:
        """Whether the masks near the cut count above all."""
        return 2 * self.step >= self.steps

    @torch.no_grad()
    def judge(self) -> tuple[float, Hits]:
        draws, losses = np.random.default_rng(0), []
        hits = Hits(0, np.zeros(self.recipe.span, dtype=np.int64))
        for text in self.held_out:
            loss, found = self._forward([text], draws, 1.0)
            losses.append(float(loss))
            hits += found
        return float(np.mean(losses)), hits

    def _forward(
        self, texts: Sequence[Text], draws: np.random.Generator, decay: float
    ) -> tuple[Tensor, Hits]:
        span = self.recipe.span
        rows = [each for text in texts for each in self._cuts(text, draws)]
        packed = pack(rows, span + self.recipe.recent)
        wanted = packed.weights > 0
        logits = self.module(packed.tokens, packed.positions, packed.sees, wanted)
        labels = packed.labels[wanted]
        each = functional.cross_entropy(logits, labels, reduction="none").view(-1, span)
        weights = decay ** torch.arange(span, dtype=torch.float32)
        right = (logits.argmax(1) == labels).view(-1, span).numpy()
        met = np.cumprod(right, axis=1)
        return (each @ weights).mean() / weights.sum(), Hits(len(met), met.sum(axis=0))

    def _cuts(self, text: Text, draws: np.random.Generator) -> Iterator[Rows]:
        span, tokens = self.recipe.span, text.tokens
        places = np.arange(max(text.prompt_length, 1), len(tokens) - span + 1)
        for cut in draws.permutation(places)[: self.recipe.cuts]:
            before = tokens[max(0, cut - self.recipe.recent) : cut]
            count = len(before) + span
            shown = np.concatenate([before, np.full(span, self.mask)])
            labels = np.concatenate([before, tokens[cut : cut + span]])
            sees = np.ones((count, count), dtype=np.bool_)
            yield Rows(shown, np.arange(count), sees, labels, (shown == self.mask).astype(float))

    def layout(self, source: ModelSource, metadata: dict[str, str]) -> Layout:
        """Return the Hugging Face directory of the denoiser, with the target's tokenizer."""
        tokenizer, config = source.tokenizer(), config_json(self.shape)
        config["denoiser"] = {"mask_token_id": self.mask, "attention": "full"}
        config |= {
            "vocab_size": source.config.vocab_size,
            "eos_token_id": list(tokenizer.eos_token_ids),
            "pad_token_id": None,
            "max_position_embeddings": source.config.max_context,
        }
        halves = {name: x.half().numpy() for name, x in tensors(self.module).items()}
        return Layout("deer", self.recipe.span, config, halves, metadata, tokenizer_files(tokenizer))


def _principal(embedding: LogitArray, width: int) -> Tensor:
    # float32 `[vocabulary, width]` with entries as small as those of drawn ones.
    table = torch.from_numpy(embedding)
    _, axes = torch.linalg.eigh(table.T @ table)
    found = table @ axes[:, -width:]
    return found * (0.02 / found.std())

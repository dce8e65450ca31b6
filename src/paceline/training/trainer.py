"""Training of drafter networks: recipe and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.options import check_counts, require
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.networks.base import Network, describe
from paceline.training import checkpoint
from paceline.training.batches import Batch, FeatureSource, hold_out, order
from paceline.training.data import DraftVocabulary, Text
from paceline.training.losses import find_loss
from paceline.training.module import DraftModule, Drafts, Reveal
from paceline.training.objective import Hits, argmax_tokens, forward, hits
from paceline.training.on_policy import OnPolicy, check
from paceline.training.run import TrainingRun, optimisers


def is_on_policy(step: int, share: float, seed: int) -> bool:
    """Draw if a step's batch is on-policy, with probability `share`, keyed by seed and step."""
    return bool(np.random.default_rng((seed, step)).random() < share)


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
        check_counts(self)
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        require(0 <= self.on_policy <= 1, "on-policy share", self.on_policy, "in [0, 1]")
        find_loss(self.loss)


class Trainer(TrainingRun[tuple[float, Hits]]):
    """Resumable training run of a drafter network.

    `judge` returns loss and greedy hits on the held-out texts.
    """

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
        checkpoint_at: Path | None = None,
        target_weights: Mapping[str, LogitArray] = MappingProxyType({}),
        start: Mapping[str, LogitArray] | None = None,
        self_drafts: OnPolicy | None = None,
    ) -> None:
        """Initialise weights, at random or from `start`, or resume the checkpoint.

        Args:
            embedding: float32 `[vocabulary, width]` of the target.
            head: float32 `[vocabulary, width]`, the target's LM head.
            start: initial float32 parameters; missing ones are random.
            self_drafts: scores on-policy drafts, if the recipe has any.

        Raises:
            InvalidOption: there are too few texts, the checkpoint has other settings, or network or
                loss cannot train on-policy.
            ModelError: the checkpoint is damaged.
        """
        trained_on, held_out = hold_out(texts)
        self.network, self.recipe = network, recipe
        self.warm_up, self.clip = recipe.warm_up, recipe.clip
        self._source, self._self_drafts = source, self_drafts
        generator = torch.Generator().manual_seed(recipe.seed)
        rows = torch.from_numpy(np.ascontiguousarray(head[vocabulary.ids]))
        lent = _tensors(target_weights)
        self.module = DraftModule(network, torch.from_numpy(embedding), rows, generator, lent)
        self.module.to(device)
        every = np.arange(vocabulary.size)
        self._places = torch.from_numpy(vocabulary.labels(every)).to(device)
        self._loss = find_loss(recipe.loss)
        settings: dict[str, Any] = {
            **describe(network),
            **asdict(recipe),
            "vocabulary": len(vocabulary.ids),
            "texts": len(trained_on),
        }
        if recipe.on_policy:
            assert self_drafts is not None
            check(network, self._loss)
        else:
            del settings["on_policy"]  # as in checkpoints from before there was such a thing
        if start is not None:
            settings["start"] = checkpoint.digest(_tensors(start), "")
        passes = recipe.tokens / sum(len(text.tokens) for text in trained_on)
        per_pass = len(order(trained_on, recipe.batch_tokens, recipe.seed))
        super().__init__(
            self.module,
            optimisers(self.module, recipe.matrix_rate, recipe.vector_rate),
            generator,
            trained_on,
            held_out,
            steps=max(2, round(passes * per_pass)),
            batch_tokens=recipe.batch_tokens,
            seed=recipe.seed,
            settings=settings,
            checkpoint_at=checkpoint_at,
        )
        if not self.resumed:
            sample = [source.of(text) for text in trained_on[:32]]
            self.module.fit_scale(torch.from_numpy(np.concatenate(sample)).to(device))
            self.module.load(self.module.named() | _tensors(start or {}))

    def judge(self) -> tuple[float, Hits]:
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

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        recipe, batch = self.recipe, self._source.batch(texts)
        if not np.isfinite(batch.features).all():
            raise InvalidOption(
                f"the target gives hidden states that are no numbers at step {self.step}: its "
                "weights are damaged; fetch them again"
            )
        on_policy = is_on_policy(self.step, recipe.on_policy, recipe.seed)
        progress, seed = self.step / self.steps, (recipe.seed, self.step)
        with torch.set_grad_enabled(not on_policy):
            reveal = self.network.reveal(batch, self._places, progress, seed)
            _, loss = self._forward(batch, reveal)
        value = float(loss.detach())  # over the target's text in any case, to be comparable
        if on_policy and self._self_drafts is not None:
            loss = self._self_drafts.loss(
                self.module,
                texts,
                batch,
                self._loss,
                decay=recipe.decay,
                half=recipe.precision == "bf16",
                seed=(*seed, 1),
            )
        yield loss, value

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

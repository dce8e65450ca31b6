"""Training of drafter networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training import checkpoint
from paceline.lab.training.batches import MORE, Batch, FeatureSource, hold_out, order
from paceline.lab.training.card import Judged, TaughtTask
from paceline.lab.training.data import Text
from paceline.lab.training.losses import find_loss
from paceline.lab.training.module import DraftModule, Drafts, Reveal
from paceline.lab.training.objective import Hits, argmax_tokens, forward, hits
from paceline.lab.training.on_policy import OnPolicy, check
from paceline.lab.training.optimisers import Rated, optimisers
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.networks.base import Network, describe
from paceline.networks.weights import Trained, save_network


def is_on_policy(step: int, share: float, seed: int) -> bool:
    """Draw if a step's batch is on-policy, with probability `share`, keyed by seed and step."""
    return bool(np.random.default_rng((seed, step)).random() < share)


class DrafterTask(TaughtTask[DrafterRecipe]):
    """A drafter network, by distillation."""

    module: DraftModule
    more: ClassVar[str] = MORE
    taught = "whose text and features it was trained on"
    conditions = "drafts of full depth against texts as they stand, greedy ones and sampled ones"

    def __init__(
        self,
        network: Network,
        vocabulary: DraftVocabulary,
        embedding: LogitArray,
        head: LogitArray,
        texts: Sequence[Text],
        source: FeatureSource,
        recipe: DrafterRecipe,
        *,
        device: str = "cpu",
        target_weights: Mapping[str, LogitArray] = MappingProxyType({}),
        start: Mapping[str, LogitArray] = MappingProxyType({}),
        self_drafts: OnPolicy | None = None,
    ) -> None:
        """Draw the weights.

        Args:
            embedding: float32 `[vocabulary, width]` of the target.
            head: float32 `[vocabulary, width]`, the target's LM head.
            start: initial float32 parameters; missing ones are random.
            self_drafts: scores on-policy drafts, if the recipe has any.

        Raises:
            InvalidOption: there are too few texts, or network or loss cannot train on-policy.
        """
        super().__init__(recipe, *hold_out(texts, self.more))
        self.name, self.network, self.vocabulary = network.name, network, vocabulary
        self._source, self._self_drafts, self._start = source, self_drafts, _tensors(start)
        rows = torch.from_numpy(np.ascontiguousarray(head[vocabulary.ids]))
        lent = _tensors(target_weights)
        self.module = DraftModule(network, torch.from_numpy(embedding), rows, self.generator, lent)
        self.module.to(device)
        every = np.arange(vocabulary.size)
        self._places = torch.from_numpy(vocabulary.labels(every)).to(device)
        self._loss = find_loss(recipe.loss)
        if recipe.on_policy:
            assert self_drafts is not None
            check(network, self._loss)
        passes = recipe.tokens / sum(len(text.tokens) for text in self.texts)
        self.steps = max(2, round(passes * len(self.passing(0))))

    def passing(self, number: int) -> list[list[Text]]:
        return order(self.texts, self.recipe.batch_tokens, self.recipe.seed + number)

    def batch(self, step: int) -> list[Text]:
        found = super().batch(step)
        share = self.network.share_of_pictures(step / self.steps)
        if share == 1.0 or is_on_policy(step, share, self.recipe.seed):
            return found
        plain = [text for text in self.texts if text.picture is None]
        batches = order(plain, self.recipe.batch_tokens, self.recipe.seed)
        return batches[step % len(batches)] if batches else found

    @property
    def chosen(self) -> dict[str, Any]:
        kept = self.vocabulary
        return {**super().chosen, "vocabulary": len(kept.ids), "coverage": kept.coverage}

    @property
    def settings(self) -> dict[str, Any]:
        start = {"start": checkpoint.digest(self._start, "")} if self._start else {}
        return {**describe(self.network), **super().settings, **start}

    def optimisers(self) -> list[Rated]:
        return optimisers(self.module.named(), self.recipe.rate, self.recipe.rate / 10)

    def begin(self) -> None:
        sample = np.concatenate([self._source.of(text) for text in self.texts[:32]])
        self.module.fit_scale(torch.from_numpy(sample).to(self._places.device))
        self.module.load(self.module.named() | self._start)

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        recipe, batch = self.recipe, self._batch(texts)
        if not np.isfinite(batch.features).all():
            raise InvalidOption(
                f"the target gives hidden states that are no numbers at step {step}: its weights "
                "are damaged; fetch them again"
            )
        on_policy = is_on_policy(step, recipe.on_policy, recipe.seed)
        seed = (recipe.seed, step)
        with torch.set_grad_enabled(not on_policy):
            reveal = self.network.reveal(batch, self._places, step / self.steps, seed)
            _, loss = self._forward(batch, reveal)
        value = float(loss.detach())  # over the target's text in any case, to be comparable
        if on_policy and self._self_drafts is not None:
            loss = self._self_drafts.loss(
                self.module,
                texts,
                batch,
                self._loss,
                decay=recipe.decay,
                half=recipe.training_precision == "bf16",
                seed=(*seed, 1),
            )
        yield loss, value

    def judge(self) -> Judged:
        losses: list[float] = []
        found: list[Hits] = []
        with torch.no_grad():
            for texts in order(self.held_out, self.recipe.batch_tokens, 0):
                batch = self._batch(texts)
                drafts, loss = self._forward(batch)
                losses.append(float(loss))
                drafted = argmax_tokens(self.network, drafts.logits)
                found.append(hits(drafted, batch, self._places))
        return Judged(float(np.mean(losses)), sum(found[1:], found[0]))

    def _batch(self, texts: Sequence[Text]) -> Batch:
        batch: Batch = self.network.arranged(self._source.batch(texts), texts)
        return batch

    def parameters(self) -> dict[str, LogitArray]:
        named = self.module.named().items()
        return {name: value.detach().float().cpu().numpy() for name, value in named}

    def save(self, out: Path, metadata: dict[str, str]) -> Path:
        save_network(out, Trained(self.network, self.parameters(), self.vocabulary.ids, metadata))
        return out

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
            half=recipe.training_precision == "bf16",
            reveal=reveal,
        )


def _tensors(arrays: Mapping[str, LogitArray]) -> dict[str, Tensor]:
    # The tensors share memory with the arrays.
    return {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()}

"""Trains a drafter network on texts of its target; resumes exactly where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidOption
from paceline.networks.base import Network, describe
from paceline.options import require
from paceline.training import checkpoint
from paceline.training.auxiliary import likeliest_tokens
from paceline.training.batches import Batch, FeatureSource, hold_out, order
from paceline.training.data.writing import Text
from paceline.training.digest import digest
from paceline.training.finite import check_finite
from paceline.training.forward import forward
from paceline.training.fused_losses import fused
from paceline.training.glancing import glance
from paceline.training.losses import find_loss
from paceline.training.module import DraftModule, Drafts, Reveal
from paceline.training.objective import Hits, hits
from paceline.training.on_policy import OnPolicy, check
from paceline.training.optimisers import optimisers, update
from paceline.training.schedule import cosine, is_on_policy
from paceline.training.vocabulary import DraftVocabulary
from paceline.types import LogitArray


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained.

    Attributes:
        tokens: how many to train on, counting each time that one is seen.
        loss: as for `losses.find_loss`.
        batch_tokens: tokens per update, padding included.
        matrix_rate: highest learning rate of matrices, by Muon (Jordan et al. 2024).
        vector_rate: that of norms, scales and slots, by AdamW.
        warm_up: share of the updates in which rates rise.
        decay: weight of a depth beside the one above it.
        prompt_weight: weight of prompt tokens, which the target did not write.
        clip: longest gradient.
        feature_weight: of the loss on hidden states, for networks that foretell them.
        precision: of matrix products in training, "fp32" or "bf16".
        seed: of first weights, of the order of texts, and of drafts.
        on_policy: share of the batches that teach on the network's own drafts (`on_policy.py`).
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
    """An update.

    Attributes:
        step: from 1.
        tokens: seen so far.
        loss: of its batch, over the target's own text, before the update.
    """

    step: int
    tokens: int
    loss: float


class Trainer:
    """One run. Iterate over `run` until it ends, or stop and go on another day."""

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
        borrowed: Mapping[str, LogitArray] = MappingProxyType({}),
        start: Mapping[str, LogitArray] | None = None,
        own: OnPolicy | None = None,
    ) -> None:
        """Draw the first weights, or go on from others, or take up a checkpoint.

        Args:
            network: what to train.
            vocabulary: what it may draft.
            embedding: float32 `[vocabulary, width]` of the target.
            head: float32 `[vocabulary, width]`, the target's LM head.
            texts: of the target; some are held out.
            source: gives features of texts.
            recipe: how to train.
            device: where the network is trained.
            place: file of the checkpoint; None keeps none.
            borrowed: what `borrowing.borrow` gave.
            start: parameters to start from, float32; those that are not among them are drawn.
            own: judges the network's own drafts, where the recipe wants them.

        Raises:
            InvalidOption: there are too few texts, the checkpoint is of other settings, or network
                or loss cannot learn from drafts.
            ModelError: the checkpoint is damaged.
        """
        self._texts, self.held_out = hold_out(texts)
        self.network = network
        self.recipe = recipe
        self._source = source
        self._device = torch.device(device)
        generator = torch.Generator().manual_seed(recipe.seed)
        rows = torch.from_numpy(np.ascontiguousarray(head[vocabulary.ids]))
        lent = _tensors(borrowed)
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
        self.notes: dict[str, Any] = {}
        """Plain values of the caller's that checkpoints keep."""
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
        """Train to the end, one update at a time.

        Raises:
            InvalidOption: the loss is not finite.
        """
        while self.step < self.steps:
            groups, first = self._pass()
            for texts in groups[first:]:
                if self.step >= self.steps:
                    break
                yield self._update(self._source.batch(texts), texts)

    def save(self) -> None:
        """Write the checkpoint, if the run has one."""
        if self._place is not None:
            progress = checkpoint.Progress(self.step, {"tokens": self.tokens, "notes": self.notes})
            checkpoint.save(self._place, self._state, progress, self._settings)
            self._saved = True

    def judge(self) -> tuple[float, Hits]:
        """Loss and hits on the texts that are held out."""
        losses, found = [], None
        with torch.no_grad():
            for texts in order(self.held_out, self.recipe.batch_tokens, 0):
                batch = self._source.batch(texts)
                drafts, loss = self._forward(batch)
                losses.append(float(loss))
                each = hits(likeliest_tokens(self.network, drafts.logits), batch, self._places)
                found = each if found is None else found + each
        assert found is not None
        return float(np.mean(losses)), found

    def parameters(self) -> dict[str, LogitArray]:
        """The network's parameters now."""
        named = self.module.named().items()
        return {name: value.detach().float().cpu().numpy() for name, value in named}

    def _pass(self) -> tuple[list[list[Text]], int]:
        """The batches of the pass that the next step is in, and its place there."""
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
            reveal = glance(self.network, batch, self._places, progress, seed)
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
    """The same as tensors, which share their memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()}

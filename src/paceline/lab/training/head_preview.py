"""Low-rank preview of a drafter's LM head (SVD-softmax, Shim et al., NIPS 2017), fitted to data.

The SVD is of the head times a root of the hidden states' second moment: the best rank-k
approximation of logits, not of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.options import require
from paceline.errors import InvalidOption
from paceline.lab.training.batches import Batch, FeatureSource
from paceline.lab.training.data import Text
from paceline.lab.training.module import restore_module
from paceline.lab.training.objective import Hits, argmax_tokens, hits, wanted
from paceline.lab.training.optimisers import Rated
from paceline.lab.training.recipe import Recipe
from paceline.lab.training.run import TrainingTask
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.models.source import ModelSource
from paceline.networks.head_preview import REFINED, HeadPreview
from paceline.networks.weights import Trained

# Least second moment of any direction, relative to the greatest: unseen directions still count.
_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class PreviewAgreement:
    """Drafts with and without a head preview.

    Attributes:
        places: drafted tokens compared.
        kept: of those, tokens that are equal.
        without: hits of the whole head.
    """

    places: int
    kept: int
    without: Hits
    previewed: Hits

    def __add__(self, other: PreviewAgreement) -> PreviewAgreement:
        return PreviewAgreement(
            self.places + other.places,
            self.kept + other.kept,
            self.without + other.without,
            self.previewed + other.previewed,
        )


def check_rank(trained: Trained, rank: int) -> None:
    """Raise InvalidOption unless a head preview of the drafter may have that rank."""
    most = min(trained.network.config.hidden_size, len(trained.draft_ids))
    require(1 <= rank <= most, "rank", rank, f"1 to {most}")


class HeadPreviewTask(TrainingTask[Recipe, PreviewAgreement]):
    """Collection of hidden states at the LM head, to which head previews are fitted.

    The fit is in closed form: there is no loss, and an update adds a text to the second moment.
    """

    def __init__(
        self,
        trained: Trained,
        source: ModelSource,
        features: FeatureSource,
        texts: Sequence[Text],
        held_out: Sequence[Text],
        rank: int,
    ) -> None:
        super().__init__(Recipe(), texts, held_out)
        module = restore_module(trained, source)
        self._trained, self._width = trained, trained.network.config.hidden_size
        self._head = module.get_buffer("head")
        # Behind a head that changes nothing, "logits" are the hidden states themselves.
        module.register_buffer("head", torch.eye(self._width), persistent=False)
        self._network, self._features, self.rank = module, features, rank
        vocabulary = DraftVocabulary(trained.draft_ids, source.config.vocab_size, 1.0)
        self._places = torch.from_numpy(vocabulary.labels(np.arange(vocabulary.size)))
        self._moment = torch.zeros(self._width, self._width, dtype=torch.float64)
        self.module, self.steps = nn.Module(), len(texts)
        self.module.register_buffer("moment", self._moment)

    @property
    def settings(self) -> dict[str, Any]:
        return {**self._trained.metadata, "texts": [text.index for text in self.texts]}

    def optimisers(self) -> list[Rated]:
        return []

    def batch(self, step: int) -> list[Text]:
        return [self.texts[step]]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        self.add(self._features.batch(texts))
        return iter(())

    def add(self, batch: Batch) -> None:
        """Collect the states that answers are drafted from, at all depths."""
        for depth, states in enumerate(self._states(batch), 1):
            rows = states[_drafted(batch, depth)][:, : self._width].double()
            self._moment += rows.T @ rows

    def fit(self, rank: int) -> HeadPreview:
        """Return the best head preview of a rank, rounded to float16.

        Raises:
            InvalidOption: the rank is impossible, or no added text has an answer.
        """
        check_rank(self._trained, rank)
        if not self._moment.any():
            raise InvalidOption("the texts have no answers to fit a screen to: name others")
        moments, axes = torch.linalg.eigh(self._moment)
        spread = moments.clamp_min(float(moments.max()) * _FLOOR).sqrt()
        root = axes * spread @ axes.T
        left, sizes, right = torch.linalg.svd(self._head.double() @ root, full_matrices=False)
        # Sizes are shared by both matrices, since both are rounded.
        shared = sizes[:rank].sqrt()
        up = left[:, :rank] * shared
        down = shared[:, None] * right[:rank] @ (axes / spread @ axes.T)
        return HeadPreview(_rounded(down), _rounded(up))

    def judge(self) -> PreviewAgreement:
        fitted = self.fit(self.rank)
        first, *rest = (self._features.batch([text]) for text in self.held_out)
        judged = self.compare(first, fitted)
        return sum((self.compare(batch, fitted) for batch in rest), judged)

    def compare(self, batch: Batch, head_preview: HeadPreview) -> PreviewAgreement:
        down, up = torch.from_numpy(head_preview.down), torch.from_numpy(head_preview.up)
        without, previewed = [], []
        for states in self._states(batch):
            hidden, blank = states[..., : self._width], states[..., self._width :]
            logits = hidden @ self._head.T
            preview = hidden @ down.T @ up.T
            best = preview.topk(min(REFINED, len(up)), -1).indices
            preview.scatter_(-1, best, logits.gather(-1, best))
            without.append(torch.cat([logits, blank], -1))
            previewed.append(torch.cat([preview, blank], -1))
        every = [argmax_tokens(self._trained.network, each) for each in (without, previewed)]
        places = kept = 0
        for depth, (first, second) in enumerate(zip(*every, strict=True), 1):
            rows = _drafted(batch, depth)
            places += int(rows.sum())
            kept += int((first == second)[rows].sum())
        return PreviewAgreement(places, kept, *(hits(each, batch, self._places) for each in every))

    def _states(self, batch: Batch) -> list[Tensor]:
        with torch.no_grad():
            features, tokens = torch.from_numpy(batch.features), torch.from_numpy(batch.tokens)
            states: list[Tensor] = self._network(features, tokens)
            return states


def _drafted(batch: Batch, depth: int) -> Tensor:
    # bool `[texts, time]`: the drafted token belongs to an answer.
    return wanted(batch, depth, 0.0) > 0


def _rounded(matrix: Tensor) -> np.ndarray:
    return matrix.half().float().numpy()

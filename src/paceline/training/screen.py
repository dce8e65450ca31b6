"""Fits the screen before a drafter's LM head (SVD-softmax, Shim et al., NIPS 2017).

Of all matrices of a rank the leading part of a decomposition comes closest to the head. Here it is
to come closest in logits: the head is decomposed after a root of the second moment of the hidden
states that it reads, so that what they seldom do takes no room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidOption
from paceline.models.source import ModelSource
from paceline.networks.screen import REFINED, Screen
from paceline.networks.weights import Trained
from paceline.options import require
from paceline.training.auxiliary import likeliest_tokens
from paceline.training.batches import Batch
from paceline.training.frozen import module_of
from paceline.training.objective import Hits, hits, wanted
from paceline.training.vocabulary import DraftVocabulary

_FLOOR = 1e-6
"""Least part of the greatest second moment that any direction has: what texts never showed counts a
little."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a screen does to drafts.

    Attributes:
        places: drafted tokens that were looked at.
        kept: of those, how many are the same with the screen.
        without: drafts of the whole head.
        screened: drafts with the screen.
    """

    places: int
    kept: int
    without: Hits
    screened: Hits

    def __add__(self, other: Judged) -> Judged:
        """Both together."""
        return Judged(
            self.places + other.places,
            self.kept + other.kept,
            self.without + other.without,
            self.screened + other.screened,
        )


def check_rank(trained: Trained, rank: int) -> None:
    """Whether a screen for a drafter may have a rank.

    Raises:
        InvalidOption: it may not.
    """
    most = min(trained.network.geometry.width, len(trained.draft_ids))
    require(1 <= rank <= most, "rank", rank, f"1 to {most}")


class Screening:
    """Gathers the hidden states in front of a head, fits a screen to them, and judges screens."""

    def __init__(self, trained: Trained, source: ModelSource) -> None:
        """Know no texts.

        Args:
            trained: the drafter.
            source: its target.

        Raises:
            ModelError: the target's weights are missing or damaged.
        """
        module = module_of(trained, source)
        self._trained, self._width = trained, trained.network.geometry.width
        self._head = module.get_buffer("head")
        # Behind a head that changes nothing, "logits" are the hidden states themselves.
        module.register_buffer("head", torch.eye(self._width), persistent=False)
        self._module = module
        self._moment = torch.zeros(self._width, self._width, dtype=torch.float64)
        vocabulary = DraftVocabulary(trained.draft_ids, source.config.vocab_size, 1.0)
        self._places = torch.from_numpy(vocabulary.labels(np.arange(vocabulary.size)))

    def add(self, batch: Batch) -> None:
        """Take in the states that answers of these texts are drafted from, at all depths."""
        for depth, states in enumerate(self._states(batch), 1):
            rows = states[_drafted(batch, depth)][:, : self._width].double()
            self._moment += rows.T @ rows

    def fit(self, rank: int) -> Screen:
        """The best screen of a rank, its numbers as float16 has them.

        Raises:
            InvalidOption: there is no such rank, or no text was added that has an answer.
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
        return Screen(_rounded(down), _rounded(up))

    def judge(self, batch: Batch, screen: Screen) -> Judged:
        """Drafts for texts with and without a screen."""
        down, up = torch.from_numpy(screen.down), torch.from_numpy(screen.up)
        without, screened = [], []
        for states in self._states(batch):
            hidden, blank = states[..., : self._width], states[..., self._width :]
            logits = hidden @ self._head.T
            preview = hidden @ down.T @ up.T
            best = preview.topk(min(REFINED, len(up)), -1).indices
            preview.scatter_(-1, best, logits.gather(-1, best))
            without.append(torch.cat([logits, blank], -1))
            screened.append(torch.cat([preview, blank], -1))
        every = [likeliest_tokens(self._trained.network, each) for each in (without, screened)]
        places = kept = 0
        for depth, (first, second) in enumerate(zip(*every, strict=True), 1):
            rows = _drafted(batch, depth)
            places += int(rows.sum())
            kept += int((first == second)[rows].sum())
        return Judged(places, kept, *(hits(each, batch, self._places) for each in every))

    def _states(self, batch: Batch) -> list[Tensor]:
        """Per depth, `[texts, time, width]`, and blank's logit behind if there is one."""
        with torch.no_grad():
            features, tokens = torch.from_numpy(batch.features), torch.from_numpy(batch.tokens)
            states: list[Tensor] = self._module(features, tokens)
            return states


def _drafted(batch: Batch, depth: int) -> Tensor:
    """bool `[texts, time]`: whether the token drafted there is one of an answer."""
    return wanted(batch, depth, 0.0) > 0


def _rounded(matrix: Tensor) -> np.ndarray:
    return matrix.half().float().numpy()

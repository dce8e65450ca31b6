"""Training of CPPD on words that are drawn for each update: characters, counts and places.

Who draws a word knows where its characters stand. So the tower's rows learn which place stands in
their column, by the queries of places, and its character, which the paper leaves to the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import ImageFont
from torch import Tensor
from torch.nn import functional

from paceline.core.options import require
from paceline.lab.training.data import Text
from paceline.lab.training.optimisers import Rated, adam, optimisers
from paceline.lab.training.run import TrainingRun, TrainingTask
from paceline.methods.cppd.recipe import CPPDRecipe
from paceline.methods.cppd.recogniser import (
    CHARACTERS,
    CLASSES,
    CPPD,
    LONGEST,
    CPPDShape,
    save_recogniser,
)
from paceline.methods.cppd.words import Drawn, apart, drawn

_LEAST = 20  # words, so that one is held out


class Spelling(NamedTuple):
    """What words teach: int64 classes `[n, LONGEST + 1]`, -1 behind the end; counts `[n, CLASSES]`;
    float32 `[n, LONGEST + 1]`, 1 where a place is filled."""

    classes: Tensor
    counts: Tensor
    filled: Tensor

    @classmethod
    def of(cls, words: Sequence[str]) -> Spelling:
        classes = torch.full((len(words), LONGEST + 1), -1)
        for row, word in zip(classes, words, strict=True):
            row[: len(word) + 1] = torch.tensor([*(1 + CHARACTERS.index(each) for each in word), 0])
        counts = functional.one_hot(classes + 1, CLASSES + 1).sum(1)[:, 1:]
        return cls(classes, counts.clamp_max(LONGEST - 1), (classes > 0).float())


class Reading(NamedTuple):
    """Shares of held-out words: read right, and with places filled from the left without a gap."""

    right: float
    in_order: float


class CPPDTask(TrainingTask[CPPDRecipe, Reading]):
    """A recogniser of words in some fonts."""

    module: CPPD

    def __init__(
        self,
        shape: CPPDShape,
        words: Sequence[str],
        fonts: Sequence[ImageFont.FreeTypeFont],
        recipe: CPPDRecipe,
    ) -> None:
        """Draw the weights; InvalidOption if words are too few, or there is no font."""
        require(len(words) >= _LEAST, "words", len(words), f"{_LEAST} or more")
        require(len(fonts) >= 1, "fonts", len(fonts), "1 or more")
        learnt, held = apart(words)
        self._words, self._fonts, self.steps = [*learnt, *held], fonts, recipe.steps
        texts = [Text(at, np.zeros(1, np.int64), 0) for at in range(len(words))]
        super().__init__(recipe, texts[: len(learnt)], texts[len(learnt) :])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.module = CPPD(shape)

    @property
    def settings(self) -> dict[str, Any]:
        fonts = [list(each.getname()) for each in self._fonts]
        return {**super().settings, **asdict(self.module.shape), "fonts": fonts}

    def optimisers(self) -> list[Rated]:
        """Return Muon for matrices of layers, Adam for all else, tables of vectors among it."""
        named = dict(self.module.named_parameters())
        tables = [named.pop(each) for each in list(named) if not each.endswith(("weight", "bias"))]
        rates = self.recipe.matrix_rate, self.recipe.vector_rate
        return [*optimisers(named, *rates), adam(tables, self.recipe.vector_rate)]

    def passing(self, number: int) -> list[list[Text]]:
        size = self.recipe.batch
        order = np.random.default_rng((self.recipe.seed, number)).permutation(len(self.texts))
        batches = (order[at : at + size] for at in range(0, len(order), size))
        return [[self.texts[each] for each in batch] for batch in batches]

    def spelt(self, texts: Sequence[Text]) -> list[str]:
        return [self._words[each.index] for each in texts]

    def drawn(self, texts: Sequence[Text], step: int) -> Drawn:
        """Draw some texts; a function of the step, so that a run may be resumed."""
        return drawn(self.spelt(texts), self._fonts, (self.recipe.seed, step))

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        shown, right = self.drawn(texts, 1 + step), Spelling.of(self.spelt(texts))
        found = self.module(torch.from_numpy(shown.pictures).float())
        places = torch.from_numpy(shown.places)
        here = right.classes.gather(1, places.clamp_min(0)).masked_fill(places < 0, -1)
        said = _nats(found.characters, right.classes)
        filled = functional.binary_cross_entropy_with_logits(found.filled, right.filled)
        known = _nats(found.row_places, places) + _nats(found.row_characters, here)
        yield said + _nats(found.counts, right.counts) + filled + known, float(said.detach())

    @torch.no_grad()
    def judge(self) -> Reading:
        pictures = self.drawn(self.held_out, 0).pictures
        read = zip(self.module.read(pictures), self.spelt(self.held_out), strict=True)
        filled = self.module(torch.from_numpy(pictures).float()).filled > 0
        in_order = (filled.int().diff(dim=1) <= 0).all(1).float().mean()
        return Reading(float(np.mean([a == b for a, b in read])), float(in_order))


def _nats(logits: Tensor, right: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), right.flatten(), ignore_index=-1)


def publish(run: TrainingRun[CPPDTask], out: Path) -> tuple[dict[str, Any], str]:
    """Judge a run and write its weights; return its figures and a line for people."""
    found = run.task.judge()
    save_recogniser(out, run.task.module)
    figures = {"weights": str(out), "held_out": found._asdict(), "seconds": run.course.seconds}
    return figures, f"{out}: {found.right:.1%} of held-out words are read right"

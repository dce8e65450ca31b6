"""A drafter network that is a table, for tests of what is drafted from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.methods.networks.draft_lm import DraftLM
from paceline.models.config import ModelConfig
from paceline.networks.runner import Branch, Chain, ContextUpdate
from paceline.networks.weights import Trained
from paceline.proof.tabular import TabularModel


class TableRunner:
    """Says the table's logits behind whole steps. Implements `networks.runner.Runner`.

    Within a step, slot j says what the table says with j zeros behind the step.
    """

    def __init__(self, model: TabularModel, ids: IntArray, steps: int = 3, width: int = 1) -> None:
        self.calls: list[int] = []
        self.caches: list[list[int]] = []
        self._model, self._ids = model, ids
        self._steps, self._width = steps, width

    @property
    def depth(self) -> int:
        return self._steps * self._width

    @property
    def trained(self) -> Trained:
        """What tells drafters of vocabulary and width."""
        network = DraftLM(
            ModelConfig("llama", self._model.vocabulary, 4, 0, 1, 1, 4, 4, 100.0, 1e-5, 0, False),
            steps=self._steps,
        )
        network.width = self._width
        return Trained(network, {}, self._ids, {})

    def open(self) -> list[int]:
        self.caches.append([])
        return self.caches[-1]

    def release(self, cache: list[int]) -> None:
        cache.clear()

    def draft(self, grown: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        assert depth == 0
        self._take_in(grown)
        return []

    def start(self, grown: Sequence[ContextUpdate]) -> list[Branch]:
        self._take_in(grown)
        return [Branch(each.cache, None, (), (), self._logits(each.cache, ())) for each in grown]

    def advance(self, asked: Sequence[tuple[Branch, Sequence[int]]]) -> list[Branch]:
        self.calls.append(len(asked))
        out = []
        for above, tokens in asked:
            path = (*above.state, *tokens)
            assert len(tokens) == self._width
            assert len(path) < self.depth
            out.append(Branch(above.cache, above, tokens, path, self._logits(above.cache, path)))
        return out

    def hidden(self, branch: Branch) -> LogitArray:
        """The newest drafted token and how many there are."""
        return np.array([[branch.state[-1], len(branch.state)]], dtype=np.float32)

    def _take_in(self, grown: Sequence[ContextUpdate]) -> None:
        for each in grown:
            each.cache.extend(each.tokens)

    def _logits(self, cache: Any, path: tuple[int, ...]) -> LogitArray:
        contexts = [(*cache, *path, *[0] * slot) for slot in range(self._width)]
        return np.stack([self._model.logits(context)[self._ids] for context in contexts])

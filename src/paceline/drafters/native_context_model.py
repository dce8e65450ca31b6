"""N-gram model of the target in C++ (`native/context_model.hpp`)."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence as List
from copy import copy, deepcopy
from typing import Any, Self

import numpy as np

from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.context_model import ContextModel
from paceline.drafters.context_table import WIDTH, Context, Law
from paceline.drafters.native_guess import Workspace
from paceline.native.library import address, calls
from paceline.types import Budget, LogitArray, TokenTree


class NativeContextModel(ContextModel):
    """N-gram model in the library's memory, 150 bytes per context. MemoryError: no room for it."""

    def __init__(self, order: int, capacity: int) -> None:
        super().__init__(order, capacity)
        self._call = calls("context_")
        self._hold(self._call.new(order, capacity))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy(self)
        twin.rates = deepcopy(self.rates, memo)
        twin._hold(self._call.copy(self._model))
        return twin

    def read(self, tokens: List[int], begin: int, weight: float) -> None:
        first = max(0, begin - self._order)
        text = array("i", tokens[first:])
        at = text.buffer_info()[0]
        self._check(self._call.read(self._model, at, len(text), begin - first, weight))

    def recycle(self, tokens: List[int], draft: TokenTree, logits: LogitArray) -> None:
        tail = tokens[-self._order :]
        numbers = array("i", [*tail, *draft.tokens.tolist(), *draft.parents.tolist()])
        if logits.dtype != np.float32 or not logits.flags.c_contiguous:
            logits = np.ascontiguousarray(logits, np.float32)
        self._check(
            self._call.recycle(
                *(self._model, numbers.buffer_info()[0], len(tail), len(draft)),
                *(address(logits), logits.shape[1]),
            )
        )

    def look(self, context: Context) -> tuple[Law, float] | None:
        text, tokens, shares = (
            array("i", context),
            array("i", [0] * WIDTH),
            array("d", [0.0] * (WIDTH + 1)),
        )
        count = self._call.look(
            *(self._model, text.buffer_info()[0], len(text)),
            *(tokens.buffer_info()[0], shares.buffer_info()[0]),
        )
        if count < 0:
            return None
        return dict(zip(tokens[:count], shares[:count], strict=True)), shares[count]

    def offers(self, context: Context, reach: float) -> List[Offer]:
        text, rates = array("i", context), self.rates.flat
        out = self._out
        out.fit(0, self._order * WIDTH)
        count = self._call.offers(
            *(self._model, text.buffer_info()[0], len(text), reach, rates.buffer_info()[0]),
            *(out.numbers, out.chances),
        )
        return out.offers(self._check(count), self.rates)

    def grow(self, tokens: List[int], budget: Budget) -> Guess:
        text, rates = array("i", tokens[-self._order :]), self.rates.flat
        nodes, out = budget.nodes, self._out
        out.fit(nodes, (1 + nodes) * self._order * WIDTH)
        count = self._call.grow(
            *(self._model, text.buffer_info()[0], len(text), nodes, budget.depth),
            *(rates.buffer_info()[0], out.numbers, out.chances),
        )
        return out.guess(self._check(count))

    def _hold(self, model: int | None) -> None:
        if not model:
            raise MemoryError("no memory for an n-gram model")
        self._model = model
        self._out = Workspace()
        weakref.finalize(self, self._call.free, model).atexit = False

    def _check(self, done: int) -> int:
        if done < 0:
            raise MemoryError("no memory for more contexts in an n-gram model")
        return done

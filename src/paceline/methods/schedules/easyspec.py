"""EasySpec (Wu et al. 2025, arXiv:2502.02493): layers of the draft model side by side.

The attention of a group of layers reads the group's input, so that several devices can run it at
once; feed-forward blocks stay one after another. What was cached that way is taken back after
verification, and accepted tokens are read exactly (calibration). One device gains nothing by it:
drafts are real here, their time is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from paceline.core.options import require
from paceline.core.target import NO_LOGITS, Rows, Target
from paceline.core.types import LogitArray
from paceline.drafters.base import check_layers
from paceline.methods.schedules.drafting import (
    ChainDrafting,
    DraftRequest,
    ReadText,
    Scheduled,
    Worker,
)


class FuzzyChains(ChainDrafting):
    """Draft the first token of a chain exactly, the others with grouped layers.

    `group` layers share their attention's input. Before each chain the cache is calibrated.
    """

    def __init__(self, model: Target, recent: int = 256, group: int = 2) -> None:
        """Bind a model that runs its layers alone.

        Raises:
            RuntimeUnavailable: it cannot.
        """
        super().__init__(model, recent)
        check_layers("easyspec", "runs layers of the draft model alone", model.capabilities)
        self.group = group
        self._layers = int(cast(Any, model).config.layers)

    def _cut(self, text: ReadText, length: int) -> None:
        super()._cut(text, min(length, text.exact))

    def _follow(self, ask: DraftRequest) -> ReadText:
        text = super()._follow(ask)
        text.exact, text.begins = text.cache.length, True
        return text

    def _logits(self, texts: Sequence[ReadText]) -> list[LogitArray]:
        fresh = [each for each in texts if each.begins]
        logits = dict(zip(map(id, fresh), super()._logits(fresh), strict=True)) if fresh else {}
        for each in fresh:
            logits[id(each)] = logits[id(each)].copy()
            each.exact, each.begins = each.cache.length, False
        for each in texts:
            if id(each) not in logits:
                logits[id(each)] = self._fuzzy(each)
        return [logits[id(each)] for each in texts]

    def _fuzzy(self, text: ReadText) -> LogitArray:
        def run(inputs: LogitArray | None, *layers: Any) -> LogitArray:
            rows = Rows.draft(text.cache, text.tokens[-1:], inputs=inputs, wanted=NO_LOGITS)
            return self.model.forward([rows], layers)[0].state.copy()

        state = run(None)
        for first in range(0, self._layers, self.group):
            group = range(first, min(first + self.group, self._layers))
            # The first layer's input is its own; of the others the attention is added later.
            shared = [run(state, (layer, "attention")) for layer in group]
            given, state = state, run(shared[0], (first, "feed-forward"))
            for layer, output in zip(group[1:], shared[1:], strict=True):
                state = run(state + (output - given), (layer, "feed-forward"))
        rows = Rows.draft(text.cache, text.tokens[-1:], inputs=state)
        [found] = self.model.forward([rows], ())
        out: LogitArray = found.logits[-1].copy()
        self.model.keep(text.cache, 1, ())
        return out


class EasySpec(Scheduled):
    """Draft with grouped layers, then verify."""

    name: ClassVar[str] = "easyspec"
    requires = "runtime cpu or torch; a model with the same vocabulary (--draft-model)"
    paper = "after EasySpec, Wu et al. 2025, arXiv:2502.02493"
    apart = False

    def __init__(
        self, worker: Worker, *, coupled: bool = True, window: int = 4, group: int = 2
    ) -> None:
        """Bind a worker with `FuzzyChains` of the same `group`.

        Raises:
            InvalidOption: a value is below 1.
        """
        super().__init__(worker, coupled=coupled, window=window)
        require(group >= 1, "group", group, "1 or more")

    @classmethod
    def _chains(cls, model: Target, chosen: dict[str, Any]) -> ChainDrafting:
        return FuzzyChains(model, group=chosen.get("group", 2))

"""PEARL (Liu et al. 2024, arXiv:2408.11850): the draft model goes on while the target verifies.

Pre-verify: after a rejection the target looks at the root alone while a window is drafted behind
it; its token is the check of the window's first. Post-verify: the target verifies the rest of a
window while the next is drafted; its last token is the check of that window's first. So nothing
but the text decides what stands, and one rule serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import ClassVar

from paceline.core.options import require
from paceline.core.target import Output, Rows, Target
from paceline.core.types import Budget, TokenTree
from paceline.methods.schedules.drafting import DraftRequest, Scheduled, Worker
from paceline.sampling.generation import Generation

_MEMORY = 0.9  # weight of earlier times
_LONGEST = 32


class Pearl(Scheduled):
    """Verify what is drafted, and draft behind it meanwhile."""

    name: ClassVar[str] = "pearl"
    requires = "a model with the same vocabulary (--draft-model)"
    paper = "after PEARL, Liu et al. 2024, arXiv:2408.11850"

    def __init__(self, worker: Worker, *, coupled: bool = True, window: int = 0) -> None:
        """Bind a worker.

        Args:
            worker: drafts.
            coupled: see `Scheduled`.
            window: tokens drafted per forward; 0 for as many as take the time of one, by the
                times of earlier steps.

        Raises:
            InvalidOption: `window` is below 0.
        """
        require(window >= 0, "window", window, "0 (by the speed ratio) or more")
        super().__init__(worker, coupled=coupled, window=window or 4)
        self._adaptive = window == 0
        self._texts: dict[int, list[int]] = {}  # committed and drafted tokens
        self._asked: list[int] = []
        self._ratio = 0.0

    def open(self, sequence: Generation) -> None:
        super().open(sequence)
        self._texts[sequence.id] = list(sequence.tokens)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._texts.pop(sequence.id, None)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._settle()
        drafts, asks = [], []
        for sequence, budget in zip(sequences, budgets, strict=True):
            ahead = self._ahead(sequence)
            text = self._texts[sequence.id] = [*sequence.tokens, *ahead]
            drafts.append(self._draft(ahead, budget))
            # Two windows at most: what the target left unread is not left behind.
            count = min(self._window, 2 * self._window - 1 - len(ahead))
            count = min(count, sequence.room - len(ahead) - 1)
            if count > 0:
                asks.append(DraftRequest(sequence.id, tuple(text), count))
        self._asked = [each.id for each in asks]
        self._send(asks)
        return drafts

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        start = perf_counter()
        outputs = target.forward(rows)
        self._forward_seconds = perf_counter() - start
        return outputs

    _forward_seconds = 0.0

    def _ahead(self, sequence: Generation) -> list[int]:
        # Drafted tokens behind the committed ones; none if those are others.
        text, known = self._texts[sequence.id], sequence.tokens
        return text[len(known) :] if text[: len(known)] == known else []

    def _settle(self) -> None:
        reply = self._receive()
        if reply is None:
            return
        for id, tokens in zip(self._asked, reply.tokens, strict=True):
            if id in self._texts:
                self._texts[id] += tokens
        if self._adaptive and reply.rounds and self._forward_seconds:
            ratio = self._forward_seconds / (reply.seconds / reply.rounds)
            before = self._ratio or ratio
            self._ratio = _MEMORY * before + (1 - _MEMORY) * ratio
            self._window = max(1, min(_LONGEST, round(self._ratio)))

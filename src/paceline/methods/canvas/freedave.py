"""Several steps of a rule in one forward, with its own text: FreeDave (arXiv:2510.00294)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.core.types import Attention, IntArray, LogitArray, TokenLogprob
from paceline.denoising.canvas import Ask, Canvas
from paceline.denoising.process import Context, Process, Sampler, Terms
from paceline.denoising.unmasking import Rule, Unmasking, goes
from paceline.errors import PacelineError

# Rows of a forward, at most: what each sees is a square of them.
ROWS = 4096


class FreeDave(Sampler):
    """Draft the rule's next steps from what is known, and check all of them in one forward.

    A step stands if the rule asks for exactly the rows that its draft asked for. The text is that
    of the rule alone, greedy or drawn, with the same cache plan.
    """

    name: ClassVar[str] = "freedave"
    guarantee = "text of the inner rule, seed for seed"
    paper = "FreeDave, Wu and Zhang 2025, arXiv:2510.00294"
    needs: tuple[Attention, ...] = ("full", "block")

    def __init__(self, inner: Rule, width: int = 4) -> None:
        """Wrap a rule; `width` is the number of drafts, each a copy of the block's rows."""
        within("width", width, 1, 64)
        self.needs = tuple(each for each in self.needs if each in inner.needs)
        goes(self.name, inner, bool(self.needs), "moves its block")
        self.inner, self.width, self.ignores_draws = inner, width, inner.ignores_draws

    def check(self, terms: Terms) -> None:
        self.inner.check(terms)

    def process(self, context: Context) -> Process:
        return StateLookahead(self.inner.process(context), self.width)


class StateLookahead:
    """Ask for the next states that a process is expected to reach, and walk as far as it does."""

    def __init__(self, process: Unmasking, width: int) -> None:
        self.process, self.width = process, width
        self.exact = process.exact
        self.drafts: list[Unmasking] = []
        self._asks: list[Ask] = []

    @property
    def canvas(self) -> Canvas:
        return self.process.canvas

    @property
    def logprobs(self) -> dict[int, TokenLogprob]:
        return self.process.logprobs

    def log_likelihood(self, end: int) -> float | None:
        return self.process.log_likelihood(end)

    def ask(self) -> Ask:
        # A forward that changes the cache has no drafts: they would not see what it keeps.
        first = self.process.ask()
        asks = [first] if changes_cache(self.process) else [first, *(d.ask() for d in self.drafts)]
        self._asks = asks = asks[: max(1, ROWS // len(first.tokens))]
        held = len(self.process.held) if first.drop is None else first.drop
        return side_by_side(asks, held)

    def take(self, logits: LogitArray) -> Sequence[int]:
        kept: Sequence[int] = ()
        parts = np.split(logits, np.cumsum([len(wanted(ask)) for ask in self._asks])[:-1])
        last = parts[0]
        for index, (ask, part) in enumerate(zip(self._asks, parts, strict=True)):
            if index and not (len(self.canvas.masked()) and same(self.process.ask(), ask)):
                break
            process = self.process.fork() if index else self.process
            self.expect(process, index)
            try:
                rows = process.take(part)
            except PacelineError:
                if not index:
                    raise
                break  # the text may end before this step
            self.process, kept = process, kept if index else rows
            last, asked = part, ask
        self.drafts = self._drafted(asked.places[wanted(asked)], last)
        return kept

    def expect(self, process: Unmasking, index: int) -> None:
        """Take note that the process goes on from the state of draft `index`; 0 is its own."""

    def _drafted(self, places: IntArray, logits: LogitArray) -> list[Unmasking]:
        # What the rule would do if the logits stayed as they are.
        known = dict(zip(places.tolist(), logits, strict=True))
        block, at, drafts = self.canvas.block, self.process, list[Unmasking]()
        while len(at.canvas.masked()) and len(drafts) < self.width - 1:
            draft = self.draft(at)
            try:
                asked = draft.ask()
                needed = asked.places[wanted(asked)].tolist()
                if changes_cache(draft) or not all(place in known for place in needed):
                    break
                draft.take(np.stack([known[place] for place in needed]))
                if draft.canvas.block.start != block.start or not len(draft.canvas.masked()):
                    break
                draft.ask()
            except PacelineError:
                break  # old distributions may lead to where a constraint leaves nothing
            if changes_cache(draft):
                break
            drafts.append(draft)
            at = draft
        return drafts

    def draft(self, at: Unmasking) -> Unmasking:
        """Return a copy of a process that fills what is expected."""
        return at.fork()

    def forget(self) -> None:
        self.process.forget()
        self.drafts = []


def changes_cache(process: Unmasking) -> bool:
    """Return whether the forward that was just asked for keeps or drops keys."""
    return bool(process.planned.keep) or process.planned.drop is not None


def wanted(ask: Ask) -> IntArray:
    """Return int64, the rows whose logits are asked for."""
    return np.arange(len(ask.tokens)) if ask.wanted is None else ask.wanted


def same(one: Ask, other: Ask) -> bool:
    """Return whether two forwards over one cache have the same logits."""
    one, other = (ask._replace(wanted=wanted(ask)) for ask in (one, other))
    # None is equal to itself alone.
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))  # type: ignore[arg-type]


def side_by_side(asks: Sequence[Ask], held: int) -> Ask:
    """Return the rows of all, each of which sees its own ask, and of `held` keys what it asks."""
    if len(asks) == 1:
        return asks[0]
    starts = np.cumsum([0, *(len(ask.tokens) for ask in asks)])
    sees = np.zeros((starts[-1], starts[-1]), dtype=np.bool_)
    for start, stop, ask in zip(starts, starts[1:], asks, strict=False):
        sees[start:stop, start:stop] = ask.sees
    cached = [np.full(len(a.tokens), held) if a.cached is None else a.cached for a in asks]
    return asks[0]._replace(
        tokens=np.concatenate([ask.tokens for ask in asks]),
        places=np.concatenate([ask.places for ask in asks]),
        sees=sees,
        wanted=np.concatenate([wanted(ask) + at for at, ask in zip(starts, asks, strict=False)]),
        cached=np.concatenate(cached),
    )

"""Drafter cascade by price: the cheapest part always drafts, a dearer one only where it should add
more tokens per second (`worth.py`). Drafts are merged by calibrated scores (`agreement.py`).
Choices precede verification and drafts have no distribution, so every guarantee holds. In batches
the first part drafts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from functools import reduce
from operator import attrgetter
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np

from paceline import tree as trees
from paceline.calibration import corrected
from paceline.drafters.agreement import weighed
from paceline.drafters.alone import Alone
from paceline.drafters.base import Drafter
from paceline.drafters.parts import Parts, together
from paceline.drafters.worth import Worth, mean
from paceline.errors import InvalidOption
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, Needs, TokenTree, Verdict

# From this temperature on earlier text says little of what is drawn: parts that do not follow the
# Gumbel noise are skipped if one does (`docs/results.md`, trained drafters).
_FREE = 0.9

# Acceptance probability from which on a node is drafted beside a better draft.
_BESIDE = 0.1

_NOTHING = Budget(0, 0)


class _Made(NamedTuple):
    # A non-empty draft of a part: `gain` expected accepted tokens, scores calibrated by `keeps`.

    gain: float
    part: int
    keeps: float
    draft: TokenTree

    def corrected(self) -> TokenTree:
        if self.draft.scores is None:
            return self.draft
        draft, scores = self.draft, corrected(self.draft.scores.tolist(), self.keeps)
        named = draft.source, np.array(scores), draft.origins
        return TokenTree(draft.tokens, draft.parents, draft.law, *named)


class Prefer(Parts):
    """Run its parts in order of price, each only where it should pay."""

    name: ClassVar[str] = "prefer"

    def __init__(self, parts: List[Drafter], *, clock: Callable[[], float] = perf_counter) -> None:
        """Set the order.

        Args:
            parts: the drafters, the cheapest first.
            clock: seconds, from any start.

        Raises:
            InvalidOption: fewer than two or too many, or one that reports a distribution: the
                choice between drawn drafts must not depend on what was drawn.
        """
        super().__init__([*parts[:1], *map(_spared, parts[1:])])
        drawn = next((part for part in parts if part.kind is not None), None)
        if drawn is not None:
            raise InvalidOption(
                f"drafter '{drawn.name}' draws {drawn.kind} drafts for this verifier, and drafts "
                "with a law cannot be compared: use verifier 'coupled'"
            )
        hearing = [part for part in self.parts if not isinstance(part, Alone)]
        self._shared_needs = together([part.needs for part in hearing])
        self._follows = any(part.follows_noise for part in self.parts)
        self._clock = clock
        self._begin = self._extra = 0.0
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._worth = [Worth() for _ in self.parts]
        self._made: list[_Made] = []
        self._asked: list[tuple[int, float]] = []  # parts, and what was promised before
        self._step = 0.0

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        return self.needs if len(sequences) == 1 else self._shared_needs

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if len(sequences) == 1:
            return [self._propose(sequences, budgets[0])]
        for worth in self._worth[1:]:
            worth.passed_over(0.0)
        first, *others = self.parts
        for part in others:
            part.propose(sequences, [_NOTHING] * len(sequences))
        return first.propose(sequences, budgets)

    def _propose(self, alone: List[Sequence], budget: Budget) -> TokenTree:
        self._begin = self._clock()
        made, highest = self._made, 0.0
        made.clear()
        self._asked.clear()
        self._extra = 0.0
        wanted = bool(budget.nodes and budget.depth)
        drawn = self._follows and alone[0].params.temperature >= _FREE
        for index, part in enumerate(self.parts):
            worth = self._worth[index]
            asked = wanted and (part.follows_noise or not drawn)
            asked = asked and (not isinstance(part, Alone) or part.knows(alone[0]))
            if not asked or (index and not worth.pays(highest, self._step)):
                worth.passed_over(highest)
                part.propose(alone, [_NOTHING])
                continue
            begin = self._clock()
            [draft] = part.propose(alone, [budget])
            seconds = self._clock() - begin
            worth.asked(highest, seconds)
            self._extra += seconds if index else 0.0
            self._asked.append((index, highest))
            keeps = worth.keeps.factor(alone[0].id)
            gain = keeps * _promised(draft)
            if len(draft):
                made.append(_Made(gain, index, keeps, draft))
                highest = max(highest, gain)
        if drawn and len(made) == 1:  # there is nothing to weigh it with, in any step
            self._asked.clear()
            return made.pop().draft
        return self._union(budget)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        # The dearest part first, since it may begin to draft meanwhile.
        for part in reversed(self.parts):
            part.observe(sequences, drafts, verdicts, outputs)
        if len(sequences) == 1:
            seconds = self._clock() - self._begin - self._extra
            self._step = mean(self._step or seconds, seconds)
            path, token = verdicts[0]
            self._judge(sequences[0].id, [*map(drafts[0].tokens.item, path), token])

    def close(self, sequence: Sequence) -> None:
        for worth in self._worth:
            worth.keeps.close(sequence.id)
        super().close(sequence)

    def _union(self, budget: Budget) -> TokenTree:
        # Without scores: the draft with most expected accepted tokens.
        if not self._made:
            return trees.EMPTY
        drafts = [each.corrected() for each in self._made]
        if any(draft.scores is None for draft in drafts):
            return max(self._made, key=attrgetter("gain")).draft
        least = max(budget.least, _BESIDE)
        union = reduce(lambda copy, other: weighed(copy, other, least), drafts)
        return union if len(union) <= budget.nodes else trees.head(union, budget.nodes)

    def _judge(self, id: int, committed: list[int]) -> None:
        rights = {each.part: trees.follow(each.draft, committed) for each in self._made}
        most = 0
        for part, gain in self._asked:
            right = rights.get(part, 0)
            self._worth[part].learn(gain, max(0, right - most))
            most = max(most, right)
        for each in self._made:
            right = rights[each.part]
            known = each.draft
            if right == len(committed):  # what comes behind it is not known yet
                known = trees.limit(known, len(known), right)
            promised = _promised(known)
            if promised > 0:
                self._worth[each.part].keeps.learn(id, right, promised)
        self._made.clear()


def _spared(part: Drafter) -> Drafter:
    # Costs batches no features if the part tolerates gaps.
    return Alone(part) if part.needs.features and part.bears_gaps else part


def _promised(draft: TokenTree) -> float:
    # Expected accepted tokens by the draft's own scores; without scores, half of a chain.
    if draft.scores is None:
        return 0.5 * len(draft)
    scores: list[float] = draft.scores.tolist()  # few: a list is sooner summed than an array
    return sum(scores)

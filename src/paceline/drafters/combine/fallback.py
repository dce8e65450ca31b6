"""Drafter cascade by price: the cheapest part always drafts; of dearer ones first that one which
should bring most tokens per second, and another beside it only where it adds more than it costs.
Drafts are merged by calibrated scores.
Choices precede verification and drafts have no distribution, so every guarantee holds. In batches
the first part drafts alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from operator import mul
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import Budget, Needs, TokenTree
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, refuse_drawn, union_needs
from paceline.policy.acceptance import Calibration, DecayedMean, DepthRates, corrected
from paceline.policy.constants import (
    ADDED,
    ADDED_BELIEF,
    BEGIN,
    BESIDE,
    DEPTH_ABOVE_BELIEF,
    DEPTH_MEMORY,
    DRAFT_OUTLIER,
    FEW_DRAFTS,
    FEW_LEVELS,
    FEW_UNREAD,
    FREE_TEMPERATURE,
    GAIN_EDGES,
    GATE_MEMORY,
    JUDGED,
    READ_FOR,
    READING_MEMORY,
    SECOND_RETRY,
    STEP_MEMORY,
    TOKEN_PRIOR,
    TRIAL_COUNTS,
    TRIALS,
)
from paceline.policy.draft_gate import DraftCost, DraftGate
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.union import weighed

_NOTHING = Budget(0, 0)

# Depths with rates of their own, for drafts without scores.
LEVELS = 16


class PartEstimates:
    """What a part's drafts bring and cost, of late.

    Attributes:
        calibration: acceptance ratios.
        cost: seconds of a draft.
        level: seconds of one level of it.
        reading: seconds per token that is read before a draft.
        rows: nodes of it that are verified.
        added: tokens accepted beyond those of the cheapest part.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.cost = DraftCost()
        self.level, self.rows, self.added = (DecayedMean(GATE_MEMORY) for _ in range(3))
        self.reading = DecayedMean(READING_MEMORY)
        self.scores = True  # whether its drafts have any
        self._depths = DepthRates(LEVELS, DEPTH_MEMORY)
        self.drafts, self._begun = 0, 0.0
        # By what they are drafted beside: the cheapest part alone, or another dear one too.
        self._gates = [
            [DraftGate(0.0, 0.0, SECOND_RETRY, SECOND_RETRY) for _ in (0.0, *GAIN_EDGES)]
            for _ in range(2)
        ]

    def reach(self) -> list[float]:
        """Return the chance of a drafted token by depth, as it was of late."""
        return list(accumulate(self._depths.falling(TOKEN_PRIOR, DEPTH_ABOVE_BELIEF), mul))

    def scored(self, draft: TokenTree) -> TokenTree:
        """Return a draft with scores: of one that has none, those of its depths."""
        self.scores = draft.scores is not None or (self.scores and not len(draft))
        if self.scores or not len(draft):
            return draft
        reach = self.reach()
        chances = [reach[min(depth, len(reach)) - 1] for depth in trees.depths(draft).tolist()]
        return replace(draft, scores=np.array(chances))

    def gate(self, gain: float, beside: bool = False) -> DraftGate:
        """Return the gate for drafts added to `gain` expected tokens, `beside` another dear part's.

        Its gain is in accepted tokens beyond those.
        """
        return self._gates[beside][bisect_right(GAIN_EDGES, gain)]

    def adds(self, gain: float, beside: bool = False) -> float:
        """Return the tokens that a draft should add to `gain` expected ones."""
        known = self.added.shrunk(ADDED, ADDED_BELIEF)
        return self.gate(gain, beside).gain.shrunk(known, ADDED_BELIEF)

    def price(self, plain: float, row: float, unread: int = 0, drafts: int = 1) -> float:
        """Return what a draft takes, verified, in plain steps of `plain` seconds.

        It is one of `drafts` that come after reading so many tokens; `row` is a node's share.
        """
        reading = self.reading.mean * unread / max(drafts, 1)
        return (self.cost.value + reading) / plain + row * self.rows.mean if plain else 0.0

    def pays(self, gain: float, price: float, row: float = 0.0, *, beside: bool = False) -> bool:
        """Return whether drafting beside `gain` expected tokens should raise tokens per second."""
        return self.adds(gain, beside) * (1 + row * gain) >= price * (1 + gain)

    def due(
        self, gain: float, plain: float, trial: float, *, beside: bool = False, steps: int = 1
    ) -> bool:
        """Count steps without a draft, and return whether to try one that should not pay.

        At the beginning, and then from time to time: the more rarely, the more steps it takes.
        """
        gate = self.gate(gain, beside)
        gate.waited += steps
        if self.drafts < FEW_DRAFTS or (self.drafts <= JUDGED and self._begun < BEGIN * plain):
            return True
        return gate.waited >= max(SECOND_RETRY, trial / TRIALS)

    def verified(self, id: int, draft: TokenTree, right: int) -> None:
        """Learn from as much of a draft as is known, of which so many tokens in a row are right."""
        self._depths.add(trees.deepest(draft), right)
        predicted = _expected_accepted(draft)
        if predicted > 0:
            self.calibration.learn(id, right, predicted)

    def spent(self, seconds: float, unread: int, levels: int) -> None:
        """Note a draft's time, how many tokens had to be read for it, and its depth."""
        self.drafts += 1
        self._begun += seconds if self.drafts > 1 else 0.0  # the first has much to make ready
        if unread > FEW_UNREAD and self.cost.begun:
            self.reading.add(max(0.0, seconds - self.cost.value) / unread)
            return
        self.cost.add(seconds)
        if levels and self.drafts > 1:
            self.level.add(min(seconds, DRAFT_OUTLIER * self.cost.value) / levels)


class _Made(NamedTuple):
    # A non-empty draft of a part: `gain` expected accepted tokens after calibration by `ratio`.

    gain: float
    part: int
    ratio: float
    draft: TokenTree

    def corrected(self) -> TokenTree:
        assert self.draft.scores is not None
        scores = corrected(self.draft.scores.tolist(), self.ratio)
        return replace(self.draft, scores=np.array(scores))


class FallbackDrafter(CompositeDrafter):
    """Run its parts in order of price, each only where it should pay."""

    name: ClassVar[str] = "prefer"

    def __init__(
        self, parts: Sequence[Drafter], *, clock: Callable[[], float] = perf_counter
    ) -> None:
        """Set the order.

        Args:
            parts: the drafters, the cheapest first.
            clock: seconds, from any start.

        Raises:
            InvalidOption: fewer than two or too many, or one that reports a distribution: the
                choice between drawn drafts must not depend on what was drawn.
        """
        super().__init__(parts)
        refuse_drawn(parts, "compared")
        # What reads features and tolerates gaps is spared batches, which then compute none.
        self._spared = [
            i > 0 and p.needs.features and p.tolerates_gaps for i, p in enumerate(parts)
        ]
        self._hearing = [p for p, spared in zip(parts, self._spared, strict=True) if not spared]
        self._shared_needs = union_needs([part.needs for part in self._hearing])
        self._behind: set[int] = set()  # sequences whose last step was a batch's
        self._follows = any(part.gumbel_coupled for part in self.parts)
        self._clock = clock
        self._begin = self._extra = self._row = 0.0
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._estimates = [PartEstimates() for _ in self.parts]
        self._made: list[_Made] = []
        self._unasked = 0  # steps since drafts were asked for
        self._asked: list[tuple[int, float]] = []  # parts, and the expected tokens before them
        self._plain = DecayedMean(STEP_MEMORY)  # seconds of a step without nodes
        self._rate = DecayedMean(STEP_MEMORY)  # tokens per second

    def needs_of(self, sequences: Sequence[Generation]) -> Needs:
        return self.needs if len(sequences) == 1 else self._shared_needs

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        if len(sequences) == 1:
            return [self._propose(sequences, budgets[0])]
        first, *others = self._hearing
        for part in others:
            part.propose(sequences, [_NOTHING] * len(sequences))
        return first.propose(sequences, budgets)

    def _propose(self, alone: Sequence[Generation], budget: Budget) -> TokenTree:
        self._begin = self._clock()
        made, highest = self._made, 0.0
        made.clear()
        self._asked.clear()
        self._extra = self.tried = 0.0
        self._row = budget.row
        wanted = bool(budget.nodes and budget.depth)
        steps = 1 + self._unasked  # that this one stands for
        self._unasked = 0 if wanted else steps
        drawn = self._follows and alone[0].params.temperature >= FREE_TEMPERATURE
        behind = alone[0].id in self._behind
        current = [i for i, spared in enumerate(self._spared) if not (spared and behind)]
        able = [i for i in current if wanted and (self.parts[i].gumbel_coupled or not drawn)]
        for index in set(current) - set(able):
            self.parts[index].propose(alone, [_NOTHING])
        while able:
            index = self._next(able, alone[0], highest, budget.row)
            able.remove(index)
            part, estimates = self.parts[index], self._estimates[index]
            unread = part.unread(alone[0])
            asked, tried = budget, False
            if index:
                beside = any(part for part, *_ in self._asked)
                gate, row = estimates.gate(highest, beside), budget.row
                price = self._price(index, alone[0], row)
                if not estimates.pays(highest, price, row, beside=beside):
                    trial = estimates.price(self._plain.mean, row, unread)
                    tried = estimates.due(
                        highest, self._plain.mean, trial, beside=beside, steps=steps
                    )
                    if not tried:
                        part.propose(alone, [_NOTHING])
                        continue
                gate.steps, gate.waited = 1 + gate.waited, 0
                asked = self._sized(budget, estimates, alone[0])
            begin = self._clock()
            [draft] = map(estimates.scored, part.propose(alone, [asked]))
            seconds = self._clock() - begin
            estimates.spent(seconds, unread, trees.deepest(draft))
            self.tried += seconds if tried else 0.0
            self._extra += seconds if index else 0.0
            self._asked.append((index, highest))
            ratio = estimates.calibration.factor(alone[0].id)
            gain = ratio * _expected_accepted(draft)
            if len(draft):
                made.append(_Made(gain, index, ratio, draft))
                highest = max(highest, gain)
        if drawn and len(made) == 1:  # there is nothing to weigh it with, in any step
            self._asked.clear()
            return made.pop().draft
        return self._union(budget)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        for part in self.parts if len(step) == 1 else self._hearing:
            part.observe(step)
        if len(step) > 1:
            self._behind.update([each.sequence.id for each in step])
        else:
            sequence, draft, (path, token), _ = step[0]
            self._behind.discard(sequence.id)
            seconds = self._clock() - self._begin - self._extra
            nodes = len(draft)
            for each in self._made:
                if each.part:
                    names = {each.draft.source, *each.draft.origins}
                    rows = sum(draft.origin(node) in names for node in range(nodes))
                    self._estimates[each.part].rows.add(rows)
            self._plain.add(seconds / (1 + self._row * nodes))
            self._rate.add(1 + len(path), seconds + self._extra)
            self._judge(sequence.id, [*map(draft.tokens.item, path), token])

    def close(self, sequence: Generation) -> None:
        for estimates in self._estimates:
            estimates.calibration.close(sequence.id)
        self._behind.discard(sequence.id)
        super().close(sequence)

    def _next(self, able: list[int], sequence: Generation, gain: float, row: float) -> int:
        # The cheapest part first, then that which should bring most tokens per second.
        if len(able) == 1 or not able[0]:
            return able[0]

        def rate(index: int) -> float:
            tokens = 1 + gain + self._estimates[index].adds(gain)
            return tokens / (1 + row * gain + self._price(index, sequence, row))

        return max(able, key=rate)

    def _price(self, index: int, sequence: Generation, row: float) -> float:
        unread, drafts = self.parts[index].unread(sequence), min(READ_FOR, sequence.room)
        return self._estimates[index].price(self._plain.mean, row, unread, drafts)

    def _sized(self, budget: Budget, estimates: PartEstimates, sequence: Generation) -> Budget:
        # A level must gain more tokens than its time is worth, as tokens have come of late.
        if estimates.drafts < FEW_DRAFTS:  # not yet known what a level takes
            return replace(budget, depth=min(budget.depth, FEW_LEVELS))
        ratio = estimates.calibration.factor(sequence.id)
        worth = estimates.level.mean * self._rate.mean / max(ratio, 0.1)
        least = max(budget.least, min(worth, 1.0))
        if estimates.scores:
            return replace(budget, least=least)
        depth = 1 + sum(chance >= least for chance in estimates.reach()[: budget.depth - 1])
        return replace(budget, depth=min(depth, budget.depth), least=least)

    def notes(self) -> list[str]:
        lines = super().notes()
        for part, known in list(zip(self.parts, self._estimates, strict=True))[1:]:
            price = known.price(self._plain.mean, self._row)
            found = f"{known.added.mean:.2f} tokens more each, for {price:.2f} of a plain step"
            rests = known.drafts and not known.pays(0.0, price)
            why = f": {found}{', so it rests' if rests else ''}" if known.drafts else ""
            lines.append(f"{part.name} drafted {known.drafts} times{why}")
        return lines

    def _union(self, budget: Budget) -> TokenTree:
        if not self._made:
            return trees.EMPTY
        drafts = [each.corrected() for each in self._made]
        least = max(budget.least, BESIDE)
        union = reduce(lambda copy, other: weighed(copy, other, least), drafts)
        return union if len(union) <= budget.nodes else trees.head(union, budget.nodes)

    def _judge(self, id: int, committed: list[int]) -> None:
        rights = {each.part: trees.follow(each.draft, committed) for each in self._made}
        # What was not verified has brought nothing. Of all so far, and of the cheapest part alone:
        most = first = 0
        cheap, others = 0.0, False
        for part, gain in self._asked:
            right = min(rights.get(part, 0), len(committed) - 1)
            estimates = self._estimates[part]
            if not part:
                most = first = right
                continue
            cheap = cheap if others else gain
            times = min(estimates.gate(gain, others).steps, TRIAL_COUNTS)
            estimates.added.add(max(0, right - first))
            estimates.gate(cheap).learn(max(0, right - first), times)
            if others:
                estimates.gate(gain, others).learn(max(0, right - most), times)
            most, others = max(most, right), True
        for each in self._made:
            right = rights[each.part]
            known = each.draft
            if right == len(committed):  # what comes after it is not known yet
                known = trees.limit(known, len(known), right)
            self._estimates[each.part].verified(id, known, right)
        self._made.clear()


def _expected_accepted(draft: TokenTree) -> float:
    # Few: a list is sooner summed than an array.
    return 0.0 if draft.scores is None else sum(draft.scores.tolist())

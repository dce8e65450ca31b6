"""Drafter cascade by price: the cheapest part always drafts, a dearer one only where it should add
more tokens per second. Drafts are merged by calibrated scores.
Choices precede verification and drafts have no distribution, so every guarantee holds. In batches
the first part drafts alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from functools import reduce
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, LogitArray, Needs, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import CompositeDrafter, refuse_drawn, union_needs
from paceline.policy.acceptance import Calibration, DecayedMean, corrected
from paceline.policy.constants import (
    ADDED,
    ADDED_BELIEF,
    AGREEING,
    BESIDE,
    BLIND_LEVELS,
    FREE_TEMPERATURE,
    GAIN_EDGES,
    SECOND_RETRY,
    STEP_MEMORY,
    TOKEN_PRIOR,
    TRIALS,
)
from paceline.policy.draft_gate import DraftCost, DraftGate
from paceline.sampling.sequence import Sequence

# Wrapper that restricts a drafter to batch size 1, so that batches compute no features for it.

_NEEDS = Needs()


class SingleSequenceOnly(Drafter):
    """Passes only single-sequence steps to a drafter, which must tolerate gaps."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name  # type: ignore[misc]  # it stands for that one
        self.needs = drafter.needs
        self.kind = drafter.kind
        self.gumbel_coupled = drafter.gumbel_coupled
        self._drafter = drafter
        self._behind: set[int] = set()

    def reset(self) -> None:
        self._drafter.reset()

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        return self.needs if len(sequences) == 1 else _NEEDS

    def knows(self, sequence: Sequence) -> bool:
        """Return whether the drafter has seen the end of the sequence."""
        return sequence.id not in self._behind

    def open(self, sequence: Sequence) -> None:
        self._drafter.open(sequence)

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        self._drafter.read(sequence, features)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if len(sequences) == 1 and self.knows(sequences[0]):
            return self._drafter.propose(sequences, budgets)
        return [trees.EMPTY] * len(sequences)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        if len(sequences) == 1:
            self._behind.discard(sequences[0].id)
            self._drafter.observe(sequences, drafts, verdicts, outputs)
        else:
            self._behind.update([each.id for each in sequences])

    def close(self, sequence: Sequence) -> None:
        self._behind.discard(sequence.id)
        self._drafter.close(sequence)


# Union of a copied draft and a network draft, with combined acceptance probabilities
# (estimates).


def weighed(copy: TokenTree, other: TokenTree, least: float) -> TokenTree:
    """Merge two drafts with scores, that of more expected accepted tokens first.

    `other` knows more. Nodes of the second draft need a combined probability above `least`.
    """
    builder = trees.Builder.of(copy)
    tokens, parents = builder.tokens, builder.parents
    copied = _given_parents(copy)
    places = builder.graft(other)
    predicted = dict(zip(places, _given_parents(other), strict=True))
    scores = _together(copied, predicted, parents)
    count = len(copied)
    if sum(scores[:count]) >= sum(map(scores.__getitem__, places)):
        order = [*range(count), *(n for n in places if n >= count and scores[n] > least)]
    else:
        order = [*places, *(n for n in range(count) if n not in predicted and scores[n] > least)]
    moved = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
    mine = copy.origins or (copy.source,) * count
    theirs = dict(zip(places, other.origins or (other.source,) * len(places), strict=True))
    named = [mine[node] if node < count else theirs[node] for node in order]
    return TokenTree(
        np.array([tokens[node] for node in order], dtype=np.int64),
        np.array([moved[parents[node]] for node in order], dtype=np.int64),
        source=named[0],
        scores=np.array([scores[node] for node in order]),
        origins=tuple(named) if len(set(named)) > 1 else (),
    )


def _given_parents(draft: TokenTree) -> list[float]:
    # Conditional probability of each node given its parent.
    assert draft.scores is not None
    scores, parents = draft.scores.tolist(), draft.parents.tolist()
    reached = [*scores, 1.0]  # that of the root stands at its index, -1
    return [
        score / reached[parent] if reached[parent] else 0.0
        for score, parent in zip(scores, parents, strict=True)
    ]


def _together(
    copied: list[float], predicted: Mapping[int, float], parents: list[int]
) -> list[float]:
    # Combined acceptance probability of each node of the union; nodes of the copy come first.
    surest: dict[int, float] = {}  # by parent that the other goes on from: what it is surest of,
    for node, probability in predicted.items():
        above = parents[node]
        surest[above] = max(surest.get(above, 0.0), probability)
    against = dict.fromkeys(surest, 0.0)  # what the copy says there that it does not,
    total = dict.fromkeys(surest, 0.0)  # and all of it together
    for node, above in enumerate(parents[: len(copied)]):
        if above in surest and node not in predicted:
            against[above] += copied[node]
    probabilities = copied + [0.0] * (len(parents) - len(copied))
    for node, above in enumerate(parents):
        if above not in surest:
            continue
        sure, doubt = surest[above], against[above]
        if node in predicted:
            agreeing = AGREEING * probabilities[node]
            probability = 1 - (1 - predicted[node]) * (1 - agreeing)
            probability *= 2 * (1 - doubt) / (2 - doubt * (1 + sure))
        else:
            probability = (
                probabilities[node] * (1 - sure) / (2 - doubt * (1 + sure))
                if sure
                else probabilities[node]
            )
        probabilities[node] = probability
        total[above] += probability
    scores: list[float] = []
    for probability, above in zip(probabilities, parents, strict=True):
        share = probability / max(1.0, total[above]) if above in total else probability
        scores.append(share * (scores[above] if above != ROOT else 1.0))
    return scores


_NOTHING = Budget(0, 0)


class PartEstimates:
    """Acceptance ratio of a part, seconds of its drafts, and the tokens that it adds to others."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.cost, self.last, self.levels = DraftCost(), 0.0, BLIND_LEVELS
        self._gates = [
            DraftGate(ADDED, ADDED_BELIEF, SECOND_RETRY, SECOND_RETRY) for _ in (0.0, *GAIN_EDGES)
        ]

    def gate(self, gain: float) -> DraftGate:
        """Return the gate for drafts beside one of `gain` expected tokens."""
        return self._gates[bisect_right(GAIN_EDGES, gain)]

    def pays(self, gain: float, step: float) -> bool:
        """Return whether drafting beside `gain` expected tokens should raise tokens per second.

        `step` is the seconds of a step in which only the first drafter runs.
        """
        price = self.cost.value / step if step else 0.0
        if step:  # the dearer, with all that it reads, the more rarely it is tried
            self.gate(gain).seldom(max(SECOND_RETRY, round(self.last / step / TRIALS)))
        return self.gate(gain).open(price * (1 + gain))


class _Made(NamedTuple):
    # A non-empty draft of a part: `gain` expected accepted tokens after calibration by `ratio`.

    gain: float
    part: int
    ratio: float
    draft: TokenTree

    def corrected(self) -> TokenTree:
        assert self.draft.scores is not None
        draft, scores = self.draft, corrected(self.draft.scores.tolist(), self.ratio)
        named = draft.source, np.array(scores), draft.origins
        return TokenTree(draft.tokens, draft.parents, draft.sampling, *named)


class FallbackDrafter(CompositeDrafter):
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
        super().__init__([*parts[:1], *map(_spare_batches, parts[1:])])
        refuse_drawn(parts, "compared")
        hearing = [part for part in self.parts if not isinstance(part, SingleSequenceOnly)]
        self._shared_needs = union_needs([part.needs for part in hearing])
        self._follows = any(part.gumbel_coupled for part in self.parts)
        self._clock = clock
        self._begin = self._extra = 0.0
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._estimates = [PartEstimates() for _ in self.parts]
        self._made: list[_Made] = []
        self._asked: list[tuple[int, float]] = []  # parts, and the expected tokens before them
        self._step = DecayedMean(STEP_MEMORY)

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        return self.needs if len(sequences) == 1 else self._shared_needs

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        if len(sequences) == 1:
            return [self._propose(sequences, budgets[0])]
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
        drawn = self._follows and alone[0].params.temperature >= FREE_TEMPERATURE
        for index, part in enumerate(self.parts):
            estimates = self._estimates[index]
            asked = wanted and (part.gumbel_coupled or not drawn)
            asked = asked and (not isinstance(part, SingleSequenceOnly) or part.knows(alone[0]))
            if not asked or (index and not estimates.pays(highest, self._step.mean)):
                part.propose(alone, [_NOTHING])
                continue
            begin = self._clock()
            sized = replace(budget, depth=min(budget.depth, estimates.levels))
            [raw] = part.propose(alone, [sized])
            draft, estimates.levels = _scored(raw), 99 if raw.scores is not None else BLIND_LEVELS
            seconds = estimates.last = self._clock() - begin
            estimates.cost.add(seconds)
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

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        super().observe(sequences, drafts, verdicts, outputs)
        if len(sequences) == 1:
            seconds = self._clock() - self._begin - self._extra
            self._step.add(seconds)
            path, token = verdicts[0]
            self._judge(sequences[0].id, [*map(drafts[0].tokens.item, path), token])

    def close(self, sequence: Sequence) -> None:
        for estimates in self._estimates:
            estimates.calibration.close(sequence.id)
        super().close(sequence)

    def _union(self, budget: Budget) -> TokenTree:
        if not self._made:
            return trees.EMPTY
        drafts = [each.corrected() for each in self._made]
        least = max(budget.least, BESIDE)
        union = reduce(lambda copy, other: weighed(copy, other, least), drafts)
        return union if len(union) <= budget.nodes else trees.head(union, budget.nodes)

    def _judge(self, id: int, committed: list[int]) -> None:
        rights = {each.part: trees.follow(each.draft, committed) for each in self._made}
        most = 0
        for part, gain in self._asked:
            right = rights.get(part, 0)
            self._estimates[part].gate(gain).learn(max(0, right - most))
            most = max(most, right)
        for each in self._made:
            right = rights[each.part]
            known = each.draft
            if right == len(committed):  # what comes after it is not known yet
                known = trees.limit(known, len(known), right)
            predicted = _expected_accepted(known)
            if predicted > 0:
                self._estimates[each.part].calibration.learn(id, right, predicted)
        self._made.clear()


def _spare_batches(part: Drafter) -> Drafter:
    # Costs batches no features if the part tolerates gaps.
    return SingleSequenceOnly(part) if part.needs.features and part.tolerates_gaps else part


def _expected_accepted(draft: TokenTree) -> float:
    # Few: a list is sooner summed than an array.
    return 0.0 if draft.scores is None else sum(draft.scores.tolist())


def _scored(draft: TokenTree) -> TokenTree:
    # Without scores it could not be compared and pruned: as likely as tokens are at their depths.
    if draft.scores is not None or not len(draft):
        return draft
    return replace(draft, scores=np.power(TOKEN_PRIOR, trees.depths(draft), dtype=np.float64))

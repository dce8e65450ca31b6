"""Drafters from a model of the text with learned hit rates, and priors of copied continuations."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from paceline.core.types import Budget, ProbArray, TokenTree
from paceline.drafters.base import Drafter
from paceline.policy.acceptance import HitRates
from paceline.policy.constants import COPY_RATES, SHARED_RATES
from paceline.policy.draft_gate import DraftGate
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import FLOOR, CandidateTree, Offer


class Model(Protocol):
    """A text model."""

    @property
    def rates(self) -> HitRates: ...


class RatesOnly(NamedTuple):
    """Model of a drafter that copies."""

    rates: HitRates


AnyModel = TypeVar("AnyModel", bound=Model)


class CandidateDrafter(Drafter, Generic[AnyModel]):
    """Holds the open draft of each sequence. `reset`, called on creation, makes the model."""

    _model: AnyModel
    # True if it learns by ranking logits, which it then does in few steps without a draft.
    ranks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._guesses: dict[int, tuple[int, CandidateTree]] = {}
        self._gate = DraftGate.of_learning()
        self._nothing = CandidateTree().tree(self.name)
        self.reset()

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        if self.ranks and not self._gate.learns(budgets):
            return [self._nothing] * len(sequences)
        return super().propose(sequences, budgets)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        guess = self._guess(sequence, budget)
        self._guesses[sequence.id] = (len(sequence.tokens), guess)
        return guess.tree(self.name)

    def learn(self, verified: VerifiedDraft) -> None:
        if not self._left_out(verified.sequence):
            self._settle(verified.sequence)

    def close(self, sequence: Generation) -> None:
        self._guesses.pop(sequence.id, None)

    @abstractmethod
    def _guess(self, sequence: Generation, budget: Budget) -> CandidateTree: ...

    def _left_out(self, sequence: Generation) -> bool:
        return sequence.id not in self._guesses

    def _settle(self, sequence: Generation) -> tuple[int, CandidateTree]:
        # Scores the whole open draft, verified or not; returns the position after its root, too.
        begin, guess = self._guesses.pop(sequence.id)
        guess.learn(sequence.tokens[begin:], self._model.rates)
        return begin, guess


_EDGES = (2, 3, 4, 5, 6, 8, 12, 20)

_BUCKETS = tuple(bisect_right(_EDGES, length) for length in range(_EDGES[-1] + 1))

# Bins by match length.
LENGTHS = len(_EDGES) + 1

_SHARES = (0.1, 0.25, 0.5)


def length_kind(length: int) -> int:
    """Return the bin of a match length, 0 to `LENGTHS - 1`."""
    return _BUCKETS[length] if length <= _EDGES[-1] else LENGTHS - 1


def length_kinds(length: int, count: int) -> list[int]:
    """Return the bins of `count` consecutive match lengths from `length` on."""
    kinds = list(_BUCKETS[length : length + count])
    return kinds + [LENGTHS - 1] * (count - len(kinds))


def spread_kind(times: int, occurrences: int) -> int:
    """Return the bin of a continuation that followed `times` of `occurrences` occurrences.

    0 to 2: the only continuation, of one, two, or more occurrences. 3 to 6: one of several, with a
    share of at least half, a quarter, a tenth, or less.
    """
    if times == occurrences:
        return min(times, 3) - 1
    return 6 - bisect_right(_SHARES, times / occurrences)


def alone(trust: float = 1.0) -> ProbArray:
    """Return prior hit rates of only continuations, float64 `[LENGTHS]`, scaled by `trust`."""
    return trust * np.array(COPY_RATES)


def evidence_rates(*trusts: float) -> HitRates:
    """Return hit rates by (source, `length_kind`, `spread_kind`), with a prior trust per source."""
    tables = []
    for trust in trusts:
        miss = 1 - alone(trust)[:, None] * np.ones(7)
        miss[:, 1:3] *= 0.6, 0.25
        miss[:, 3:] = 1 - trust * np.array(SHARED_RATES)
        tables.append(1 - miss)
    return HitRates(np.array(tables), weight=16.0)


# Source, match length, occurrences with a continuation, and (token, count), the most frequent
# first.
Evidence = tuple[int, int, int, Sequence[tuple[int, int]]]


def weigh(
    evidence: Iterable[Evidence], rates: list[list[list[float]]], reach: float
) -> list[Offer]:
    """Return candidates from matches in order of trust; later ones share the remaining probability.

    Candidates whose path probability (`reach` included) is below `FLOOR` are left out.
    """
    offers: list[Offer] = []
    offered = set()
    left = 1.0
    for source, length, occurrences, followers in evidence:
        kind = length_kind(length)
        table = rates[source][kind]
        for token, times in followers:
            if token in offered:
                continue
            spread = spread_kind(times, occurrences)
            chance = left * table[spread]
            if chance * reach < FLOOR:
                break  # later ones are rarer
            offered.add(token)
            offers.append((token, chance, (source, kind, spread)))
            left -= chance
        if left * reach < FLOOR:
            break
    return offers

"""Retrieval drafts: REST (He et al. 2023, arXiv:2311.08252); RASD (arXiv:2503.03434).

Continuations of the longest suffix match in a suffix array form a trie. Learned hit rates rank
the nodes, not raw counts; a match of half the length fills the rest of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Self

from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.best_first import Guess, Offer
from paceline.drafters.evidence import TRUST, Evidence, evidence_rates, weigh
from paceline.drafters.suffix_array import LONGEST, SuffixArray
from paceline.errors import InvalidOption
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, TokenTree, Verdict

# Sampled occurrences per match.
_SAMPLE = 32

_TIMES = itemgetter(1)


@dataclass(slots=True)
class _Spot:
    # Occurrences of a context: `places` are the positions after them; `below` has the places one
    # token further, by that token, filled on expansion.

    length: int
    places: list[int]
    below: dict[int, list[int]] = field(default_factory=dict)


class Datastore(Drafter):
    """Drafts tries of continuations from an index on disk."""

    name: ClassVar[str] = "datastore"

    def __init__(self, index: SuffixArray) -> None:
        self._index = index
        self._guesses: dict[int, Guess] = {}
        self._known: dict[int, tuple[int, int]] = {}
        self.reset()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Open the index of option `index`. Raises InvalidOption if missing or unfit."""
        if set(context.options) != {"index"}:
            raise InvalidOption(
                "drafter 'datastore' needs an index and no other option: build one with `paceline "
                "index FILE --out DIR` and use drafter datastore:index=DIR"
            )
        path = Path(context.options["index"]).expanduser()
        index = SuffixArray(path)
        if index.manifest.vocab_size > context.target.vocab_size:
            raise InvalidOption(
                f"index {path} is for another tokenizer: build one for this model with "
                "`paceline index --model`"
            )
        return cls(index)

    def reset(self) -> None:
        self._rates = evidence_rates(TRUST)

    def open(self, sequence: Sequence) -> None:
        self._known[sequence.id] = (len(sequence.tokens), LONGEST)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        self._table = self._rates.table
        return [self._propose(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        for sequence in sequences:
            begin, _ = self._known[sequence.id]
            self._guesses.pop(sequence.id).learn(sequence.tokens[begin:], self._rates)

    def close(self, sequence: Sequence) -> None:
        self._guesses.pop(sequence.id, None)
        self._known.pop(sequence.id, None)

    def _propose(self, sequence: Sequence, budget: Budget) -> TokenTree:
        index, tokens = self._index, sequence.tokens
        # A match grows by no more than the tokens that were committed since the last one.
        before, length = self._known[sequence.id]
        length, begin, end = index.find(tokens[-LONGEST:], length + len(tokens) - before)
        self._known[sequence.id] = (len(tokens), length)
        spots = []
        if length:
            spots.append(self._spot(length, begin, end))
        if length > 1:
            shorter = length // 2
            spots.append(self._spot(shorter, *index.range(tokens[len(tokens) - shorter :])))
        guess = Guess.grow(spots, budget, self._offers, _follow)
        self._guesses[sequence.id] = guess
        return guess.tree(self.name)

    def _spot(self, length: int, begin: int, end: int) -> _Spot:
        return _Spot(length, [p + length for p in self._index.sample(begin, end, _SAMPLE)])

    def _offers(self, spots: list[_Spot], reach: float) -> list[Offer]:
        tokens, size = self._index.tokens, len(self._index.tokens)
        found: list[Evidence] = []
        for spot in spots:
            for place in spot.places:
                if place < size:
                    spot.below.setdefault(tokens[place], []).append(place + 1)
            followers = [(token, len(places)) for token, places in spot.below.items()]
            followers.sort(key=_TIMES, reverse=True)
            total = sum(times for _, times in followers)
            found.append((0, spot.length, total, followers))
        return weigh(found, self._table, reach)


def _follow(spots: list[_Spot], token: int) -> list[_Spot]:
    return [_Spot(s.length + 1, s.below[token]) for s in spots if token in s.below]

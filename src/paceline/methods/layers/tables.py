"""Tables as layers: enumeration of the drafters that run some of the target's layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.target import Layer, Output, Rows
from paceline.core.types import LogitArray
from paceline.drafters.base import Drafter
from paceline.methods.layers.sorted_exits import SortedExits
from paceline.methods.layers.swift import Swift
from paceline.proof.cases import Draftable, Proof, straight
from paceline.proof.tabular import LogitsOf, TabularModel, TabularTarget
from paceline.trees.drawn import Iid

LAYERS = 3
_ANOTHER = 8  # seed of a second partial table

Run = tuple[tuple[int, str], ...]


class LayeredTable(TabularTarget):
    """`Target` whose subsets of layers have tables of their own; all layers are the target.

    A state is the number of a context and the layers that were run for it. Going on from another's
    state raises ValueError.
    """

    def __init__(self, logits: LogitsOf, some: Sequence[LogitsOf], vocabulary: int) -> None:
        super().__init__(logits, vocabulary)
        self._some = some
        self._known: list[tuple[tuple[int, ...], Run]] = []

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        if layers is None:
            return super().forward(rows)
        run = _halves(layers)
        return [self._partly(each, run) for each in rows]

    def _partly(self, rows: Rows, run: Run) -> Output:
        # Of chains alone.
        tokens = rows.tokens
        rows.cache.forwarded = tuple(tokens[: rows.num_new]), rows.tree
        logits, states = [], []
        for row in range(len(tokens)):
            context = (*rows.cache.tokens, *tokens[: row + 1])
            done = run
            if rows.inputs is not None:
                known, before = self._known[int(rows.inputs[row, 0])]
                done = before + run
                if run and known != context:
                    raise ValueError(f"row {row} goes on from the state of {known}, not {context}")
                context = known
            self._known.append((context, done))
            states.append([len(self._known) - 1])
            logits.append(self._table(done)(context))
        made: LogitArray = np.stack(logits)
        return Output(made[rows.wanted_rows], state=np.array(states, dtype=np.float32))

    def _table(self, run: Run) -> LogitsOf:
        if run == _halves(range(LAYERS)):
            return self._logits
        return self._some[sum(2 * i + (half == "attention") for i, half in run) % len(self._some)]


def _halves(layers: Sequence[Layer]) -> Run:
    both = ("attention", "feed-forward")
    whole = ((each,) if isinstance(each, tuple) else ((each, b) for b in both) for each in layers)
    return tuple(half for each in whole for half in each)


def _swift(logits: LogitsOf, vocabulary: int) -> Drafter:
    # A trial after every step, so that the layers change from one to the next. Nothing asks it for
    # the whole target, which is the audit's.
    other = TabularModel(vocabulary, 4, seed=_ANOTHER)
    target = LayeredTable(logits, [logits, other.logits], vocabulary)
    return Swift(target, LAYERS, True, skip=0.5, stop=0.4, window=1, bayes=2)


def _sorted(logits: LogitsOf, vocabulary: int) -> Drafter:
    # The whole draft model, and exits of which one is a third model.
    other = TabularModel(vocabulary, 4, seed=_ANOTHER)
    model = LayeredTable(logits, [logits, other.logits], vocabulary)
    return SortedExits(model, LAYERS, vocabulary, Iid([1]), confidence=0.5)


SORTED = Proof((Draftable("sorted exits", "iid", "chain", straight, drafter=_sorted),))
SWIFT = Proof((Draftable("layer subset", "iid", "chain", straight, drafter=_swift),))

"""DEL (Zarch et al. 2025, arXiv:2504.05598): exit layer and draft length of every step from shadow
tokens.

A shadow token is what an exit would have drafted where the whole model decided. Here candidates
are some of the layers, shadow tokens are looked at in some of the steps, and the stopping
threshold is half-way between the confidence of shadow tokens that were right and wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import require, within
from paceline.core.target import NO_LOGITS, Output, Rows, Target
from paceline.core.types import LogitArray, ProbArray
from paceline.errors import OutOfMemory, PacelineError
from paceline.methods.layers.chains import ExitDrafter, GrowingChain, top_probability
from paceline.sampling.generation import Generation, VerifiedDraft


def tokens_per_layer(chance: ProbArray, exits: ProbArray, layers: int, most: int) -> ProbArray:
    """Return expected tokens of a step over the layers that it runs, float64 `[exits, most + 1]`.

    Entry (e, d) is for d tokens drafted by the first `exits[e]` of the layers, each right with
    probability `chance[e]` in [0, 1]: (1 + a + ... + a^d) / (d * exit + layers).
    """
    lengths = np.arange(most + 1)
    tokens = np.cumsum(chance[:, None] ** lengths, axis=1)
    out: ProbArray = tokens / (lengths * exits[:, None] + layers)
    return out


@dataclass(slots=True)
class Shadows:
    """How often shadow tokens were right, by exit, the newest counting most.

    Attributes:
        counts: float64 `[2, exits]`, of wrong and right ones.
        confidence: float64 `[2, exits]`, sums of the probabilities they had.
    """

    counts: ProbArray
    confidence: ProbArray

    def add(self, right: Sequence[bool], chances: Sequence[float], memory: float) -> None:
        """Add the shadow tokens of one position, by exit."""
        of = np.arange(len(right))
        self.counts *= memory
        self.confidence *= memory
        self.counts[np.asarray(right, dtype=np.int64), of] += 1
        self.confidence[np.asarray(right, dtype=np.int64), of] += chances

    @property
    def chance(self) -> ProbArray:
        """Return the share that was right, float64 `[exits]`; 0 before any was seen."""
        out: ProbArray = self.counts[1] / np.maximum(self.counts.sum(axis=0), 1e-9)
        return out

    def threshold(self, exit: int) -> float:
        """Return the confidence half-way between right and wrong tokens; 0 if one is unknown."""
        counts = self.counts[:, exit]
        if min(counts) < 1e-3:
            return 0.0
        return float((self.confidence[:, exit] / counts).mean())


class DynamicExit(ExitDrafter):
    """Draft with as many first layers, and as many tokens, as give most tokens per layer."""

    name: ClassVar[str] = "del"
    requires = "runtime cpu or torch; a model trained to exit early, best"
    paper = "after DEL, Zarch et al. 2025, arXiv:2504.05598"

    def __init__(
        self,
        target: Target,
        layers: int,
        needs_q: bool = False,
        *,
        spacing: int = 4,
        every: int = 4,
        memory: float = 0.95,
    ) -> None:
        """Set the candidates.

        Args:
            target: drafts and verifies.
            layers: of the target.
            needs_q: see `SelfDrafter`.
            spacing: layers from one candidate to the next.
            every: steps from one with shadow tokens to the next.
            memory: weight of a shadow token against that of the next position.

        Raises:
            InvalidOption: a value is out of range.
        """
        super().__init__(target, layers, needs_q)
        require(1 <= spacing < layers, "spacing", spacing, f"from 1 to {layers - 1}")
        require(every >= 1, "every", every, "1 or more")
        within("memory", memory, 0, 1)
        self.exits = tuple(range(spacing, layers, spacing))
        self._every, self._memory = every, memory
        self._scratch = target.open()
        self.reset()

    def reset(self) -> None:
        self._shadows: dict[int, Shadows] = {}
        self._chosen: dict[int, tuple[int, int]] = {}  # place of the exit, length
        self._states: dict[int, LogitArray] = {}  # by the cache's identity: [exits, rows, width]
        self._steps = 0

    def open(self, sequence: Generation) -> None:
        shape = 2, len(self.exits)
        self._shadows[sequence.id] = Shadows(np.zeros(shape), np.zeros(shape))

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._states.pop(id(sequence.cache), None)
        self._shadows.pop(sequence.id, None)
        self._chosen.pop(sequence.id, None)

    def _limit(self, sequence: Generation, most: int) -> int:
        exits = np.array(self.exits, dtype=np.float64)
        chance = self._shadows[sequence.id].chance
        value = tokens_per_layer(chance, exits, self._count, max(0, most))
        exit, length = divmod(int(value.argmax()), 1 + max(0, most))
        self._chosen[sequence.id] = exit, length
        return length

    def _exit(self, sequence: Generation) -> int:
        return self.exits[self._chosen[sequence.id][0]]

    def _stops(self, chain: GrowingChain, chance: float) -> bool:
        exit = self._chosen[chain.sequence.id][0]
        return chance < self._shadows[chain.sequence.id].threshold(exit)

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        self._steps += 1
        self._states.clear()
        plain = all(
            each.num_new == 1
            and not each.hidden
            and not each.features
            and (not each.tree or trees.is_chain(each.tree))
            for each in rows
        )
        if self._steps % self._every or not plain:
            return super().forward(target, rows)
        # Piece by piece, to see the state at every exit; what drafting has run is run again.
        states: list[list[LogitArray]] = [[] for _ in rows]
        going = [replace(each, wanted=NO_LOGITS) for each in rows]
        for begin, end in pairwise((0, *self.exits)):
            found = self._target.forward(going, tuple(range(begin, end)))
            for seen, output in zip(states, found, strict=True):
                seen.append(output.state.copy())
            going = [
                replace(each, inputs=seen[-1]) for each, seen in zip(going, states, strict=True)
            ]
        going = [replace(each, wanted=None) for each in going]
        found = self._target.forward(going, tuple(range(self.exits[-1], self._count)))
        for each, seen in zip(rows, states, strict=True):
            self._states[id(each.cache)] = np.stack(seen)
        return [Output(each.logits) for each in found]

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, _, verdict, _ = verified
        states = self._states.pop(id(sequence.cache), None)
        if states is None:
            return
        # A stop rule may have cut the run, which then ends the text.
        run = sequence.tokens[sequence.cache.length - len(verdict.path) :]
        rows = states[:, : min(len(verdict.path) + 1, len(run))]
        with suppress(OutOfMemory):
            self._look(sequence, run, rows)

    def _look(self, sequence: Generation, run: Sequence[int], states: LogitArray) -> None:
        exits, count, width = states.shape
        inputs = states.reshape(exits * count, width)
        places = np.zeros(len(inputs), dtype=np.int64)
        sees = np.eye(len(inputs), dtype=np.bool_)
        heads = Rows.block(self._scratch, places, places, sees, inputs=inputs)
        [found] = self._target.forward([heads], ())
        logits = found.logits.reshape(exits, count, -1)
        first = len(sequence.tokens) - len(run)
        for row, token in enumerate(run[:count]):
            right = [self._shadow(sequence, each[row], first + row) == token for each in logits]
            chances = [top_probability(each[row]) for each in logits]
            self._shadows[sequence.id].add(right, chances, self._memory)

    def _shadow(self, sequence: Generation, logits: LogitArray, position: int) -> int:
        if self.kind is not None or sequence.params.greedy:
            return int(logits.argmax())
        try:
            return sequence.sampler.sample(logits, (), position, sequence.randomness)
        except PacelineError:
            return -1

"""Bandit over drafters: picks one per sequence and step, by accepted tokens per second.

The choice uses past steps and its own random draws only, so it is predictable and exact for
p/q rules too. All drafters observe every step. Arm statistics: `paceline.controllers.arms`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from time import perf_counter
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.controllers.arms import Arms
from paceline.drafters.base import Drafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.parts import Parts
from paceline.errors import InvalidOption
from paceline.options import require
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import Budget, TokenTree, Verdict

# Prior tokens per step of an untried drafter.
_GUESS = 1.0

_NOTHING = Budget(0, 0)


class Choose(Parts):
    """Drafts with the drafter of the highest recent throughput for the sequence."""

    name: ClassVar[str] = "choose"

    def __init__(
        self,
        parts: List[Drafter],
        *,
        seed: int = 0,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Set the arms. Raises InvalidOption for a bad number of drafters, or mixed draft kinds."""
        super().__init__(parts)
        require(seed >= 0, "seed", seed, "0 or more")
        drafting = [part for part in parts if not isinstance(part, NoDrafter)]
        kinds = {part.kind for part in drafting}
        if len(kinds) > 1:
            named = ", ".join(f"'{p.name}' {p.kind or 'deterministic'}" for p in drafting)
            raise InvalidOption(
                f"for this verifier the drafters make drafts of different kinds ({named}): use "
                "verifier 'coupled', or drafters of one kind"
            )
        self.kind = kinds.pop() if kinds else None
        self._guess = np.array([0.0 if isinstance(p, NoDrafter) else _GUESS for p in parts])
        self._seed = seed
        self._clock = clock
        self._arms = Arms(len(parts), seed)
        self._chosen: dict[int, int] = {}
        self._begin = 0.0

    def reset(self) -> None:
        super().reset()
        self._arms = Arms(len(self.parts), self._seed)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        self._begin = self._clock()
        pairs = list(zip(sequences, budgets, strict=True))
        ids = [s.id for s, budget in pairs if budget.nodes > 0 and budget.depth > 0]
        arms = [range(len(self.parts))] * len(ids)
        self._chosen = dict(zip(ids, self._arms.choose(ids, arms, self._guess), strict=True))
        out = [trees.EMPTY] * len(pairs)
        for index, part in enumerate(self.parts):
            turns = [self._chosen.get(s.id) == index for s in sequences]
            asked = [b if turn else _NOTHING for b, turn in zip(budgets, turns, strict=True)]
            drafts = part.propose(sequences, asked)
            out = [d if turn else o for d, o, turn in zip(drafts, out, turns, strict=True)]
        return out

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        seconds = self._clock() - self._begin
        gained = {s.id: len(v.path) for s, v in zip(sequences, verdicts, strict=True)}
        ids = list(self._chosen)
        if ids:
            arms = list(self._chosen.values())
            self._arms.observe(ids, arms, [gained[id] for id in ids], seconds)
        super().observe(sequences, drafts, verdicts, outputs)

    def close(self, sequence: Sequence) -> None:
        super().close(sequence)
        self._arms.close(sequence.id)

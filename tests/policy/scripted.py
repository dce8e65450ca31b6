"""Drafters, texts and machines by script, on a clock that passes only when work is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.policy.controller import Controller
from paceline.policy.cost import SIZES, CostModel
from paceline.sampling.generation import Generation
from paceline.verifiers.base import walk

STEP = 10.0  # seconds of a plain forward: beside them the time of the code under test is nothing

Chance = Callable[[int], float]
"""From position to the chance that a token drafted there is right; 0 drafts nothing."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def truth(position: int) -> int:
    """The text."""
    return position * 7919 % 1000


class Scripted(Drafter):
    """Right by chance, at a price per draft, per level, and per token that it has not read."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        chance: Chance,
        *,
        draft: float = 0.0,
        level: float = 0.0,
        read: float = 0.0,
        blind: bool = False,
        seed: int = 0,
    ) -> None:
        self.name = name  # type: ignore[misc]
        self._clock, self._chance = clock, chance
        self._draft, self._level, self._reading = draft, level, read
        self._blind = blind  # says nothing of its chances, as draft models by default
        luck = np.random.default_rng([seed, *name.encode()])
        self._luck = luck.random(100_000)
        self._known: dict[int, int] = {}
        self.seconds = 0.0
        self.drafts = 0

    def unread(self, sequence: Generation) -> int:
        known = self._known.get(sequence.id, 0)
        return min(64, len(sequence.tokens) - known) if self._reading else 0

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        return [self._one(*each) for each in zip(sequences, budgets, strict=True)]

    def _one(self, sequence: Generation, budget: Budget) -> TokenTree:
        begin = len(sequence.tokens)
        chance = self._chance(begin)
        if not (budget.nodes and budget.depth):
            return trees.EMPTY
        spent = self._draft + self._reading * self.unread(sequence)
        self._known[sequence.id] = begin
        self.drafts += 1
        tokens: list[int] = []
        scores: list[float] = []
        while chance and len(tokens) < min(budget.nodes, budget.depth):
            score = (scores[-1] if scores else 1.0) * chance
            if scores and score < budget.least and not self._blind:
                break
            place = begin + len(tokens)
            right = self._luck[(place + 7777 * sequence.id) % len(self._luck)]
            tokens.append(truth(place) if right < self._chance(place) else -1)
            scores.append(score)
            spent += self._level
        self._clock.now += STEP * spent
        self.seconds += STEP * spent
        said = None if self._blind else np.array(scores)
        return trees.chain(tokens, self.name, scores=said) if tokens else trees.EMPTY


@dataclass
class Machine:
    """A forward over n rows takes `c(n)` plain ones, times the hour's, times noise."""

    row: float
    hour: Callable[[float], tuple[float, float]] = lambda now: (1.0, 1.0)  # of all, of a row
    noise: float = 0.05
    per_sequence: float = 0.0

    def seconds(self, rows: int, sequences: int, now: float, luck: np.random.Generator) -> float:
        speed, row = self.hour(now)
        plain = 1 + self.row * (sequences - 1) + self.per_sequence * (sequences - 1)
        more = self.row * row * (rows - sequences)
        return STEP * speed * (plain + more) * float(1 + self.noise * luck.standard_normal())

    def costs(self) -> CostModel:
        return CostModel(SIZES, [STEP * (1 + self.row * (size - 1)) for size in SIZES])


@dataclass
class Run:
    """What was decoded, and how long it took."""

    tokens: int = 0
    seconds: float = 0.0
    sources: list[str | None] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def play(
    drafter: Drafter,
    controller: Controller | None,
    machine: Machine,
    clock: Clock,
    *,
    tokens: int = 1000,
    sequences: int = 1,
    prompt: int = 200,
    first: int = 0,
    seed: int = 0,
) -> Run:
    """Decode so many tokens for each sequence, ids from `first`; plainly without a controller."""
    luck = np.random.default_rng([seed, first])
    running = [
        Generation.start(
            id,
            [truth(place) for place in range(prompt + 13 * id)],
            SamplingParams(max_new_tokens=tokens),
        )
        for id in range(first, first + sequences)
    ]
    out, start = Run(), clock.now
    for each in running:
        drafter.open(each)
    while running:
        budgets = controller.budgets(running) if controller else [Budget(0, 0)] * len(running)
        budgets = [
            replace(b, depth=min(b.depth, s.room - 1))
            for s, b in zip(running, budgets, strict=True)
        ]
        begin = clock.now
        drafts = drafter.propose(running, budgets)
        drafting = clock.now - begin
        if controller:
            drafts = controller.select(running, drafts)
        rows = len(running) + sum(map(len, drafts))
        forward = machine.seconds(rows, len(running), clock.now, luck)
        clock.now += forward
        verdicts: list[Verdict] = []
        for sequence, draft in zip(running, drafts, strict=True):
            begin = len(sequence.tokens)
            verdict = walk(draft, lambda node, depth, begin=begin: truth(begin + depth))
            verdicts.append(verdict)
            sequence.tokens += [*map(draft.tokens.item, verdict.path), verdict.next_token]
            out.sources += [*map(draft.origin, verdict.path), None]
        step = step_of(running, drafts, verdicts)
        drafter.observe(step)
        if controller:
            controller.observe(step, drafting - drafter.tried, forward)
        for sequence in [each for each in running if each.room <= 0]:
            drafter.close(sequence)
            if controller:
                controller.close(sequence)
        running = [each for each in running if each.room > 0]
    out.tokens, out.seconds = len(out.sources), clock.now - start
    return out


def plain(machine: Machine, **settings: int) -> Run:
    return play(NoDrafter(), None, machine, Clock(), **settings)

"""A machine and a text, simulated: what a controller's choices commit, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import UNLIMITED, Budget, IntArray, SamplingParams, Speculation, Verdict
from paceline.policy.controller import Controller, Fixed
from paceline.sampling.generation import Generation

Acceptance = Callable[[int, int], float]
"""From step and sequence id to the chance that a drafted token stands, given those before it."""

SIZES = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class Machine:
    """Seconds of a step: one for the first row, `slope` per row more, `switch` for a new size.

    Up to `free` rows cost as much as one.
    """

    slope: float
    switch: float = 0.0
    free: int = 1

    def seconds(self, rows: int, last: int | None) -> float:
        changed = last is not None and rows != last
        return 1 + self.slope * max(0, rows - self.free) + self.switch * changed


@dataclass(frozen=True)
class Play:
    """Tokens per second, the sizes chosen `[steps, sequences]`, and seconds by step."""

    rate: float
    sizes: IntArray

    def share(self, size: int) -> float:
        return float((self.sizes == size).mean())


class Plain(Fixed):
    """Never drafts."""

    def __init__(self) -> None:
        super().__init__(0, 0)


def start(count: int, speculations: Sequence[Speculation] = ()) -> list[Generation]:
    rules = [*speculations, *[UNLIMITED] * count][:count]
    return [
        Generation.start(id, [1], SamplingParams(), speculation=rule)
        for id, rule in enumerate(rules)
    ]


def play(
    controller: Controller,
    machine: Machine,
    acceptance: Acceptance,
    *,
    sequences: int | Sequence[Generation] = 1,
    steps: int = 1500,
    seed: int = 0,
) -> Play:
    """Run a controller with drafts that are as long as it asks for."""
    running = start(sequences) if isinstance(sequences, int) else sequences
    generator = np.random.default_rng(seed)
    last: int | None = None
    tokens, total = 0, 0.0
    sizes = []
    for step in range(steps):
        budgets = [
            s.speculation.cap(budget)
            for s, budget in zip(running, controller.budgets(running), strict=True)
        ]
        lengths = [min(budget.nodes, budget.depth) for budget in budgets]
        verdicts = []
        for sequence, length in zip(running, lengths, strict=True):
            stood = generator.random(length) < acceptance(step, sequence.id)
            accepted = int(np.cumprod(stood).sum())
            verdicts.append(Verdict(tuple(range(accepted)), 0))
        rows = len(running) + sum(lengths)
        seconds = machine.seconds(rows, last) * (1 + 0.05 * generator.standard_normal())
        last = rows
        drafts = [trees.chain([0] * length) for length in lengths]
        controller.observe(step_of(running, drafts, verdicts), 0.0, seconds)
        tokens += len(running) + sum(len(verdict.path) for verdict in verdicts)
        total += seconds
        sizes.append(lengths)
    return Play(tokens / total, np.array(sizes))


def fixed_rates(machine: Machine, acceptance: Acceptance, sequences: int = 1) -> dict[int, float]:
    """Tokens per second of every fixed size."""
    return {
        size: play(
            Fixed(size, size) if size else Plain(), machine, acceptance, sequences=sequences
        ).rate
        for size in SIZES
    }


def within(budget: Budget, limit: Budget) -> bool:
    return 0 <= budget.nodes <= limit.nodes and 0 <= budget.depth <= limit.depth

"""A decoding step taken apart: what it spends on each part of the model and of the loop.

Steps are timed three ways, by turns. *Whole* steps have a clock around the forward at most. In
*clocked* steps every part of the loop has one, which costs microseconds. The *counted* inference
runs on an instance whose nodes count their own time; that slows it, so its figures are scaled to
the inference of the clocked steps. The parts should then add up to the whole, which was measured
apart: `closure` says how far they do. Figures of steps are means over the faster half of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean as mean
from typing import Any, TypeVar

import numpy as np

from paceline.bench.builtin import NOISE_TEXT
from paceline.bench.clocks import INFERENCE, PARTS, Clocks
from paceline.engine import Engine
from paceline.errors import InvalidOption
from paceline.text import Tokenizer

_STEPS = 6
"""Steps of each kind in a round."""

_PATIENCE = 20
"""Steps taken, at most, for one that counts: the drafter may have had nothing to propose."""

_GAPS = "between nodes"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Where the time of one kind of step goes.

    Attributes:
        rows: rows of the target's forward, the root included.
        context: tokens cached before the first step.
        steps: whole steps that the figures come from.
        seconds: of a whole step.
        parts: seconds by part, scaled to steps without counters.
        slowdown: by which counting makes the inference longer, as a share; None where the runtime
            does not count.
        covered: share of the counted inference that its nodes account for.
    """

    rows: int
    context: int
    steps: int
    seconds: float
    parts: dict[str, float]
    slowdown: float | None
    covered: float | None

    @property
    def closure(self) -> float:
        """Sum of the parts over the whole."""
        return sum(self.parts.values()) / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """The figures under the names that `--json` documents; times in milliseconds."""
        return {
            "rows": self.rows,
            "context": self.context,
            "steps": self.steps,
            "step_ms": 1000 * self.seconds,
            "parts": {
                part: {"ms": 1000 * seconds, "share": seconds / self.seconds}
                for part, seconds in self.parts.items()
            },
            "closure": self.closure,
            "counting_slowdown": self.slowdown,
            "covered_by_nodes": self.covered,
        }


def repetitive(tokenizer: Tokenizer, max_context: int) -> list[int]:
    """A prompt of 257 tokens, or half the context, that the model will go on repeating."""
    length = min(257, max_context // 2)
    return np.resize(np.asarray(tokenizer.encode(NOISE_TEXT), dtype=np.int64), length).tolist()


def profile(engine: Engine, prompt: Sequence[int], rows: int, rounds: int = 5) -> StepProfile:
    """Take apart the steps of an engine whose forward has exactly `rows` rows.

    Args:
        engine: with no request in flight. To see drafted steps, its controller is fixed to
            `rows - 1` nodes.
        prompt: a text that the drafter finds repetitions in; every round starts from it.
        rows: 1 for plain steps.
        rounds: repetitions; each has a few steps of each kind.

    Raises:
        InvalidOption: the drafter hardly ever makes drafts of that size.
    """
    engine.decoder.target.warm_up()
    bench = _Bench(engine, rows)
    counted: Any = None
    steps: list[float]
    booked: list[dict[str, float]]
    whole: list[float] = []
    clocked: list[dict[str, float]] = []
    for turn in range(rounds + 1):
        steps, booked = [], []
        with bench.request(prompt):
            for _ in range(_STEPS):  # side by side: the machine and the context change
                steps.append(sum(bench.step(("target",)).values()))
                booked.append(bench.step(PARTS))
            counted = bench.counted(rounds * _STEPS) if turn == rounds else None
        if turn:  # the first round warms up
            whole += steps
            clocked += booked
    whole, clocked = _quiet(whole, float), _quiet(clocked, lambda step: sum(step.values()))
    parts = {name: mean(step.get(name, 0.0) for step in clocked) for name in clocked[0]}
    slowdown = covered = None
    if counted is not None:
        inference, nodes = parts.pop(INFERENCE), sum(counted.groups.values())
        groups = {**counted.groups, _GAPS: max(0.0, counted.seconds - nodes)}
        scale = inference / sum(groups.values())
        parts = {g: scale * t for g, t in groups.items() if t} | parts
        slowdown, covered = counted.seconds / inference - 1, nodes / counted.seconds
    return StepProfile(rows, len(prompt) - 1, len(whole), mean(whole), parts, slowdown, covered)


def _quiet(runs: list[T], seconds: Callable[[T], float]) -> list[T]:
    """The faster half: what else went on on the machine falls on the slower one."""
    return sorted(runs, key=seconds)[: -(-len(runs) // 2)]


class _Bench:
    """Runs steps of one engine and keeps those of the wanted size."""

    def __init__(self, engine: Engine, rows: int) -> None:
        self._engine = engine
        self._rows = rows
        self._target = engine.decoder.target
        self._passes: Sequence[Any] = ()

    @contextmanager
    def request(self, prompt: Sequence[int]) -> Iterator[None]:
        """One request in flight, its first step done."""
        room = self._target.capabilities.max_context - len(prompt)
        number = self._engine.add(list(prompt), ignore_eos=True, max_new_tokens=room)
        try:
            while not any(event.token_ids for event in self._engine.step()):
                pass  # parts of the prompt
            yield
        finally:
            self._engine.cancel(number)

    def step(self, parts: Sequence[str]) -> dict[str, float]:
        """Seconds of a step of the wanted size, by those parts of the loop that are clocked."""
        for _ in range(_PATIENCE):
            if not self._engine.pending:
                raise InvalidOption("the context has no room for the steps: give a shorter prompt")
            with Clocks(self._engine.decoder, parts) as clocks:
                clocks.begin()
                self._engine.step()
                found = clocks.end()
            draft = clocks.passes[0].draft
            if 1 + (0 if draft is None else len(draft)) == self._rows:
                self._passes = clocks.passes
                return found
        raise InvalidOption(
            f"too few drafts of {self._rows - 1} tokens: give fewer rows or another drafter"
        )

    def counted(self, count: int) -> Any:
        """The last step's forward with counters; None where there are no counters."""
        count_nodes = getattr(self._target, "counted", None)
        return None if count_nodes is None else count_nodes(self._passes, count)

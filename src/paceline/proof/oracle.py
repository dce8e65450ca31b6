"""Exact enumeration: replay shipped code over every outcome of its draws.

`ScriptedRandomness` follows a script of outcomes, then takes the first possible outcome of each
draw and notes the alternatives, from which `outcomes` makes new scripts until none is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from paceline.core.types import ProbArray
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, Randomness

# Probability of every output.
Joint = dict[tuple[int, ...], float]

T = TypeVar("T")


class ReusedDraw(Exception):
    """One name was given to two different draws of a run, so keyed randomness would tie them."""


class ContinuousNoise(TypeError):
    """A run asks for continuous noise, which cannot be enumerated."""


@dataclass(frozen=True, slots=True)
class _Branch:
    weights: tuple[float, ...]
    taken: int


class ScriptedRandomness:
    """Draws that follow a script of outcomes.

    A repeated draw with the same name and weights repeats its outcome, as in the engine; with
    other weights it raises `ReusedDraw`.
    """

    def __init__(self, script: Sequence[int] = (), after: ScriptedRandomness | None = None) -> None:
        """Set the script, an index per draw with several outcomes, and earlier draws."""
        self.branches: list[_Branch] = []
        self._script = script
        self._named: dict[Draw, tuple[str, tuple[float, ...], int]] = (
            {} if after is None else dict(after._named)
        )

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        return self._take("choice", np.asarray(weights, dtype=np.float64), draw)

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return bool(self._take("bernoulli", np.array([1 - probability, probability]), draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return self._refuse(draw)

    def noise(self, draw: Draw) -> GumbelNoise:
        return self._refuse(draw)

    def _refuse(self, draw: Draw) -> NoReturn:
        raise ContinuousNoise(
            f"{draw} asks for noise, which is continuous and cannot be enumerated: "
            "use Monte-Carlo with KeyedRandomness"
        )

    def _take(self, kind: str, weights: ProbArray, draw: Draw) -> int:
        values = weights.tolist()
        total = math.fsum(values)
        if not (math.isfinite(total) and total > 0 and min(values) >= 0):
            raise ValueError(f"{draw} has weights that are no distribution: {weights}")
        distribution = tuple(value / total for value in values)
        known = self._named.get(draw)
        if known is not None:
            if known[:2] != (kind, distribution):
                raise ReusedDraw(f"{draw} names two different draws of one run")
            return known[2]
        index = self._next(distribution)
        self._named[draw] = (kind, distribution, index)
        return index

    def _next(self, distribution: tuple[float, ...]) -> int:
        possible = [index for index, weight in enumerate(distribution) if weight > 0]
        if len(possible) == 1:
            return possible[0]
        step = len(self.branches)
        taken = self._script[step] if step < len(self._script) else self._first(possible)
        self.branches.append(_Branch(distribution, taken))
        return taken

    def _first(self, possible: list[int]) -> int:
        return possible[0]


class _Probe(ScriptedRandomness):
    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__()
        self.combinations = 1
        self._generator = generator

    def _first(self, possible: list[int]) -> int:
        self.combinations *= len(possible)
        return possible[int(self._generator.integers(len(possible)))]


def estimate_runs(
    run: Callable[[Randomness], tuple[int, ...]], probes: int = 24, seed: int = 0
) -> float:
    """Estimate, without bias, the number of combinations of outcomes of `run`.

    The mean, over random descents, of the product of branching factors (Knuth 1975, "Estimating
    the efficiency of backtrack programs"). Raises as `outcomes`.
    """
    total = 0
    for index in range(probes):
        probe = _Probe(np.random.default_rng([seed, index]))
        run(probe)
        total += probe.combinations
    return total / probes


def outcomes(
    run: Callable[[Randomness], T],
    max_runs: int = 1_000_000,
    after: ScriptedRandomness | None = None,
) -> Iterator[tuple[T, float, ScriptedRandomness]]:
    """Run once per combination of outcomes; yield output, probability and draws.

    `run` takes all randomness from its argument, from the same state every time. Raises
    ReusedDraw, ContinuousNoise, or ValueError (weights not proper, or over `max_runs`).
    """
    scripts: list[tuple[int, ...]] = [()]
    runs = 0
    while scripts:
        script = scripts.pop()
        runs += 1
        if runs > max_runs:
            raise ValueError(f"more than {max_runs} combinations of outcomes: use a smaller model")
        randomness = ScriptedRandomness(script, after)
        output = run(randomness)
        branches = randomness.branches
        taken = tuple(branch.taken for branch in branches)
        yield output, math.prod(branch.weights[branch.taken] for branch in branches), randomness
        for step in range(len(script), len(branches)):
            others = enumerate(branches[step].weights)
            scripts += [
                (*taken[:step], index)
                for index, other in others
                if other > 0 and index != taken[step]
            ]


def enumerate_distribution(
    run: Callable[[Randomness], tuple[int, ...]], max_runs: int = 1_000_000
) -> Joint:
    """Return the exact distribution of `run`'s output; arguments and errors as for `outcomes`."""
    return add_up((output, weight) for output, weight, _ in outcomes(run, max_runs))


def add_up(weighted: Iterable[tuple[tuple[int, ...], float]]) -> Joint:
    """Sum the weights of equal outputs."""
    terms: dict[tuple[int, ...], list[float]] = {}
    for output, weight in weighted:
        terms.setdefault(output, []).append(weight)
    return {output: math.fsum(weights) for output, weights in terms.items()}

"""Exact enumeration: replay shipped code over every outcome of its draws.

`ScriptedRandomness` stands in for the engine's randomness. It follows a script of outcomes as far
as the script goes and then takes the first possible outcome of every further draw, noting the
alternatives. `enumerate_law` turns those notes into new scripts until every branch was taken, and
adds up the weights. What is enumerated is the code that ships, not a second derivation of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from paceline.noise import TokenNoise
from paceline.randomness import Draw, Randomness
from paceline.types import ProbArray

Joint = dict[tuple[int, ...], float]
"""Probability of every output."""

T = TypeVar("T")


class ReusedDraw(Exception):
    """One name was given to two different draws of a run, so keyed randomness would tie them."""


class ContinuousNoise(TypeError):
    """A run asks for continuous noise, which has no branches to enumerate."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """A draw that could have gone more than one way: its normalised weights and what was taken."""

    weights: tuple[float, ...]
    taken: int


class ScriptedRandomness:
    """Draws that follow a script of outcomes.

    A repeated draw with the same name and the same weights repeats its outcome, as it does in the
    engine. A repeated name with other weights raises `ReusedDraw`.
    """

    def __init__(self, script: Sequence[int] = (), after: ScriptedRandomness | None = None) -> None:
        """Set what comes.

        Args:
            script: the index to return at each draw that has more than one outcome.
            after: draws already made, which repeat if they are asked for again.
        """
        self.branches: list[_Branch] = []
        self._script = script
        self._named: dict[Draw, tuple[str, tuple[float, ...], int]] = (
            {} if after is None else dict(after._named)
        )

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        """The scripted index, or the first one with a positive weight."""
        return self._take("choice", np.asarray(weights, dtype=np.float64), draw)

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        """The scripted outcome, or False unless `probability` is one."""
        return bool(self._take("bernoulli", np.array([1 - probability, probability]), draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        """Raise ContinuousNoise."""
        return self._refuse(draw)

    def noise(self, draw: Draw) -> TokenNoise:
        """Raise ContinuousNoise."""
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
        law = tuple(value / total for value in values)
        known = self._named.get(draw)
        if known is not None:
            if known[:2] != (kind, law):
                raise ReusedDraw(f"{draw} names two different draws of one run")
            return known[2]
        index = self._next(law)
        self._named[draw] = (kind, law, index)
        return index

    def _next(self, law: tuple[float, ...]) -> int:
        possible = [index for index, weight in enumerate(law) if weight > 0]
        if len(possible) == 1:
            return possible[0]
        step = len(self.branches)
        taken = self._script[step] if step < len(self._script) else self._first(possible)
        self.branches.append(_Branch(law, taken))
        return taken

    def _first(self, possible: list[int]) -> int:
        """Which outcome to take where the script has ended."""
        return possible[0]


class _Probe(ScriptedRandomness):
    """Takes outcomes at random, all alike, and multiplies up how many there were."""

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
    """An unbiased estimate of how many combinations of outcomes `run` has.

    The mean, over random descents of the tree of outcomes, of the product of the branchings met
    (Knuth 1975, "Estimating the efficiency of backtrack programs").

    Args:
        run: as for `enumerate_law`.
        probes: number of descents.
        seed: of the descents.

    Raises:
        ContinuousNoise, ReusedDraw, ValueError: as `enumerate_law`.
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
    """Run once per combination of outcomes: what came out, its probability, and the draws.

    Args:
        run: takes all its randomness from its argument. It must start from the same state every
            time.
        max_runs: most combinations to try.
        after: draws that were made before and are given; their names are taken.

    Raises:
        ReusedDraw: two different draws of one run share a name.
        ContinuousNoise: the run asks for noise.
        ValueError: a draw has no proper weights, or there are more than `max_runs` combinations.
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


def enumerate_law(run: Callable[[Randomness], tuple[int, ...]], max_runs: int = 1_000_000) -> Joint:
    """The exact law of `run`'s output tokens; arguments and errors as for `outcomes`."""
    return add_up((output, weight) for output, weight, _ in outcomes(run, max_runs))


def add_up(weighted: Iterable[tuple[tuple[int, ...], float]]) -> Joint:
    """The law of outputs that came with their weights, equal ones together."""
    terms: dict[tuple[int, ...], list[float]] = {}
    for output, weight in weighted:
        terms.setdefault(output, []).append(weight)
    return {output: math.fsum(weights) for output, weights in terms.items()}

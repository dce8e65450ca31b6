"""Exact enumeration: replay shipped code over every outcome of its draws.

`ScriptedRandomness` stands in for the engine's randomness. It follows a script of outcomes as far
as the script goes and then takes the first possible outcome of every further draw, noting the
alternatives. `enumerate_law` turns those notes into new scripts until every branch was taken, and
adds up the weights. What is enumerated is the code that ships, not a second derivation of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.randomness import Draw, Randomness
from paceline.types import ProbArray

Joint = dict[tuple[int, ...], float]
"""Probability of every output."""


class ReusedDraw(Exception):
    """One name was given to two different draws of a run, so keyed randomness would tie them."""


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

    def __init__(self, script: Sequence[int] = ()) -> None:
        """Follow `script`: the index to return at each draw that has more than one outcome."""
        self.branches: list[_Branch] = []
        self._script = script
        self._named: dict[Draw, tuple[str, tuple[float, ...], int]] = {}

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        """The scripted index, or the first one with a positive weight."""
        return self._take("choice", np.asarray(weights, dtype=np.float64), draw)

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        """The scripted outcome, or False unless `probability` is one."""
        return bool(self._take("bernoulli", np.array([1 - probability, probability]), draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        """Raise TypeError: continuous noise has no branches to enumerate."""
        raise TypeError(
            f"{draw} asks for noise, which is continuous and cannot be enumerated: "
            "use Monte-Carlo with KeyedRandomness"
        )

    def _take(self, kind: str, weights: ProbArray, draw: Draw) -> int:
        total = math.fsum(weights)
        if not (np.isfinite(total) and total > 0 and weights.min() >= 0):
            raise ValueError(f"{draw} has weights that are no distribution: {weights}")
        law = tuple((weights / total).tolist())
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
        taken = self._script[step] if step < len(self._script) else possible[0]
        self.branches.append(_Branch(law, taken))
        return taken


def enumerate_law(run: Callable[[Randomness], tuple[int, ...]], max_runs: int = 1_000_000) -> Joint:
    """The exact law of `run`'s output, by running it once per combination of outcomes.

    Args:
        run: takes all its randomness from its argument and returns its output tokens. It must
            start from the same state every time.
        max_runs: most combinations to try.

    Raises:
        ReusedDraw: two different draws of one run share a name.
        TypeError: the run asks for continuous noise.
        ValueError: a draw has no proper weights, or there are more than `max_runs` combinations.
    """
    terms: dict[tuple[int, ...], list[float]] = {}
    scripts: list[tuple[int, ...]] = [()]
    runs = 0
    while scripts:
        script = scripts.pop()
        runs += 1
        if runs > max_runs:
            raise ValueError(f"more than {max_runs} combinations of outcomes: use a smaller model")
        randomness = ScriptedRandomness(script)
        output = run(randomness)
        branches = randomness.branches
        taken = tuple(branch.taken for branch in branches)
        weight = math.prod(branch.weights[branch.taken] for branch in branches)
        terms.setdefault(output, []).append(weight)
        for step in range(len(script), len(branches)):
            others = enumerate(branches[step].weights)
            scripts += [
                (*taken[:step], index)
                for index, other in others
                if other > 0 and index != taken[step]
            ]
    return {output: math.fsum(weights) for output, weights in terms.items()}

"""Exact enumeration: replay shipped code over every outcome of its draws.

`ScriptedRandomness` follows a script of outcomes, then takes the first possible outcome of each
draw and notes the alternatives, from which `outcomes` makes new scripts until none is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn, TypeVar

import numpy as np

from paceline.core.types import Distribution, IntArray, ProbArray
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


@dataclass(frozen=True)
class Excess:
    """Mass of (p - s q)+ as a function of s, in O(log V) after one sort.

    `ratios` are q / p of the target's tokens, ascending; `p` and `q` running sums, `[k + 1]`.
    """

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: Distribution, q: Distribution) -> Excess:
        mine, theirs = p.probs, q.at(p.ids)
        mine, theirs = mine[mine > 0], theirs[mine > 0]
        ratios = quotient(theirs, mine)
        order = np.argsort(ratios)
        zero = np.zeros(1)
        return cls(
            ratios[order],
            np.concatenate([zero, np.cumsum(mine[order])]),
            np.concatenate([zero, np.cumsum(theirs[order])]),
        )

    def mass(self, scales: ProbArray) -> ProbArray:
        with np.errstate(divide="ignore"):
            count = np.searchsorted(self.ratios, 1.0 / scales)
        return np.maximum(self.p[count] - scales * self.q[count], 0.0)


def quotient(first: ProbArray, second: ProbArray) -> ProbArray:
    """Return ratios of masses; infinite on overflow."""
    with np.errstate(over="ignore"):
        return first / second


@dataclass(frozen=True)
class Pools:
    """Tokens of q: the most likely as singles, the others in pools of similar q.

    `mean` is float64 `[singles + pools]`, the self-weighted mean of a token's draft mass.
    """

    p: ProbArray
    q: ProbArray
    pooled: tuple[_Pool, ...]
    mean: ProbArray

    @classmethod
    def of(cls, p: Distribution, q: Distribution, count: int) -> Pools:
        """Build about `count` singles and pools."""
        order = np.argsort(-q.probs, kind="stable")
        order = order[: int(np.count_nonzero(q.probs))]
        mine, theirs = p.at(q.ids)[order], q.probs[order]
        if len(order) <= count:
            return cls(mine, theirs, (), theirs)
        singles = count - count // 4
        # Pools of about equal mass, down to single tokens.
        mass = np.cumsum(theirs[singles:])
        places = np.searchsorted(mass, mass[-1] * np.arange(1, count - singles) / (count - singles))
        borders = [singles, *(singles + np.unique(places + 1)), len(order)]
        spans = [(a, b) for a, b in pairwise(borders) if a < b]
        pooled = tuple(_Pool.of(mine[a:b], theirs[a:b]) for a, b in spans)
        means = [float((theirs[a:b] ** 2).sum() / theirs[a:b].sum()) for a, b in spans]
        return cls(
            mine[:singles], theirs[:singles], pooled, np.concatenate([theirs[:singles], means])
        )

    def rejected(
        self, scales: ProbArray, onward: ProbArray, left: ProbArray, rest: ProbArray, gone: IntArray
    ) -> ProbArray:
        """Return the probability that the next draft is this and fails, `[states, tokens]`.

        Arguments are float64 `[states]`: scale s, next scale, M(s), and mass not yet drafted;
        `gone` is int64 `[states, rejections]`. A token is drafted with probability q / rest, and
        accepted with (p - s q)+ / M(s) or less; it fails only where p < q times the next scale.
        """
        s, mass, remaining = scales[:, None], left[:, None], rest[:, None]
        taken = np.maximum(self.p - s * self.q, 0.0) / mass
        singles = np.maximum(self.q / remaining - taken, 0.0)
        pooled = (pool.rejected(scales, onward, left, rest) for pool in self.pooled)
        out: ProbArray = np.column_stack([singles, *pooled])
        for rejection in gone.T:
            state = np.flatnonzero(rejection < len(self.q))
            out[state, rejection[state]] = 0.0
        return out


@dataclass(frozen=True)
class _Pool:
    # Tokens by ascending p / q (`ratios`), with running sums of p and q, `[k + 1]`.

    ratios: ProbArray
    p: ProbArray
    q: ProbArray

    @classmethod
    def of(cls, p: ProbArray, q: ProbArray) -> _Pool:
        ratios = quotient(p, q)
        order = np.argsort(ratios)
        zero = np.zeros(1)
        return cls(
            ratios[order],
            np.concatenate([zero, np.cumsum(p[order])]),
            np.concatenate([zero, np.cumsum(q[order])]),
        )

    def rejected(
        self, scales: ProbArray, onward: ProbArray, left: ProbArray, rest: ProbArray
    ) -> ProbArray:
        none, some = np.searchsorted(self.ratios, scales), np.searchsorted(self.ratios, onward)
        taken = self.p[some] - self.p[none] - scales * (self.q[some] - self.q[none])
        return np.maximum(self.q[some] / rest - taken / left, 0.0)

"""RSD-C (Jeon et al. 2024, arXiv:2402.14160): sampling without replacement, by branching factors.

Sequoia (Chen et al. 2024, arXiv:2402.12374) samples children the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core.types import ROOT, Budget, Distribution, ProbArray, SamplingScheme
from paceline.errors import InvalidOption
from paceline.sampling.distributions import without
from paceline.sampling.randomness import Randomness
from paceline.sampling.sampler import top_k_ids
from paceline.trees.base import (
    Growing,
    LevelExpansion,
    Names,
    TreeBuilder,
    TreeExpansion,
    race,
    successive,
)


class Branching(LevelExpansion):
    """Children sampled without replacement.

    By default one after another from the renormalised remainder; with `noise` by Gumbel-top-k as in
    the paper: the same distribution in one pass, faster from about three children on.
    """

    name: ClassVar[str] = "branching"
    guarantee = "siblings without replacement"
    paper = "RSD-C, Jeon et al. 2024, arXiv:2402.14160"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def __init__(self, widths: Sequence[int], *, noise: bool = False) -> None:
        super().__init__(widths)
        self._noise = noise

    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        if not self._noise:
            return [token for token, _ in islice(successive(q, names, draws), count)]
        uniform = draws.uniform(len(q.probs), names())
        return [q.token(index) for index in race(q.probs, uniform, count).tolist()]


class Iid(LevelExpansion):
    """Children sampled independently; repeats are one node drawn several times."""

    name: ClassVar[str] = "iid"
    guarantee = "independent siblings"
    paper = "SpecInfer, Miao et al. 2023, arXiv:2305.09781"
    kind: ClassVar[SamplingScheme | None] = "iid"

    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        return [q.token(draws.choice(q.probs, names())) for _ in range(count)]


class TopAndOne(LevelExpansion):
    """All children but the last are the top tokens of q; ties go to the lower id."""

    name: ClassVar[str] = "top-and-one"
    guarantee = "the most probable siblings, and one drawn"
    paper = "Hu et al. 2025, arXiv:2502.18779"
    kind: ClassVar[SamplingScheme | None] = "top_and_one"

    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        tokens: list[int] = []
        rest = q
        for index in top_k_ids(q.probs, count).tolist()[: count - 1]:
            left = without(rest, q.token(index))
            if left is None:  # something must be left to draw from
                break
            rest = left
            tokens.append(q.token(index))
        return [*tokens, rest.token(draws.choice(rest.probs, names()))]


class Paths(TreeExpansion):
    """Several sampled chains. Where nodes run out, later chains end earlier."""

    name: ClassVar[str] = "paths"
    guarantee = "independent paths"
    paper = "SpecTr, Sun et al. 2023, arXiv:2310.15141"
    kind: ClassVar[SamplingScheme | None] = "paths"

    def __init__(self, count: int) -> None:
        """Set the number of chains. Raises InvalidOption if it is below 1."""
        if count < 1:
            raise InvalidOption(f"growth 'paths' needs 1 or more paths, not {count}")
        self._count = count

    @property
    def chain(self) -> bool:
        return self._count == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        builder = TreeBuilder(budget, position)
        paths: list[list[int]] = [[] for _ in range(min(self._count, builder.room))]
        nodes = builder.nodes
        live = paths
        for _ in range(budget.depth):
            live = live[: builder.room]
            if not live:
                break
            parents = [path[-1] if path else ROOT for path in live]
            yield from builder.ask(list(dict.fromkeys(parents)))
            for path, parent in zip(live, parents, strict=True):
                q = builder.rows[parent]
                token = q.token(randomness.choice(q.probs, builder.names(parent)()))
                if (parent, token) not in nodes:
                    builder.add(parent, token)
                path.append(nodes[parent, token])
        return builder.finish(self.kind, paths=[path for path in paths if path])


class _Candidate(NamedTuple):
    parent: int
    token: int
    phi: float
    perturbed: float


class StochasticBeam(TreeExpansion):
    """A beam of paths sampled without replacement.

    Given the elder siblings, whether a node gets a further child is independent of its token; so
    children are samples without replacement.
    """

    name: ClassVar[str] = "stochastic-beam"
    guarantee = "siblings without replacement"
    paper = "RSD-S, Jeon et al. 2024, arXiv:2402.14160"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def __init__(self, width: int) -> None:
        """Set the nodes per level. Raises InvalidOption if `width` is below 1."""
        if width < 1:
            raise InvalidOption(f"growth 'stochastic-beam' needs a width of 1 or more, not {width}")
        self._width = width

    @property
    def chain(self) -> bool:
        return self._width == 1

    def grow(self, budget: Budget, randomness: Randomness, position: int) -> Growing:
        builder = TreeBuilder(budget, position)
        beam = [_Candidate(ROOT, ROOT, 0.0, 0.0)]
        nodes = [ROOT]
        for _ in range(budget.depth):
            keep = min(self._width, builder.room)
            if not keep:
                break
            rows = yield from builder.ask(nodes)
            found: list[_Candidate] = []
            for node, above, q in zip(nodes, beam, rows, strict=True):
                uniform = randomness.uniform(len(q.probs), builder.names(node)())
                found += _children(node, above, q, uniform, keep)
            beam = sorted(found, key=lambda candidate: -candidate.perturbed)[:keep]
            nodes = [builder.add(candidate.parent, candidate.token) for candidate in beam]
        return builder.finish(self.kind)


def _children(
    node: int, above: _Candidate, q: Distribution, uniform: ProbArray, count: int
) -> list[_Candidate]:
    # Top children by perturbed value, at most `count`.
    best = race(q.probs, uniform, count)
    phi = above.phi + np.log(q.probs[best])
    free = phi - np.log(-np.log(uniform[best]))
    with np.errstate(divide="ignore"):  # at the maximum: log(1 - exp(0)) is minus infinity
        shifted = above.perturbed - free + np.log(-np.expm1(free - free.max()))
    perturbed = above.perturbed - np.maximum(shifted, 0.0) - np.log1p(np.exp(-np.abs(shifted)))
    return [
        _Candidate(node, q.token(index), *values)
        for index, *values in zip(best.tolist(), phi.tolist(), perturbed.tolist(), strict=True)
    ]

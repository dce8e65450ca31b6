"""How many paths: what measured chains say equals what the shipped rule accepts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pytest

from paceline.core.types import Budget, Distribution
from paceline.proof.cases import grown
from paceline.proof.compare import one_round
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import TabularModel
from paceline.sampling.distributions import from_dense
from paceline.trees.drawn import Paths
from paceline.verifiers.multipath_block import MeasuredChain, MultipathBlock, accepted


class Model(Protocol):
    """A small model whose chains can all be listed."""

    vocabulary: int

    def distribution(self, context: Sequence[int], /) -> Distribution: ...


def all_chains(p: Model, q: Model, depth: int) -> Iterator[tuple[MeasuredChain, float]]:
    """Every chain that can be drawn, with its probability."""
    for tokens in itertools.product(range(q.vocabulary), repeat=depth):
        contexts = [(0, *tokens[:i]) for i in range(depth)]
        draft = [q.distribution(context) for context in contexts]
        mass = float(
            np.prod([distribution.prob(t) for distribution, t in zip(draft, tokens, strict=True)])
        )
        yield MeasuredChain(tokens, draft, [p.distribution(context) for context in contexts]), mass


def accepts(p: Model, q: Model, depth: int, count: int) -> float:
    """Mean of the tokens that the shipped rule accepts, over all draws and coins."""
    propose, budget = grown(Paths(count), q.distribution), Budget(count * depth, depth)
    lengths = enumerate_distribution(
        lambda r: (len(one_round(MultipathBlock(), p.distribution, propose, (0,), r, budget)),)
    )
    return sum((length - 1) * mass for (length,), mass in lengths.items())


def expected(p: Model, q: Model, depth: int, count: int) -> float:
    """The same from single chains."""
    return sum(mass * accepted(chain, count) for chain, mass in all_chains(p, q, depth))


@pytest.mark.parametrize("sharpness", [0.5, 1.5])
@pytest.mark.parametrize(
    ("vocabulary", "depth", "count"),
    [(2, 2, 1), (3, 3, 1), (2, 2, 2), (2, 3, 2), (2, 2, 3), (3, 2, 2), (3, 1, 3)],
)
def test_the_mean_over_single_chains_is_what_several_paths_accept(
    vocabulary: int, depth: int, count: int, sharpness: float
) -> None:
    p, q = (TabularModel(vocabulary, 4, seed, sharpness) for seed in (1, 11))
    assert expected(p, q, depth, count) == pytest.approx(accepts(p, q, depth, count), abs=1e-12)


class OneLaw:
    """A model that says the same everywhere."""

    def __init__(self, *probs: float) -> None:
        self._distribution = from_dense(np.array(probs))
        self.vocabulary = len(probs)

    def distribution(self, context: Sequence[int]) -> Distribution:
        return self._distribution


def test_tokens_that_share_a_rank_are_counted_right() -> None:
    p, q = OneLaw(0.3, 0.3, 0.1, 0.3), OneLaw(0.15, 0.15, 0.4, 0.3)
    assert accepts(p, q, 2, 2) == pytest.approx(expected(p, q, 2, 2), abs=1e-12)


def measured(
    draft: Distribution, target: Distribution, chains: int, depth: int = 3
) -> list[MeasuredChain]:
    rng = np.random.default_rng(5)
    drawn = rng.choice(draft.size, size=(chains, depth), p=draft.probs)
    return [MeasuredChain(tokens, [draft] * depth, [target] * depth) for tokens in drawn.tolist()]

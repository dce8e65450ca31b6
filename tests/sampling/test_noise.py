"""Noise by token id: its law, and that the search by bounds finds what all of it would say."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.types import Distribution, IntArray, LogitArray, ProbArray
from paceline.proof.compare import goodness_of_fit
from paceline.sampling.gumbel import GumbelNoise, block_maxima, gumbel_race, gumbel_top_k
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose

WIDE = 49_152
SPAN = 16_384
SIZES = [1, 7, 1024, 1025, 5000, SPAN, SPAN + 1, 32_000, WIDE, WIDE + 300]


def noise(position: int, seed: int = 3) -> GumbelNoise:
    return KeyedRandomness(seed).noise(Draw(position, Purpose.NOISE))


def block_of(ids: IntArray) -> IntArray:
    """A span holds 256 blocks, whose 64 members lie 256 apart."""
    return ids // SPAN * 256 + ids % 256


def naive(values: LogitArray, wanted: GumbelNoise, temperature: float, count: int) -> list[int]:
    """All scores, sorted."""
    scores = scaled(temperature, values) - np.log(wanted.of(np.arange(len(values))))
    return [i for i in np.argsort(-scores).tolist() if scores[i] > -np.inf][:count]


def scaled(temperature: float, values: LogitArray) -> ProbArray:
    return values.astype(np.float64) / temperature


def like_a_model(size: int, seed: int) -> LogitArray:
    """Logits of which a few stand out, by chance by much or by little."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * rng.choice([0.1, 2.0, 4.0])
    x[rng.integers(size, size=20)] += rng.exponential(rng.choice([1.0, 8.0]), size=20)
    return x.astype(np.float32)


# Its law


def test_noise_is_exponential() -> None:
    values = np.sort(noise(1).of(np.arange(WIDE)))
    steps = np.arange(1, WIDE + 1) / WIDE
    assert np.abs(1 - np.exp(-values) - steps).max() < 1.95 / WIDE**0.5  # Kolmogorov, p = 1e-3
    assert (values > 0).all()


def test_a_block_s_smallest_noise_is_what_is_said_and_falls_on_all_members_alike() -> None:
    ids = np.arange(WIDE)
    owners: Counter[tuple[int, ...]] = Counter()
    for position in range(8):
        values, least = noise(position).of(ids), noise(position).least(WIDE // 64)[0]
        for block in range(WIDE // 64):
            members = block // 256 * SPAN + block % 256 + 256 * np.arange(64)
            assert (block_of(members) == block).all()
            owners[(int(values[members].argmin()),)] += 1
            assert values[members].min() == pytest.approx(least[block], rel=1e-14)
    assert goodness_of_fit(owners, {(i,): 1 / 64 for i in range(64)}) > 1e-3


@pytest.mark.parametrize("ids", [(0, 256), (0, 1), (5, 5 + SPAN), (256, 512)])
def test_two_tokens_of_one_block_or_of_two_are_independent(ids: tuple[int, int]) -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    for position in range(6000):
        values = noise(position).of(np.array(ids))
        counts[tuple(np.minimum(4 * -np.expm1(-values), 3).astype(int).tolist())] += 1
    assert goodness_of_fit(counts, {(i, j): 1 / 16 for i in range(4) for j in range(4)}) > 1e-3


@settings(max_examples=30)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=40), st.integers(0, 99))
def test_a_token_s_noise_is_its_own_whoever_else_is_asked_for(ids: list[int], seed: int) -> None:
    together = noise(4, seed).of(np.array(ids))
    alone = [noise(4, seed).of(np.array([token]))[0] for token in ids]
    np.testing.assert_allclose(together, alone, rtol=1e-14)


def test_seed_stream_and_name_change_it() -> None:
    draw = Draw(5, Purpose.NOISE)
    others = [
        KeyedRandomness(seed, stream).noise(name)
        for seed, stream, name in (
            *((3, 0, draw), (4, 0, draw), (3, 1, draw), (2**64 + 3, 0, draw)),
            *((3, 0, draw._replace(position=6)), (3, 0, draw._replace(purpose=Purpose.DRAFT))),
        )
    ]
    values = np.stack([each.of(np.arange(2000)) for each in others])
    assert len(np.unique(values)) == values.size
    again = KeyedRandomness(3).noise(draw).of(np.arange(2000))
    assert np.array_equal(values[0], again)


# The search by bounds


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 4])
def test_the_search_finds_what_all_scores_say(size: int, count: int) -> None:
    for seed in range(25):
        values, temperature = like_a_model(size, seed), (0.2, 1.0, 3.0)[seed % 3]
        wanted = naive(values, noise(seed), temperature, count)
        assert (
            gumbel_race(
                values, block_maxima(values), partial(scaled, temperature), noise(seed), count
            )
            == wanted
        )


@pytest.mark.parametrize("left", [1, 3])
def test_tokens_without_weight_never_finish(left: int) -> None:
    probs = np.zeros(WIDE)
    probs[[7, 300, WIDE - 1][:left]] = 1 / left
    for position in range(20):
        found = gumbel_top_k(Distribution(probs, None, WIDE), noise(position), 5)
        assert sorted(found) == [7, 300, WIDE - 1][:left]


class Optimistic(GumbelNoise):
    """Says that every other block has less of a chance than it has."""

    def least(self, blocks: int) -> tuple[ProbArray, IntArray]:
        least, owners = super().least(blocks)
        return least * np.where(np.arange(blocks) % 2, 1, 30), owners

    def opened(self, ids: IntArray, least: ProbArray, owners: IntArray) -> ProbArray:
        return self.of(ids.ravel()).reshape(ids.shape)


def test_bounds_that_are_too_low_are_caught() -> None:
    """What the tests above would see of a mistake in the bounds."""
    wrong = 0
    for seed in range(40):
        values, keyed = like_a_model(WIDE, seed), KeyedRandomness(seed)
        cheat = Optimistic(keyed._digest(Draw(1, Purpose.NOISE), 16))
        found = gumbel_race(values, block_maxima(values), partial(scaled, 1.0), cheat)
        wrong += found != naive(values, cheat, 1.0, 1)
    assert wrong > 3


@pytest.mark.parametrize("size", [*SIZES, 256, 300])
def test_maxima_are_those_of_the_members(size: int) -> None:
    values = like_a_model(size, size)
    expected = np.full((size + SPAN - 1) // SPAN * 256, -np.inf, dtype=np.float32)
    np.maximum.at(expected, block_of(np.arange(size)), values)
    assert np.array_equal(block_maxima(values), expected[expected > -np.inf])
    values[size // 2] = np.nan
    assert np.isnan(block_maxima(values)).sum() == 1


def test_few_blocks_are_opened() -> None:
    """The point of it: of a law as a model has, most tokens' noise is never computed."""

    class Counted(GumbelNoise):
        asked = 0

        def opened(self, ids: IntArray, least: ProbArray, owners: IntArray) -> ProbArray:
            Counted.asked += ids.size
            return super().opened(ids, least, owners)

    runs = 50
    for seed in range(runs):
        x = np.random.default_rng(seed).normal(size=WIDE).astype(np.float32) * 2.0
        x[:20] += 14.0
        counted = Counted(KeyedRandomness(seed)._digest(Draw(1, Purpose.NOISE), 16))
        gumbel_race(x, block_maxima(x), partial(scaled, 1.0), counted)
    assert 0 < Counted.asked / runs < WIDE / 10


# Winners


@pytest.mark.parametrize("sparse", [False, True])
def test_the_winner_has_the_law(sparse: bool) -> None:
    """Tokens over a wide vocabulary, counted in groups."""
    rng = np.random.default_rng(4)
    size = 3000
    probs = rng.dirichlet(np.full(size, 0.02))
    distribution = Distribution(probs, None, size)
    if sparse:
        kept = np.flatnonzero(probs > 1e-3)
        distribution = Distribution(probs[kept] / probs[kept].sum(), kept, size)
    dense = distribution.dense()
    group = np.minimum(np.argsort(np.argsort(-dense)) // 4, 6)  # by rank
    counts: Counter[tuple[int, ...]] = Counter()
    for position in range(5000):
        [token] = gumbel_top_k(distribution, noise(position, 11))
        counts[(int(group[token]),)] += 1
    expected = {(g,): float(dense[group == g].sum()) for g in range(7)}
    assert goodness_of_fit(counts, expected) > 1e-3
    tilted = Distribution(dense**0.9 / (dense**0.9).sum(), None, size)
    wrong = {(g,): float(tilted.probs[group == g].sum()) for g in range(7)}
    assert goodness_of_fit(counts, wrong) < 1e-6


@settings(max_examples=50)
@given(st.integers(0, 9999))
def test_a_truncated_law_and_its_dense_form_have_one_winner(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.choice(WIDE, size=5, replace=False))
    distribution = Distribution(rng.dirichlet(np.ones(5)), kept, WIDE)
    dense = Distribution(distribution.dense(), None, WIDE)
    assert gumbel_top_k(distribution, noise(1, seed), 3) == gumbel_top_k(dense, noise(1, seed), 3)

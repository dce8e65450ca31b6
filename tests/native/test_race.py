"""The native search for winners finds what numpy finds, and leaves to it what is not clear."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.types import LogitArray, SamplingParams
from paceline.errors import BadLogits
from paceline.native import sampling as gumbel_race
from paceline.native.library import library
from paceline.native.sampling import Race
from paceline.proof.compare import goodness_of_fit
from paceline.sampling import gumbel as twin
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose
from paceline.sampling.sampler import Sampler

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
NUCLEUS = {"top_p": 0.9}

WIDE = 49_152
SIZES = [
    *(1, 2, 7, 8, 255, 256, 257, 1000, 1024, 1025, 5000),
    *(16_383, 16_384, 16_385, 16_700, 32_000, WIDE, WIDE + 1, 100_000),
]


def key(position: int, seed: int = 3) -> bytes:
    return KeyedRandomness(seed).noise(Draw(position, Purpose.NOISE)).key


def both(logits: LogitArray, position: int = 1, **params: Any) -> tuple[int | None, int]:
    """The winner as C++ has it, and as numpy."""
    made, name = SamplingParams(**{"temperature": 1.0, **params}), key(position)
    return Race(made).sample(logits, name), in_numpy(made, logits, name)


def in_numpy(params: SamplingParams, logits: LogitArray, name: bytes) -> int:
    return Sampler(params, [0])._searched(logits, twin.GumbelNoise(name), (), None)


def like_a_model(size: int, seed: int) -> LogitArray:
    """Logits of which a few stand out, by chance by much or by little."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * rng.choice([0.1, 2.0, 4.0])
    x[rng.integers(size, size=20)] += rng.exponential(rng.choice([1.0, 8.0]), size=20)
    return x.astype(np.float32)


@st.composite
def rows(draw: st.DrawFn) -> LogitArray:
    """Flat or steep, huge or small, with ties, with tokens that are banned."""
    row = like_a_model(draw(st.sampled_from(SIZES)), draw(st.integers(0, 9999)))
    row *= draw(st.sampled_from([0.0, 1.0, 1.0, 300.0, 1e30]))
    if draw(st.booleans()):
        row = np.round(row)
    banned = draw(st.sampled_from([0.0, 0.0, 0.1, 0.99]))
    keep = draw(st.integers(0, len(row) - 1))
    out = np.random.default_rng(keep).random(len(row)) < banned
    out[keep] = False
    row[out] = -np.inf
    return row.astype(draw(st.sampled_from([np.float32, np.float64])))


@settings(max_examples=150)
@given(
    logits=rows(),
    position=st.integers(0, 1 << 40),
    temperature=st.sampled_from([1e-300, 1e-6, 0.3, 1.0, 1.7, 100.0, 1e300]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 256, 900, 60_000]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.5, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]),
)
def test_the_winner_is_numpy_s(logits: LogitArray, position: int, **params: float) -> None:
    found, expected = both(logits, position, **params)
    assert found in (None, expected)
    if params["top_p"] == 1:
        assert found is not None


@pytest.mark.parametrize("more", [{}, NUCLEUS, {"top_k": 50, "min_p": 0.02}])
def test_it_is_numpy_s_in_thousands_of_draws(more: dict[str, float]) -> None:
    left = 0
    for seed in range(1200):
        temperature = (0.6, 1.0, 1.4)[seed % 3]
        found, expected = both(like_a_model(5000, seed), seed, temperature=temperature, **more)
        assert found in (None, expected)
        left += found is None
    assert left <= (6 if more else 0)


@pytest.mark.parametrize("constant", ["_STEP", "_M1", "_M2", "_S30", "_S27", "_S31", "_S11"])
def test_another_constant_of_the_generator_would_be_noticed(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twin, constant, getattr(twin, constant) + np.uint64(2))
    results = [both(like_a_model(5000, seed), seed) for seed in range(40)]
    assert sum(found != expected for found, expected in results) > 3


def test_another_rate_of_a_block_s_smallest_noise_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    least = twin._least
    monkeypatch.setattr(twin, "_least", lambda *args: (least(*args)[0] * 64 / 48, least(*args)[1]))
    results = [both(like_a_model(5000, seed), seed) for seed in range(300)]
    assert sum(found != expected for found, expected in results) > 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_broken_rows_are_left_to_numpy_which_names_the_fault(size: int, dtype: Any) -> None:
    params = SamplingParams(temperature=1)
    for place in {0, size // 2, size - 1}:
        for value, message in ((np.nan, "NaN"), (np.inf, "infinity")):
            logits = np.zeros(size, dtype=dtype)
            logits[place] = value
            assert Race(params).sample(logits, key(1)) is None
            with pytest.raises(BadLogits, match=message):
                Sampler(params, [0]).sample(logits, (), 1, KeyedRandomness(3))
    nothing = np.full(size, -np.inf, dtype=dtype)
    assert Race(params).sample(nothing, key(1)) is None
    with pytest.raises(BadLogits, match="every token is banned"):
        Sampler(params, [0]).sample(nothing, (), 1, KeyedRandomness(3))


@pytest.mark.parametrize(("gap", "clear"), [(0.0, False), (1e-11, False), (1e-6, True)])
def test_scores_that_rounding_might_order_are_left_to_numpy(gap: float, clear: bool) -> None:
    logits = np.full(5000, -50.0)
    for position in range(20):
        noise = twin.GumbelNoise(key(position))
        logits[[40, 4000]] = np.log(noise.of(np.array([40, 4000])))
        logits[4000] += gap
        found, expected = both(logits, position)
        assert found == (expected if clear else None)


def test_a_token_at_the_edge_of_a_nucleus_is_left_to_numpy() -> None:
    """Four tokens alike, and a nucleus of the first two; a fifth that cannot win."""
    logits = np.array([0.0, 0.0, 0.0, 0.0, -40.0], dtype=np.float32)
    results = [both(logits, position, top_p=0.5) for position in range(60)]
    assert {expected for _, expected in results} == {0, 1}
    assert {found for found, _ in results} == {None}
    sure = [both(logits, position, top_p=0.9999) for position in range(60)]
    assert {found for found, _ in sure} == {0, 1, 2, 3}


def test_rows_that_cannot_be_lent_are_left_to_numpy() -> None:
    made = Race(SamplingParams(temperature=1))
    fixed = np.zeros(9, dtype=np.float32)
    fixed.flags.writeable = False
    others = np.zeros(18, dtype=np.float32)[::2], fixed, np.zeros(9, dtype=np.float16)
    assert [made.sample(row, key(1)) for row in others] == [None] * 3


@pytest.mark.parametrize("more", [{}, NUCLEUS, {"frequency_penalty": 0.3}])
def test_samplers_ask_it_first_and_numpy_where_there_is_no_library(
    more: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    params, keyed = SamplingParams(**{"temperature": 1.0, **more}), KeyedRandomness(1)
    row = like_a_model(WIDE, 8)
    quick = Sampler(params, [0])
    monkeypatch.setattr(gumbel_race, "library", lambda: None)
    slow = Sampler(params, [0])
    asked: list[Sampler] = []
    search = Sampler._searched

    def watched(self: Sampler, *args: Any) -> int:
        asked.append(self)
        return search(self, *args)

    monkeypatch.setattr(Sampler, "_searched", watched)
    for sampler in (quick, slow):
        sampler.commit([5])
    for position in range(50):
        winners = {each.sample(row, (7,), position, keyed) for each in (quick, slow)}
        assert len(winners) == 1
    assert asked == [slow] * 50


@pytest.mark.parametrize("more", [{}, {"top_p": 0.8}, {"top_k": 12}, {"min_p": 0.03}])
def test_winners_have_the_law(more: dict[str, float]) -> None:
    """Tokens over a wide vocabulary, counted in groups; a law a little warmer is told apart."""
    size = 20_000
    logits = np.random.default_rng(4).gumbel(size=size).astype(np.float32) * 1.5
    sampler, keyed = (
        Sampler(SamplingParams(**{"temperature": 1.0, **more}), [0]),
        KeyedRandomness(9),
    )
    dense = sampler.distribution(logits).dense()
    rank = np.argsort(np.argsort(-dense, kind="stable"))
    group = np.minimum(rank // 4, 4)
    counts: Counter[tuple[int, ...]] = Counter()
    for position in range(20_000):
        counts[(int(group[sampler.sample(logits, (), position, keyed)]),)] += 1

    def grouped(distribution: Any) -> dict[tuple[int, ...], float]:
        masses = {(g,): float(distribution[group == g].sum()) for g in range(5)}
        return {g: mass for g, mass in masses.items() if mass > 0}

    assert goodness_of_fit(counts, grouped(dense)) > 1e-3
    warmer = np.where(dense > 0, np.maximum(dense, 1e-300) ** 0.85, 0)
    assert goodness_of_fit(counts, grouped(warmer / warmer.sum())) < 1e-6

"""Laws against a slow, independent reference; penalties inside a draft; edges."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.target import Output
from paceline.core.types import ROOT, Distribution, LogitArray, SamplingParams, TokenTree
from paceline.errors import BadLogits
from paceline.sampling.distributions import gumbel_max, one_hot
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose
from paceline.sampling.sampler import Sampler, TreeDistributions, logprobs, top_k_ids

SIZE = 8
ids = st.integers(0, SIZE - 1)


def naive_law(
    logits: LogitArray, params: SamplingParams, prompt: list[int], output: list[int]
) -> dict[int, float]:
    """The documented order of processors, one token at a time, in plain Python floats."""
    forced = params.forced_tokens.get(len(output))
    if forced is not None:
        return {forced: 1.0}
    scores = {token: float(value) for token, value in enumerate(logits)}
    for token in scores:
        if token in prompt or token in output:
            rate = params.repetition_penalty
            scores[token] *= 1 / rate if scores[token] > 0 else rate
        count = output.count(token)
        if count:
            scores[token] -= params.presence_penalty + params.frequency_penalty * count
        scores[token] += params.logit_bias.get(token, 0.0)
    ends = params.stop_token_ids if len(output) < params.min_tokens else ()
    for token in range(SIZE):
        allowed = token in (params.allowed_tokens or range(SIZE))
        if not allowed or token in params.banned_tokens or token in ends:
            del scores[token]
    if params.temperature == 0:
        best = max(scores.values())
        return {min(token for token in scores if scores[token] == best): 1.0}
    peak = max(scores.values())
    scores = {token: (score - peak) / params.temperature for token, score in scores.items()}
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if 0 < params.top_k < len(ranked):
        last = scores[ranked[params.top_k - 1]]
        ranked = [token for token in ranked if scores[token] >= last]
    if params.top_p < 1:
        total = math.fsum(math.exp(scores[token]) for token in ranked)
        kept: list[int] = []
        mass = 0.0
        for token in ranked:
            kept.append(token)
            mass += math.exp(scores[token])
            if mass >= params.top_p * total:
                break
        ranked = kept
    if params.min_p > 0:
        ranked = [t for t in ranked if scores[t] >= scores[ranked[0]] + math.log(params.min_p)]
    total = math.fsum(math.exp(scores[token]) for token in ranked)
    return {token: math.exp(scores[token]) / total for token in ranked}


@st.composite
def logit_rows(draw: st.DrawFn, ties: bool = False) -> LogitArray:
    """Rows with gaps of at least 1/64, so that rounding never decides what is cut."""
    if ties:
        return np.array(
            draw(st.lists(st.integers(-2, 2), min_size=SIZE, max_size=SIZE)), np.float32
        )
    values = draw(st.lists(st.integers(-300, 300), min_size=SIZE, max_size=SIZE, unique=True))
    return (np.array(values) / 64).astype(np.float32)


@st.composite
def parameters(draw: st.DrawFn) -> SamplingParams:
    left = draw(ids)
    others = ids.filter(lambda token: token != left)
    allowed = draw(st.sampled_from([(), (left, *draw(st.sets(ids, max_size=4)))]))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        top_k=draw(st.integers(0, SIZE + 2)),
        top_p=draw(st.sampled_from([1e-6, 0.31, 0.737, 0.95, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.0713, 0.5, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.37, 0.71])),
        presence_penalty=draw(st.sampled_from([0.0, 0.517, -0.31])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.213, -0.11])),
        logit_bias=draw(st.dictionaries(ids, st.sampled_from([-1.93, 0.71, 4.1]), max_size=3)),
        banned_tokens=tuple(draw(st.sets(others, max_size=SIZE - 1))),
        allowed_tokens=allowed,
        stop_token_ids=tuple(draw(st.sets(others, max_size=2))),
        min_tokens=draw(st.integers(0, 6)),
        forced_tokens=draw(st.dictionaries(st.integers(0, 4), ids, max_size=1)),
    )


def as_dict(distribution: Distribution) -> dict[int, float]:
    """Positive entries of a law."""
    return {distribution.token(i): p for i, p in enumerate(distribution.probs.tolist()) if p > 0}


@given(
    logits=logit_rows(),
    params=parameters(),
    prompt=st.lists(ids, min_size=1, max_size=4),
    output=st.lists(ids, max_size=5),
)
def test_law_equals_the_reference(
    logits: LogitArray, params: SamplingParams, prompt: list[int], output: list[int]
) -> None:
    sampler = Sampler(params, prompt)
    sampler.commit(output)
    before = logits.copy()
    distribution = sampler.distribution(logits)
    assert as_dict(distribution) == pytest.approx(
        naive_law(logits, params, prompt, output), abs=1e-13
    )
    assert distribution.probs.dtype == np.float64
    assert distribution.probs.sum() == pytest.approx(1, abs=1e-12)
    assert np.array_equal(logits, before)


@given(
    logits=logit_rows(),
    params=parameters(),
    output=st.lists(ids, max_size=5),
    path=st.lists(ids, max_size=4),
    cut=st.integers(0, 4),
)
def test_a_path_counts_like_committed_tokens(
    logits: LogitArray, params: SamplingParams, output: list[int], path: list[int], cut: int
) -> None:
    """Exactly: the same numbers, not merely close ones."""
    inside, committed, partly = (Sampler(params, [3]) for _ in range(3))
    inside.commit(output)
    committed.commit(output + path)
    partly.commit(output)
    partly.commit(path[:cut])
    distributions = [
        inside.distribution(logits, path),
        committed.distribution(logits),
        partly.distribution(logits, path[cut:]),
    ]
    for distribution in distributions[1:]:
        assert np.array_equal(distribution.probs, distributions[0].probs)
        assert np.array_equal(distribution.dense(), distributions[0].dense())
    assert np.array_equal(
        inside.distribution(logits).dense(), inside.distribution(logits, []).dense()
    )


def test_every_node_sees_its_own_path() -> None:
    rng = np.random.default_rng(1)
    draft = TokenTree(np.array([1, 2, 1, 4, 1]), np.array([ROOT, ROOT, 0, 1, 2]))
    logits = rng.normal(size=(6, SIZE)).astype(np.float32)
    params = SamplingParams(temperature=0.8, frequency_penalty=0.7, forced_tokens={4: 6})
    sampler = Sampler(params, [0])
    sampler.commit([5])
    distributions = TreeDistributions(sampler, draft, Output(logits), 2, "rule")
    paths = {ROOT: [], 0: [1], 1: [2], 2: [1, 1], 3: [2, 4], 4: [1, 1, 1]}
    assert distributions.position == 2
    for node, path in paths.items():
        fresh = Sampler(params, [0])
        fresh.commit([5, *path])
        assert np.array_equal(
            distributions.distribution(node).dense(), fresh.distribution(logits[node + 1]).dense()
        )
        assert distributions.distribution(node) is distributions.distribution(node)
    assert as_dict(distributions.distribution(4)) == {6: 1.0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_name_the_node_and_the_rule(temperature: float) -> None:
    draft = TokenTree(np.array([1, 2]), np.array([ROOT, 0]))
    logits = np.zeros((3, SIZE), dtype=np.float32)
    logits[2, 4] = np.nan
    sampler = Sampler(SamplingParams(temperature=temperature), [0])
    distributions = TreeDistributions(sampler, draft, Output(logits), 2, "coupled")
    assert distributions.distribution(0).size == SIZE
    with pytest.raises(BadLogits, match="'coupled' at node 1: the logits hold NaN"):
        distributions.distribution(1)
    banned = SamplingParams(temperature=temperature, banned_tokens=tuple(range(SIZE)))
    with pytest.raises(BadLogits, match="every token is banned"):
        Sampler(banned, [0]).distribution(logits[0])


@given(logits=logit_rows(ties=True), params=parameters())
def test_a_law_is_consistent_with_itself(logits: LogitArray, params: SamplingParams) -> None:
    distribution = Sampler(params, [0]).distribution(logits)
    dense = distribution.dense()
    assert distribution.size == SIZE == len(dense)
    assert dense.tolist() == [distribution.prob(token) for token in range(SIZE)]
    assert dense[distribution.argmax()] == dense.max()
    assert distribution.argmax() == int(dense.argmax())
    if distribution.ids is not None:
        assert distribution.ids.tolist() == sorted(set(distribution.ids.tolist()))
        assert [
            distribution.token(i) for i in range(len(distribution.ids))
        ] == distribution.ids.tolist()
    else:
        assert len(distribution.probs) == SIZE


@given(logits=logit_rows(ties=True), k=st.integers(1, SIZE))
def test_top_k_keeps_ties_of_the_last(logits: LogitArray, k: int) -> None:
    distribution = Sampler(SamplingParams(temperature=1, top_k=k), [0]).distribution(logits)
    bound = sorted(logits.tolist(), reverse=True)[k - 1]
    assert set(as_dict(distribution)) == {t for t in range(SIZE) if logits[t] >= bound}


@given(logits=logit_rows(ties=True))
def test_top_p_breaks_ties_by_the_lower_id(logits: LogitArray) -> None:
    distribution = Sampler(SamplingParams(temperature=1, top_p=1e-9), [0]).distribution(logits)
    assert as_dict(distribution) == {int(logits.argmax()): 1.0}


@given(logits=logit_rows(ties=True))
def test_min_p_of_one_keeps_the_most_likely_alone(logits: LogitArray) -> None:
    distribution = Sampler(SamplingParams(temperature=1, min_p=1.0), [0]).distribution(logits)
    best = [t for t in range(SIZE) if logits[t] == logits.max()]
    assert as_dict(distribution) == pytest.approx({t: 1 / len(best) for t in best})


def test_nucleus_over_a_whole_vocabulary() -> None:
    """Flat enough that more than the first guess of 256 tokens is needed."""
    logits = np.random.default_rng(2).normal(size=49_152).astype(np.float32)
    for top_p in (0.01, 0.5, 0.999, 1 - 1e-12):
        distribution = Sampler(SamplingParams(temperature=1, top_p=top_p), [0]).distribution(logits)
        weights = np.exp(logits.astype(np.float64) - logits.max())
        order = np.argsort(-weights, kind="stable")
        mass = np.cumsum(weights[order]) / weights.sum()
        count = int((mass < top_p).sum()) + 1
        assert distribution.ids is not None
        assert abs(len(distribution.ids) - min(count, len(order))) <= (top_p > 0.99999)
        assert set(distribution.ids.tolist()) <= set(order[: count + 1].tolist())


@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    k=st.integers(1, 45),
    blocks=st.booleans(),
)
def test_top_k_ids_against_a_full_sort(values: list[int], k: int, blocks: bool) -> None:
    row = np.array(values, dtype=np.float32)
    if blocks:  # wide enough for the search by blocks
        row = np.tile(np.repeat(row, 7), 512)[: 256 * 50]
        row = np.pad(row, (0, -len(row) % 256), constant_values=-9)
    expected = np.argsort(-row, kind="stable")[:k]
    assert top_k_ids(row, k).tolist() == expected.tolist()


@pytest.mark.parametrize("width", [49_152, 49_153, 32_000, 257])
@pytest.mark.parametrize("k", [1, 5, 48, 191, 192, 256])
def test_top_k_ids_on_rows_as_wide_as_vocabularies(width: int, k: int) -> None:
    rng = np.random.default_rng(width + k)
    row = rng.normal(size=width).astype(np.float32)
    for values in (row, np.round(row), np.full(width, -np.inf, dtype=np.float32)):
        assert np.array_equal(top_k_ids(values, k), np.argsort(-values, kind="stable")[:k])


def test_extreme_temperatures_stay_finite() -> None:
    logits = np.array([1.0, 3.0, 2.0, -40.0], dtype=np.float32)
    for temperature in (1e-310, 1e-300, 1e-5, 0.05):
        distribution = Sampler(SamplingParams(temperature=temperature), [0]).distribution(logits)
        assert distribution.probs[1] == pytest.approx(1, abs=1e-8)
        assert np.isfinite(distribution.probs).all()
    distribution = Sampler(SamplingParams(temperature=1e300), [0]).distribution(logits)
    assert distribution.probs == pytest.approx(np.full(4, 0.25))


@pytest.mark.parametrize("gap", [30, 708, 720, 744, 1000])
def test_coupled_noise_takes_vanishing_probabilities(gap: float) -> None:
    """Down to subnormal ones and zero."""
    logits = np.array([0.0, -gap, -gap / 2], dtype=np.float32)
    distribution = Sampler(SamplingParams(temperature=1), [0]).distribution(logits)
    assert {gumbel_max(distribution, position, KeyedRandomness(1)) for position in range(20)} == {0}


def test_coupled_choice_is_the_gumbel_maximum() -> None:
    """Against the definition argmax(log p + g) with g = -log E."""
    rng = np.random.default_rng(3)
    for position in range(200):
        probs = rng.dirichlet(np.full(500, 0.1 if position % 2 else 3.0))
        keyed = KeyedRandomness(position)
        noise = keyed.noise(Draw(position, Purpose.NOISE)).of(np.arange(500))
        with np.errstate(divide="ignore"):
            scores = np.log(probs) - np.log(noise)
        assert gumbel_max(Distribution(probs, None, 500), position, keyed) == int(scores.argmax())


@given(
    logits=logit_rows(),
    params=parameters(),
    output=st.lists(ids, max_size=3),
    path=st.lists(ids, max_size=3),
    seed=st.integers(0, 99),
)
def test_the_winner_is_that_of_the_law(
    logits: LogitArray, params: SamplingParams, output: list[int], path: list[int], seed: int
) -> None:
    sampler = Sampler(params, [3])
    sampler.commit(output)
    keyed = KeyedRandomness(seed)
    expected = gumbel_max(sampler.distribution(logits, path), 9, keyed)
    assert sampler.sample(logits, path, 9, keyed) == expected


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.7},
        {"banned_tokens": (5, 900)},
        {"logit_bias": {17: 9.0}, "frequency_penalty": 0.5},
        {"top_k": 40},
        {"top_p": 0.9},
    ],
)
def test_the_winner_over_a_whole_vocabulary_is_that_of_the_law(more: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(**{"temperature": 1.0, **more}), [3])
    rng = np.random.default_rng(5)
    for seed in range(20):
        logits = (rng.normal(size=49_152) * 3).astype(np.float32)
        logits[rng.integers(49_152, size=30)] += 10
        keyed = KeyedRandomness(seed)
        expected = gumbel_max(sampler.distribution(logits, [7]), 9, keyed)
        assert sampler.sample(logits, [7], 9, keyed) == expected


def test_a_winner_among_broken_logits_is_an_error_that_names_the_node() -> None:
    logits = np.zeros((2, 5000), dtype=np.float32)
    logits[1, 4000] = np.nan
    draft = TokenTree(np.array([1]), np.array([ROOT]))
    sampler = Sampler(SamplingParams(temperature=1), [0])
    distributions = TreeDistributions(sampler, draft, Output(logits), 2, "coupled")
    assert 0 <= distributions.sample(ROOT, 2, KeyedRandomness(0)) < 5000
    with pytest.raises(BadLogits, match="'coupled' at node 0: the logits hold NaN"):
        distributions.sample(0, 3, KeyedRandomness(0))


def test_the_most_probable_token_of_a_forward_wins_where_nothing_else_is_asked_for() -> None:
    """Said of the root to be 3, and unknown at the node, whose largest logit is that of 2."""
    logits = np.eye(3, SIZE, k=1, dtype=np.float32)
    draft = TokenTree(np.array([3, 5]), np.array([ROOT, 0]))
    output = Output(logits, argmax=[3, -1, 4])

    def winners(**params: Any) -> list[int]:
        sampler = Sampler(SamplingParams(**{"temperature": 0.0, **params}), [0])
        distributions = TreeDistributions(sampler, draft, output, 2, "coupled")
        return [distributions.sample(node, 2, KeyedRandomness(0)) for node in (ROOT, 0, 1)]

    assert winners() == [3, 2, 4]
    assert winners(forced_tokens={1: 6}) == [1, 6, 3]
    assert winners(banned_tokens=(0,)) == [1, 2, 3]
    assert winners(repetition_penalty=2.0) == [1, 2, 3]
    assert winners(temperature=1e-3) == [1, 2, 3]


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99, 0.999])
def test_a_nucleus_cut_near_its_goal_is_that_of_the_exact_sum(top_p: float) -> None:
    """Logits such that a float32 sum alone would now and then cut elsewhere."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=20_000).astype(np.float32)
        weights = np.exp(logits.astype(np.float64) - logits.max())
        order = np.argsort(-weights, kind="stable")
        mass = np.cumsum(weights[order])
        goal = top_p * weights.sum()
        count = int(np.searchsorted(mass, goal)) + 1
        if min(abs(mass[count - 1] - goal), abs(mass[count - 2] - goal)) < 1e-9 * goal:
            continue  # rounding may decide
        distribution = Sampler(SamplingParams(temperature=1, top_p=top_p), [0]).distribution(logits)
        assert distribution.ids is not None
        assert sorted(order[:count].tolist()) == distribution.ids.tolist()


def test_one_hot() -> None:
    distribution = one_hot(3, 5)
    assert distribution.dense().tolist() == [0, 0, 0, 1, 0]
    assert (
        distribution.argmax(),
        distribution.prob(3),
        distribution.prob(2),
        distribution.prob(4),
    ) == (3, 1.0, 0.0, 0.0)


def test_forced_tokens_win_over_everything() -> None:
    params = SamplingParams(banned_tokens=(2,), forced_tokens={1: 2}, top_k=1)
    sampler = Sampler(params, [0])
    logits = np.arange(5, dtype=np.float32)
    assert sampler.distribution(logits).argmax() == 4
    assert sampler.distribution(logits, [4]).argmax() == 2
    sampler.commit([4])
    assert sampler.distribution(logits).argmax() == 2
    sampler.commit([2])
    assert sampler.distribution(logits).argmax() == 4


def test_greedy_ties_go_to_the_lower_id() -> None:
    logits = np.array([1.0, 4.0, 4.0, 2.0], dtype=np.float32)
    assert Sampler(SamplingParams(), [0]).distribution(logits).argmax() == 1
    assert (
        Sampler(SamplingParams(logit_bias={3: 2.0, 1: -1.0}), [0]).distribution(logits).argmax()
        == 2
    )


def test_repetition_counts_the_prompt_and_presence_does_not() -> None:
    logits = np.array([2.0, -2.0, 2.0], dtype=np.float32)
    repeated = Sampler(SamplingParams(temperature=1, repetition_penalty=2.0), [0, 1]).distribution(
        logits
    )
    expected = np.exp([1.0, -4.0, 2.0])
    assert repeated.probs == pytest.approx(expected / expected.sum())
    present = Sampler(SamplingParams(temperature=1, presence_penalty=2.0), [0, 1]).distribution(
        logits
    )
    assert present.probs == pytest.approx(np.exp(logits) / np.exp(logits).sum())


@given(logits=logit_rows(), token=ids, top=st.integers(0, SIZE + 3))
def test_logprobs_are_of_the_raw_row(logits: LogitArray, token: int, top: int) -> None:
    total = math.log(math.fsum(math.exp(float(x)) for x in logits))
    entry = logprobs(logits, token, top)
    assert entry.token_id == token
    assert entry.logprob == pytest.approx(float(logits[token]) - total)
    ranked = sorted(range(SIZE), key=lambda t: -logits[t])[:top]
    assert [t for t, _ in entry.top] == ranked
    assert [v for _, v in entry.top] == pytest.approx([float(logits[t]) - total for t in ranked])


def test_logprobs_of_large_logits_do_not_overflow() -> None:
    entry = logprobs(np.array([1e4, 1e4, 0], dtype=np.float32), 1, 1)
    assert entry.logprob == pytest.approx(-math.log(2))


@given(st.lists(ids, max_size=20), st.lists(ids, max_size=20))
def test_commit_in_pieces_or_at_once(first: list[int], second: list[int]) -> None:
    params = SamplingParams(temperature=1, frequency_penalty=0.5, repetition_penalty=1.2)
    pieces, whole = Sampler(params, [0]), Sampler(params, [0])
    pieces.commit(first)
    pieces.commit(second)
    whole.commit(first + second)
    logits = np.linspace(-1, 2, SIZE).astype(np.float32)
    assert np.array_equal(pieces.distribution(logits).dense(), whole.distribution(logits).dense())
    counts = Counter(first + second)
    expected = naive_law(logits, params, [0], list(counts.elements()))
    assert as_dict(whole.distribution(logits)) == pytest.approx(expected, abs=1e-13)

"""Likelihoods of texts under samplers: they sum to one where rules look at distributions alone."""

from __future__ import annotations

from itertools import product
from math import exp, log

import numpy as np
import pytest
from tests.helpers.canvases import decode, decoder_of, enumerated, finish, start

from paceline.core.types import CanvasParams
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry.samplers import make_sampler

ONE_BY_ONE = (
    "counts",
    "counts:by=random",
    "factor:factor=0",
    "entropy:tau=-1",
    "entropy-bound:gamma=-1",
    "hierarchical:low=1,high=1",
)
PARALLEL = (
    "counts:per_step=2",
    "threshold:tau=0.5",
    "factor:factor=1.5",
    "entropy-bound:gamma=0.9",
    "entropy:tau=1.0,penalty=0.05",
    "hierarchical:low=0.3,high=0.6",
    "local-leap:tau=0.6,radius=2,relaxed=0.3",
    "dream:steps=3",
    "dream:steps=2,by=margin,alg_temp=0.1",
    "credit:alpha=2>threshold:tau=0.5",
    "prophet:early=0.6,middle=0.3,late=0.1>counts",
)
DRAWN = ("counts:by=picked,per_step=2", "genmol:randomness=0,per_step=2")


def table(index: int, **facts: object) -> TableDenoiser:
    return TableDenoiser(random_joint(3, 4, index), **facts)  # type: ignore[arg-type]


def divergence(distribution: dict[tuple[int, ...], float], joint: np.ndarray) -> float:
    """KL(distribution || joint), in nats."""
    return sum(q * (log(q) - log(joint[text])) for text, q in distribution.items() if q > 0)


@pytest.mark.parametrize("sampler", ONE_BY_ONE)
def test_one_place_a_step_is_the_joint(sampler):
    target = table(0)
    distribution = enumerated(target, sampler)
    assert make_sampler(sampler).ignores_draws
    assert max(abs(q - target.joint[text]) for text, q in distribution.items()) < 1e-12
    assert abs(divergence(distribution, target.joint)) < 1e-12


@pytest.mark.parametrize("sampler", PARALLEL)
def test_parallel_rules_have_a_law_that_is_not_the_joint(sampler):
    for index in range(2):
        target = table(index)
        distribution = enumerated(target, sampler)
        assert make_sampler(sampler).ignores_draws
        assert abs(sum(distribution.values()) - 1) < 1e-12
    assert divergence(distribution, target.joint) > 1e-6


def ending(index: int, **facts: object) -> TableDenoiser:
    """A table in which the second symbol ends the answer."""
    made = table(index, **facts)
    made.end = 1
    return made


def answer(text: tuple[int, ...]) -> tuple[int, ...]:
    return text[: text.index(1) + 1] if 1 in text else text


@pytest.mark.parametrize("cut", ["fill", "cut"])
@pytest.mark.parametrize(
    "sampler", [*ONE_BY_ONE[:2], *PARALLEL, "freedave>factor", "speculative>factor"]
)
def test_with_an_end_token_it_is_that_of_the_answer_or_is_not_told(sampler, cut):
    target = ending(1)
    # The rule's own distribution of texts, of which the places behind the end are no part.
    whole = enumerated(table(1), sampler.removeprefix("freedave>").removeprefix("speculative>"))
    chances: dict[tuple[int, ...], float] = {}
    for text, q in whole.items():
        chances[answer(text)] = chances.get(answer(text), 0.0) + q
    told = silent = 0
    for seed in range(40):
        sequence = decode(target, sampler, temperature=1.0, seed=seed, ending=cut)
        found, text = sequence.stats.log_likelihood, tuple(sequence.generated)
        behind = any(
            fill.place >= target.begin + len(text) for fill in sequence.work.process.canvas.trace
        )
        assert (found is None) == behind
        if found is None:
            silent += 1
        elif not sampler.startswith(("dream", "counts:by=random")):
            assert exp(found) == pytest.approx(chances[text], rel=1e-9)
            told += 1
    assert silent, "an end token before the last place leaves fills behind it"
    assert told or sampler.startswith(("dream", "counts:by=random"))


@pytest.mark.parametrize(
    ("sampler", "attention"),
    [
        ("assd", "order"),
        ("assd:width=1", "order"),
        ("tidar", "full"),
        ("tidar:verifier=rejection", "full"),
        ("linear-spec", "full"),
        ("lexical-units:tau=1", "full"),
    ],
)
def test_from_left_to_right_every_answer_is_told(sampler, attention):
    target = ending(1, attention=attention, autoregressive=True)
    shorter = 0
    for seed in range(40):
        sequence = decode(target, sampler, temperature=1.0, seed=seed)
        text = sequence.generated
        chance = float(target.joint[tuple(text)].sum())
        assert exp(sequence.stats.log_likelihood) == pytest.approx(chance, rel=1e-9)
        shorter += len(text) < 4
    assert shorter > 10
    assert decode(target, sampler).stats.log_likelihood is None, "greedy"


def test_a_window_that_filled_behind_the_end_tells_nothing():
    target, silent = ending(1, attention="order"), 0
    for seed in range(40):
        sequence = decode(target, "wedlm:window=4>entropy:tau=1", temperature=1.0, seed=seed)
        trace = sequence.work.process.canvas.trace
        behind = any(f.place >= target.begin + len(sequence.generated) for f in trace)
        assert (sequence.stats.log_likelihood is None) == behind
        silent += behind
    assert 0 < silent < 40


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_in_the_order_of_filling_has_a_law(window):
    target = table(1, attention="order")
    single = enumerated(target, f"wedlm:window={window}>entropy:tau=-1")
    assert max(abs(q - target.joint[text]) for text, q in single.items()) < 1e-12
    distribution = enumerated(target, f"wedlm:window={window}>entropy:tau=1.05,penalty=0.01")
    assert abs(sum(distribution.values()) - 1) < 1e-12
    assert (divergence(distribution, target.joint) > 1e-6) == (window > 1)


@pytest.mark.parametrize("sampler", DRAWN)
def test_rules_that_look_at_draws_have_no_such_likelihood(sampler):
    target = table(0)
    assert abs(sum(enumerated(target, sampler).values()) - 1) > 1e-3
    sampled = decode(target, sampler, temperature=1.0)
    assert sampled.stats.log_likelihood is None
    assert decode(target, "counts").stats.log_likelihood is None, "greedy"


def test_the_likelihood_of_a_sample_is_that_of_its_text():
    target = table(3)
    sampler = "threshold:tau=0.5"
    distribution = enumerated(target, sampler)
    counts = dict.fromkeys(product(range(3), repeat=4), 0)
    for seed in range(300):
        sequence = decode(target, sampler, temperature=1.0, seed=seed)
        text = tuple(sequence.generated)
        assert exp(sequence.stats.log_likelihood) == pytest.approx(distribution[text], rel=1e-12)
        counts[text] += 1
    # The samples have this distribution: the mean of log q over them is minus its entropy.
    mean = sum(n * log(distribution[text]) for text, n in counts.items() if n) / 300
    assert mean == pytest.approx(sum(q * log(q) for q in distribution.values() if q), abs=0.25)


@pytest.mark.parametrize(
    ("sampler", "nats"), [("counts", 0.0), ("factor", 0.058), ("counts:per_step=2", 0.420)]
)
def test_the_prices_of_the_page(sampler, nats):
    found = [
        divergence(enumerated(target, sampler), target.joint)
        for target in (TableDenoiser(random_joint(3, 4, index)) for index in range(10))
    ]
    assert np.mean(found) == pytest.approx(nats, abs=6e-4)


def test_temperature_is_part_of_the_law():
    target, distribution = table(2), {}
    for text in product(range(3), repeat=4):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams("threshold:tau=0.7"), temperature=0.6, top_k=2)
        decoder.admit(sequence)
        picks = np.asarray((0, *text))
        probs = sequence.work.process.context.distributions
        probs.picks = lambda probs, places, sibling=0, picks=picks: picks[places]
        try:
            finish(decoder, [sequence])
        except Exception:  # a token beyond the two most likely cannot be drawn
            continue
        distribution[text] = exp(sequence.stats.log_likelihood)
    assert sum(distribution.values()) == pytest.approx(1, abs=1e-12)

"""Rules: their definitions by brute force, degenerate settings, and the theorem of Fast-dLLM."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.helpers.canvases import decode, random_laws, view_of

from paceline.core.types import ProbArray
from paceline.denoising.process import View
from paceline.errors import InvalidOption
from paceline.methods.canvas.dream import Dream
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry.samplers import make_sampler

PARAMS = ({}, {"temperature": 1.0, "seed": 3})


def chosen(sampler: str, view: View) -> set[int]:
    rule = make_sampler(sampler)
    return {int(view.places[i]) for i in rule.choose(view, rule.begin(view.canvas)).fill}


def trace(sampler: str, joint: int, **params: object) -> list[object]:
    target = TableDenoiser(random_joint(3, 6, joint, 2.5))
    return decode(target, sampler, **params).work.process.canvas.trace


@pytest.mark.parametrize(
    ("degenerate", "plain", "usual"),
    [
        ("factor:factor=0", "counts", "factor:factor=1.5"),
        ("hierarchical:low=1,high=1", "counts", "hierarchical:low=0.4,high=0.6"),
        ("entropy-bound:gamma=-1", "counts:by=entropy", "entropy-bound:gamma=0.4"),
        ("entropy:tau=-1", "counts:by=entropy", "entropy:tau=0.5"),
        ("entropy:tau=0.6,penalty=0", "entropy:tau=0.6", "entropy:tau=0.6,penalty=0.2"),
        ("local-leap:tau=0.6,radius=0,relaxed=0.3", "threshold:tau=0.6", None),
        ("local-leap:tau=0.6,relaxed=0.6", "threshold:tau=0.6", "local-leap:tau=0.6,relaxed=0.3"),
        ("local-leap:tau=0.6,relaxed=1.1", "threshold:tau=0.6", "local-leap:tau=0.6,relaxed=0.3"),
        ("dream:steps=1", "counts:steps=1", "dream:steps=4"),
        ("dream:by=margin,alg_temp=1e-320", "dream:by=margin", "dream:by=margin,alg_temp=1"),
    ],
)
@pytest.mark.parametrize("params", PARAMS)
def test_degenerate_settings_are_other_rules_and_usual_ones_are_not(
    degenerate, plain, usual, params
):
    def same(sampler: str) -> list[bool]:
        sides = ((trace(each, i, **params) for each in (sampler, plain)) for i in range(25))
        return [sorted(a) == sorted(b) for a, b in sides]

    assert all(same(degenerate))
    assert usual is None or not all(same(usual))


def brute_factor(view: View) -> set[int]:
    order = sorted(range(len(view.places)), key=lambda i: -view.confidence[i])
    fits = [
        n for n in range(1, len(order) + 1) if (n + 1) * (1 - view.confidence[order[n - 1]]) < 1
    ]
    return {int(view.places[i]) for i in order[: max(fits, default=1)]}


def brute_bound(view: View) -> set[int]:
    # The largest set whose entropies without the largest stay within the bound.
    sets = (
        c for n in range(len(view.places), 0, -1) for c in combinations(range(len(view.places)), n)
    )
    fits = next(c for c in sets if sum(e := view.entropy[list(c)]) - max(e) <= 0.5)
    fits = min(
        combinations(range(len(view.places)), len(fits)), key=lambda c: sum(view.entropy[list(c)])
    )
    return {int(view.places[i]) for i in fits}


def brute_leap(view: View) -> set[int]:
    c, places = view.confidence, view.places
    anchors = [i for i in range(len(c)) if c[i] > 0.8]
    near = {
        int(places[j])
        for j in range(len(c))
        if c[j] > 0.5 and any(abs(places[i] - places[j]) <= 2 for i in anchors)
    }
    return near | {int(places[i]) for i in anchors} or {int(places[c.argmax()])}


def brute_hierarchy(view: View) -> set[int]:
    out = {int(view.places[view.confidence.argmax()])}
    sure = dict(zip(view.places.tolist(), view.confidence, strict=True))
    for place, value in sure.items():
        left = right = place
        while left - 1 in sure:
            left -= 1
        while right + 1 in sure:
            right += 1
        top = value == max(sure[each] for each in range(left, right + 1))
        if value > 0.8 or (top and value > 0.5):
            out.add(place)
    return out


def brute_entropy(view: View) -> set[int]:
    value = [
        e + 0.1 * (p - min(view.places)) for e, p in zip(view.entropy, view.places, strict=True)
    ]
    low = {int(p) for p, v in zip(view.places, value, strict=True) if v <= 0.4}
    return low or {int(view.places[int(np.argmin(value))])}


@pytest.mark.parametrize(
    ("sampler", "brute"),
    [
        ("factor", brute_factor),
        ("entropy-bound:gamma=0.5", brute_bound),
        ("local-leap:tau=0.8,radius=2,relaxed=0.5", brute_leap),
        ("hierarchical:low=0.5,high=0.8", brute_hierarchy),
        ("entropy:tau=0.4,penalty=0.1", brute_entropy),
    ],
)
def test_rules_are_their_definitions(sampler, brute):
    sizes = set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        places = sorted(rng.choice(14, 7, replace=False).tolist())
        view = view_of(random_laws(7, 4, seed, rng.choice([1, 2, 4])), places)
        assert chosen(sampler, view) == brute(view)
        sizes.add(len(brute(view)))
    assert len(sizes) >= 3  # the cases differ


def test_more_than_the_threshold_around_anchors():
    for seed in range(50):
        view = view_of(random_laws(8, 3, seed))
        assert chosen("local-leap:tau=0.8", view) >= chosen("threshold:tau=0.8", view)


def marginal(joint: ProbArray, axes: list[int]) -> ProbArray:
    others = tuple(axis for axis in range(joint.ndim) if axis not in axes)
    return joint.sum(axis=others)


def test_factor_one_fills_the_argmax_of_the_joint():
    parallel = 0
    for seed in range(400):
        joint = random_joint(3, 4, seed, 5.0)
        first = [
            f
            for f in decode(TableDenoiser(joint), "factor").work.process.canvas.trace
            if not f.step
        ]
        axes = sorted(fill.place - 1 for fill in first)
        if len(axes) > 1:
            parallel += 1
            part = marginal(joint, axes)
            filled = {fill.place - 1: fill.token for fill in first}
            assert np.unravel_index(part.argmax(), part.shape) == tuple(filled[a] for a in axes)
    assert parallel > 100


@pytest.mark.parametrize("places", [2, 3, 4])
def test_beyond_factor_one_there_is_a_counterexample(places):
    # Each text with a single 1 is a little likelier than 1 / (n + 1), and so than all zeros.
    each = 1 / (places + 1) + 1e-4
    joint = np.zeros((2,) * places)
    for index in np.eye(places, dtype=int):
        joint[tuple(index)] = each
    joint[(0,) * places] = 1 - places * each
    target = TableDenoiser(joint)
    assert decode(target, "factor:factor=1.01").generated == [0] * places
    assert joint[(0,) * places] < each
    found = decode(target, "factor").work.process.canvas.trace
    assert len([fill for fill in found if not fill.step]) == places - 1


def test_dream_shows_as_much_as_its_times_say():
    rule, view = Dream(10), view_of(random_laws(4000, 3, 0))
    state = rule.begin(view.canvas)
    left = list(range(4000))
    times = np.linspace(1, 1e-3, 11)
    while left:
        now = view_of(random_laws(len(left), 3, 1), left)
        now.canvas.tokens += [0] * (4000 - len(now.canvas.tokens))
        left = [
            left[i]
            for i in sorted(set(range(len(left))) - set(rule.choose(now, state).fill.tolist()))
        ]
        shown = 1 - len(left) / 4000
        assert shown == pytest.approx(1 - times[state[0]] if state[0] < 10 else 1, abs=0.03)


def test_dream_counts_are_the_floor_of_its_share_and_empty_steps_take_no_forward():
    target = TableDenoiser(random_joint(2, 6, 0))
    for by in ("origin", "confidence", "margin", "entropy"):
        found = decode(target, f"dream:steps=40,by={by}", seed=1)
        assert len(found.work.process.canvas.trace) == len(found.generated) == 6
        assert found.stats.target_forwards <= 6
    found = decode(target, "dream:steps=3,by=confidence").work.process.canvas.trace
    # 6 masks, times 1, 0.667, 0.334, 0.001: floor(6 / 3) = 2 (1.998 rounds down to 1), then ...
    times = np.linspace(1, 1e-3, 4)
    want, left = [], 6
    for step in range(3):
        count = left if step == 2 else int(left * (1 - times[step + 1] / times[step]))
        want += [step] * count
        left -= count
    assert [fill.step for fill in found] == want


def test_alg_temp_draws_places_by_their_softmax():
    view = view_of(np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5]]))
    weights = np.exp(np.array([0.9, 0.6, 0.5]) / 0.3)
    rule = Dream(3, "confidence", 0.3)
    counts = np.zeros(3)
    for seed in range(6000):
        drawn = view_of(view.probs, seed=seed)
        # The second of three steps fills one of two thirds: floor(3 * 0.4995) = 1 place.
        counts[rule.choose(drawn, [1]).fill] += 1
    assert counts / 6000 == pytest.approx(weights / weights.sum(), abs=0.02)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("dream:steps=0", "steps must be from 1"),
        ("dream:alg_temp=-1", "alg_temp must be from 0"),
        ("factor:factor=-1", "factor must be from 0"),
        ("hierarchical:low=0.9,high=0.5", "low must be from 0 to 0.5"),
        ("local-leap:radius=-1", "radius must be from 0"),
        ("entropy:penalty=-1", "penalty must be from 0"),
    ],
)
def test_options_out_of_range_are_named(sampler, message):
    with pytest.raises(InvalidOption, match=message):
        make_sampler(sampler)

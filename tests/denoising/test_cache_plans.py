"""Stale cache plans: where they are exact, what they ask, and the same text after preemption."""

from __future__ import annotations

import pytest
from tests.helpers.canvases import decode, decode_text, decoder_of, finish, network, start

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry.samplers import make_plan
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation

SAMPLERS = ("counts", "counts:per_step=2", "threshold:tau=0.6", "credit>threshold:tau=0.7")
PLANS = (
    "prefix",
    "freecache",
    "freecache:span=2",
    "dual",
    "dual:every=2",
    "vicinity:radius=1,warm=2",
    "window:width=4,active=2,cycle=3",
)
PARAMS = ({}, {"temperature": 1.0, "seed": 2})


def table(index: int, places: int = 6, **facts: object) -> TableDenoiser:
    facts.setdefault("begin", 2)
    return TableDenoiser(random_joint(3, places, index), **facts)  # type: ignore[arg-type]


def trace(sequence: Generation) -> list[object]:
    return sequence.work.process.canvas.trace


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("plan", ["prefix", "freecache", "freecache:span=2"])
@pytest.mark.parametrize("shifted", [False, True])
def test_prefixes_are_exact_for_block_causal_models(sampler, plan, shifted):
    for index in range(4):
        target = table(index, attention="block", block=2, shifted=shifted)
        for params in PARAMS:
            plain = decode(target, sampler, cache="none", **params)
            cached = decode(target, sampler, cache=plan, **params)
            assert trace(cached) == trace(plain)
            assert cached.stats.position_evaluations <= plain.stats.position_evaluations


@pytest.fixture(scope="module")
def full() -> CpuTarget:
    return network("full")


@pytest.fixture(scope="module")
def causal() -> CpuTarget:
    return network("block", 4)


# Tables know tokens alone. Keys of a network go stale, so these say more.
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("degenerate", "usual"),
    [
        ("dual:every=1", "dual"),
        ("dual:radius=99", "dual:radius=1"),
        ("dual:warm=9", "dual"),
        ("window:width=99,active=99,cycle=1", "window:width=8,active=4,cycle=3"),
        ("freecache:span=99", "freecache"),
    ],
)
def test_refreshed_at_each_step_they_are_the_model_and_else_not(full, sampler, degenerate, usual):
    def texts(plan: str) -> list[list[int]]:
        block = None if "window" in usual else 4
        sampled = [{"seed": seed, "temperature": 0.5} for seed in range(3)]
        return [
            decode_text(full, CanvasParams(sampler, block, plan), **params).generated
            for params in ({}, *sampled)
        ]

    plain = texts("prefix" if "free" in degenerate else "none")
    assert texts(degenerate) == plain
    assert texts(usual) != plain


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("plan", ["exact", "prefix", "freecache"])
def test_prefixes_are_exact_for_block_causal_networks_and_not_for_others(
    full, causal, sampler, plan
):
    for seed in range(3):
        params = {"seed": seed, "temperature": 0.5}
        plain = decode_text(causal, CanvasParams(sampler, 4, "none"), **params)
        cached = decode_text(causal, CanvasParams(sampler, 4, plan), **params)
        assert cached.generated == plain.generated
        assert cached.stats.position_evaluations <= plain.stats.position_evaluations
    if plan != "exact":
        stale = decode_text(full, CanvasParams(sampler, 4, plan), temperature=0.5)
        assert (
            stale.generated
            != decode_text(full, CanvasParams(sampler, 4), temperature=0.5).generated
        )


def test_the_dual_cache_of_a_block_is_that_of_its_first_forward():
    # A later step sees filled places of its block, and masks wherever the refresh saw masks.
    target = table(0, begin=1)
    decoder = decoder_of(target)
    sequence = start(target, CanvasParams("counts", block=2, cache="dual"))
    decoder.admit(sequence)
    for step in range(6):
        decoder.step([sequence])
        first = 1 + step // 2 * 2
        held = dict(sequence.cache.held)
        assert set(held) == set(range(7)) - {first, first + 1}
        assert all(token != target.mask for place, token in held.items() if place < first)
        assert all(token == target.mask for place, token in held.items() if place > first)


def test_evaluations_are_those_of_the_formulas():
    places, begin, block = 12, 3, 4

    def asked(plan: str) -> list[int]:
        target = TableDenoiser(random_joint(2, places, 0), begin)
        decode(target, "counts", cache=plan, block=block)
        return target.forwards

    whole = begin + places
    blocks = range(begin, begin + places, block)
    end = begin + places
    assert asked("none") == [whole] * places == [15] * 12
    assert asked("prefix") == [n for b in blocks for n in [whole] + [end - b] * (block - 1)]
    assert asked("dual") == [n for b in blocks for n in [whole] + [block] * (block - 1)]
    assert asked("freecache") == [
        n for b in blocks for n in [end - max(0, b - block if b > begin else 0)] + [end - b] * 3
    ]
    assert asked("vicinity:radius=1,warm=2") == [15, 15, 6, 6, 15, 15, 6, 6, 15, 15, 5, 5]


def test_the_window_asks_what_the_paper_counts():
    places, begin, width, active, cycle = 12, 3, 5, 2, 3
    target = TableDenoiser(random_joint(2, places, 0), begin)
    plan = f"window:width={width},active={active},cycle={cycle}"
    decode(target, "counts", cache=plan)
    want = []
    for step in range(places):
        since = step % cycle
        masks = places - step
        if since == 0:
            want.append(begin + step + min(width, masks))
        else:
            want.append(since + min(active, masks))
    assert target.forwards == want


def test_what_is_far_right_of_the_window_does_not_matter():
    plan = "window:width=4,active=2,cycle=3"
    for index in range(8):
        near, far = (
            trace(decode(table(index), "counts", cache=plan, max_new_tokens=n))[:3] for n in (6, 30)
        )
        assert near == far


def test_the_window_fills_the_first_masks_alone():
    plan = "window:width=4,active=2,cycle=3"
    for index in range(8):
        found = trace(decode(table(index), "counts:by=confidence", cache=plan))
        left = list(range(2, 8))
        for fill in found:
            assert fill.place in left[:2]
            left.remove(fill.place)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("params", PARAMS)
def test_texts_are_the_same_in_company_and_after_preemption(sampler, plan, params):
    block = None if "window" in plan else 3
    options = CanvasParams(sampler, block, plan)
    targets = table(3)
    alone = decode(targets, sampler, cache=plan, block=block, **params)
    decoder = decoder_of(targets)
    batch = [start(targets, options, id=i, **params) for i in range(3)]
    for each in batch:
        decoder.admit(each)
    decoder.step(batch[:1])
    decoder.step(batch[:2])
    for each in batch[:2]:
        if each.finish_reason is None:
            decoder.close(each)
            decoder.admit(each)
    finish(decoder, batch)
    assert [each.generated for each in batch] == [alone.generated] * 3
    assert all(trace(each) == trace(alone) for each in batch)


def test_a_refreshed_cache_after_a_cut():
    for plan in PLANS:
        block = None if "window" in plan else 3
        for index in range(6):
            options = {"cache": plan, "block": block, "max_new_tokens": 14, "ending": "cut"}
            found = decode(table(index, 3), "counts", **options)
            assert found.generated[-1] == table(index, 3).end


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("window:width=2,active=4", "active must be from 1 to 2, which is width"),
        ("dual:warm=0", "warm must be from 1"),
        ("freecache:span=-1", "span must be from 0"),
    ],
)
def test_options_out_of_range_are_named(plan, message):
    with pytest.raises(InvalidOption, match=message):
        make_plan(plan)


def test_a_window_is_not_for_shifted_models():
    with pytest.raises(InvalidOption, match="speak of the next place"):
        decode(table(0, shifted=True), "counts", cache="window")

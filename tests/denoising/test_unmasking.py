"""The standard process on tables: joints, equalities, caches, endings, batches, preemption."""

from __future__ import annotations

import pytest
from tests.helpers.canvases import decode, decoder_of, enumerated, finish, start

from paceline.core.types import CanvasParams, SamplingParams
from paceline.errors import InvalidOption
from paceline.proof.table_denoiser import TableDenoiser, random_joint

SAMPLERS = ("counts", "counts:per_step=2", "counts:steps=2,by=margin", "threshold:tau=0.6")


def table(seed: int = 0, places: int = 4, **facts: object) -> TableDenoiser:
    return TableDenoiser(random_joint(3, places, seed), **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("attention", ["full", "block"])
def test_one_place_a_step_has_the_law_of_the_joint(seed, attention):
    target = table(seed, 3, attention=attention, block=3 if attention == "block" else None)
    for by in ("confidence", "margin", "entropy", "leftmost"):
        distribution = enumerated(target, f"counts:by={by}")
        assert max(abs(distribution[text] - target.joint[text]) for text in distribution) < 1e-12


@pytest.mark.parametrize("sampler", SAMPLERS[1:])
def test_likelihoods_of_a_parallel_sampler_sum_to_one_and_differ_from_the_joint(sampler):
    target = table(1)
    distribution = enumerated(target, sampler)
    assert abs(sum(distribution.values()) - 1) < 1e-12
    assert max(abs(distribution[text] - target.joint[text]) for text in distribution) > 1e-3


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}])
def test_equalities(seed, params):
    target = table(seed, 6)

    def trace(sampler, block=None):
        return decode(target, sampler, block=block, **params).work.process.canvas.trace

    assert trace("threshold:tau=1.1") == trace("counts")
    assert trace("counts:steps=6") == trace("counts")
    assert trace("counts:by=leftmost") == trace("counts", block=1)
    assert len({fill.step for fill in trace("counts:steps=1")}) == 1
    assert [f.step for f in trace("counts:steps=4")] == [0, 0, 1, 1, 2, 3]
    assert sorted(trace("threshold:tau=0")) == sorted(trace("counts:per_step=6"))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("begin", [1, 2, 4])
def test_the_exact_cache_changes_nothing_and_asks_less(sampler, block, shifted, begin):
    target = table(5, 6, begin=begin, attention="block", block=block, shifted=shifted)
    for params in ({}, {"temperature": 1.0, "seed": 2}):
        plain = decode(target, sampler, cache="none", **params)
        cached = decode(target, sampler, cache="exact", **params)
        assert cached.work.process.canvas.trace == plain.work.process.canvas.trace
        assert cached.stats.position_evaluations <= plain.stats.position_evaluations
        assert cached.stats.target_forwards == plain.stats.target_forwards


def test_a_block_of_one_is_greedy_decoding_from_the_left():
    target = table(3, 5, attention="block", block=1)
    text: list[int] = []
    for place in range(5):
        known = [(target.begin + index, token) for index, token in enumerate(text)]
        text.append(int(target.conditional(target.begin + place, known).argmax()))
    assert decode(target, "counts").generated == text


def test_end_tokens_end_the_text_or_cut_the_canvas():
    target = table(2, 3)
    plain = decode(target, "counts", max_new_tokens=8)
    assert plain.generated[-1] == target.end
    assert plain.finish_reason == "stop"
    cut = decode(target, "counts", max_new_tokens=8, ending="cut")
    assert cut.generated == plain.generated
    assert cut.stats.position_evaluations < plain.stats.position_evaluations
    held = decode(target, "counts", max_new_tokens=8, ending="hold")
    assert held.generated == plain.generated


def test_forced_tokens_are_pinned_where_they_stand():
    target = table(4, 5)
    found = decode(target, "threshold:tau=0.5", forced_tokens={2: 1, 4: 0}).generated
    assert (found[2], found[4]) == (1, 0)
    with pytest.raises(InvalidOption, match="forced_tokens wants a token at 7"):
        decode(target, "counts", forced_tokens={7: 0})


def test_sampling_controls_reach_every_place():
    target = table(6, 5)
    assert 1 not in decode(target, "counts", banned_tokens=(1,)).generated
    assert set(decode(target, "counts", logit_bias={2: 50.0}).generated) == {2}
    varied = decode(target, "counts", frequency_penalty=30.0).generated
    assert max(varied.count(symbol) for symbol in range(3)) == 2
    assert decode(target, "counts", top_k=1, temperature=1.0, seed=4).generated == (
        decode(target, "counts").generated
    )
    scored = decode(target, "counts", logprobs=2)
    assert [each.token_id for each in scored.logprobs] == scored.generated


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_texts_are_the_same_in_company_and_after_preemption(sampler):
    target = table(7, 6, attention="block", block=2)
    options = CanvasParams(sampler)
    alone = [decode(target, sampler, temperature=0.8, seed=seed).generated for seed in range(4)]
    decoder = decoder_of(target)
    batch = [start(target, options, id=i, temperature=0.8, seed=i) for i in range(4)]
    finish(decoder, batch[:1])
    finish(decoder, batch[1:])
    assert [each.generated for each in batch] == alone
    again = [start(target, options, id=i, temperature=0.8, seed=i) for i in range(4)]
    for each in again:
        decoder.admit(each)
    steps = 0
    while left := [each for each in again if each.finish_reason is None]:
        decoder.step(left)
        steps += 1
        for each in left[steps % 2 :: 2]:
            if each.finish_reason is None:  # preempted, and admitted again
                decoder.close(each)
                decoder.admit(each)
    assert [each.generated for each in again] == alone


def test_steps_show_what_is_filled():
    target = table(8, 5)
    decoder = decoder_of(target)
    sequence = start(target, CanvasParams("counts", steps=True))
    decoder.admit(sequence)
    shown = [target.mask] * 5
    while sequence.finish_reason is None:
        [commit] = decoder.step([sequence])
        assert len(commit.fills) == 1
        for index, token in commit.fills:
            shown[index] = token
    assert shown == sequence.generated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CanvasParams("nonsense"), "sampler 'nonsense' is unknown"),
        (CanvasParams("threshold:tau=-1"), "tau must be from 0"),
        (CanvasParams("counts>counts"), "does not go into"),
        (CanvasParams(block=3), "block 3 does not divide 4"),
        (CanvasParams(cache="nonsense"), "cache 'nonsense' is unknown"),
    ],
)
def test_bad_options_name_the_part(options, message):
    target = table(0, 4, attention="block", block=4)
    with pytest.raises(InvalidOption, match=message):
        decoder_of(target).check(SamplingParams(), options)


def test_a_plan_for_another_attention_is_refused():
    with pytest.raises(InvalidOption, match="cache 'exact' is for attention block"):
        decoder_of(table()).check(SamplingParams(), CanvasParams(cache="exact"))

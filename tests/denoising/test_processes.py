"""Processes of their own: a guide, spans filled anew, a window in the order of filling; masks."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.canvases import (
    PROMPT,
    decode,
    decode_text,
    decoder_of,
    finish,
    network,
    random_laws,
    start,
    view_of,
)
from tests.helpers.target_contract import all_rows

from paceline.core.target import Rows
from paceline.core.types import CanvasParams, SamplingParams
from paceline.denoising.caches import CachePlan
from paceline.denoising.canvas import visible
from paceline.denoising.decoder import DenoisingDecoder
from paceline.denoising.unmasking import Unmasking
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.canvas.genmol import GenMol, Remask
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry.samplers import make_parts
from paceline.sampling.generation import Generation

PARAMS = ({}, {"temperature": 1.0, "seed": 3})


def table(index: int, places: int = 6, **facts: object) -> TableDenoiser:
    return TableDenoiser(random_joint(3, places, index), **facts)  # type: ignore[arg-type]


def decoder_of_network(target):
    facts = target.capabilities.denoises
    return DenoisingDecoder(target, facts, StopRules((), 96), make_parts)


def start_network(target, options):
    params = SamplingParams(max_new_tokens=12)
    return Generation.start(0, list(PROMPT), params, denoising=options)


# A guide.


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("cache", ["none", "exact"])
def test_a_guide_that_always_agrees_and_one_that_never_does(params, cache):
    for index in range(6):
        target = table(index, begin=3, attention="block", block=3, autoregressive=True)
        found = decode(target, "guided:top=9", cache=cache, **params)
        assert found.stats.target_forwards == 4  # two of each block
        assert [fill.step for fill in found.work.process.canvas.trace] == [0, 0, 0, 1, 1, 1]
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams("guided", cache=cache), **params)
        decoder.admit(sequence)
        sequence.work.process.rule.agreed = lambda logits, view: 0
        finish(decoder, [sequence])
        left = decode(target, "counts:by=leftmost", cache=cache, **params)
        assert sequence.work.process.canvas.trace == left.work.process.canvas.trace


@pytest.mark.parametrize("params", PARAMS)
def test_a_guide_keeps_the_longest_run_of_picks_that_it_would_write(params):
    lengths = set()
    for index in range(12):
        target = table(index, attention="full", autoregressive=True)
        found = decode(target, "guided", **params).work.process.canvas
        text = found.tokens
        steps: dict[int, list[int]] = {}
        for fill in found.trace:
            steps.setdefault(fill.step, []).append(fill.place)
        for places in steps.values():
            lengths.add(len(places))
            known = [(p, text[p]) for p in range(1, places[0])]
            picks = decode(
                target, "counts:per_step=6", **params, forced_tokens={p - 1: t for p, t in known}
            ).generated
            run = 0
            for place in range(places[0], 7):
                before = known + [(p, picks[p - 1]) for p in range(places[0], place)]
                if target.conditional(place, before).argmax() != picks[place - 1]:
                    break
                run += 1
            assert len(places) == max(1, run)
            assert [text[p] for p in places] == [picks[p - 1] for p in places]
    assert len(lengths) > 2


def test_a_guide_needs_next_token_rows():
    with pytest.raises(InvalidOption, match="clean rows predict the next token"):
        decode(table(0), "guided")


# Spans that are filled anew.


def test_noise_fades_and_without_it_the_surest_pick_is_first():
    view = view_of(random_laws(8, 3, 0))
    assert GenMol(0).choose(view, None).fill == [int(view.picked.argmax())]
    firsts = {
        int(GenMol(9).choose(view_of(random_laws(8, 3, 0), seed=s), None).fill[0])
        for s in range(40)
    }
    assert len(firsts) > 4
    late = view_of(random_laws(2, 3, 0), [6, 7])
    late.canvas.block = range(10_000)
    late.canvas.tokens += [0] * 9_992
    assert all(GenMol(9).choose(late, None).fill == [int(late.picked.argmax())] for _ in range(10))


@pytest.mark.parametrize("objective", [None, sum])
def test_better_texts_are_kept_and_only_the_span_changes(objective):
    improved = 0
    for seed in range(12):
        target = table(seed, 8)
        rule = Remask(GenMol(), rounds=6, span=3, objective=objective)
        decoder = decoder_of(target)
        decoder._make_parts = lambda options, facts, rule=rule: (rule, CachePlan())
        sequence = start(target, CanvasParams(), temperature=1.0, seed=seed, forced_tokens={2: 1})
        decoder.admit(sequence)
        process = sequence.work.process
        texts, tops = [], []
        judge = process._judge

        def watch(score, process=process, judge=judge, texts=texts, tops=tops):
            texts.append(list(process.canvas.tokens))
            judge(score)
            tops.append(process.best.score)

        process._judge = watch
        finish(decoder, [sequence])
        assert tops == sorted(tops)
        assert len(process.scores) == 7
        assert sequence.generated == process.best.tokens[1:]
        assert sequence.generated[2] == 1
        best = texts[0]
        for text, score, before in zip(texts[1:], process.scores[1:], tops, strict=False):
            changed = [i for i, (a, b) in enumerate(zip(text, best, strict=True)) if a != b]
            assert not changed or changed[-1] - changed[0] < 3
            if score > before:
                best, improved = text, improved + 1
        if objective is sum:
            assert process.best.score == sum(sequence.generated)
        else:
            want = 0.0
            for place in range(1, 9):
                rest = [(p, t) for p, t in enumerate(process.best.tokens) if p != place]
                want += np.log(target.conditional(place, rest)[process.best.tokens[place]])
            assert process.best.score == pytest.approx(want, rel=1e-9)
    assert improved > 5


def test_no_rounds_are_the_inner_rule_and_caches_are_refused():
    for index in range(5):
        plain = decode(table(index), "genmol", temperature=1.0, seed=1)
        found = decode(table(index), "remask:rounds=0>genmol", temperature=1.0, seed=1)
        assert found.generated == plain.generated
    with pytest.raises(InvalidOption, match="use cache none"):
        decode(table(0), "remask>genmol", cache="dual")


@pytest.mark.parametrize(
    ("attention", "facts", "sampler", "message"),
    [
        ("order", {"shifted": True}, "wedlm>counts", "masks that predict their own place"),
        ("full", {}, "wedlm>counts", "is for attention order"),
        ("order", {}, "wedlm>revise>counts", "changes what it has filled"),
        ("block", {}, "remask>counts", "is for attention full"),
        ("block", {}, "guided:top=0", "top must be from 1"),
    ],
)
def test_models_that_a_process_does_not_serve_are_named(attention, facts, sampler, message):
    with pytest.raises(InvalidOption, match=message):
        decode(table(0, attention=attention, **facts), sampler)


# A window in the order of filling.

WINDOWS = ("wedlm:window=3>entropy:tau=0.6,penalty=0.1", "wedlm:window=4>counts:per_step=2")


@pytest.mark.parametrize("sampler", [f"wedlm:window={n}>entropy:tau=-1" for n in (1, 3, 9)])
def test_without_sure_places_a_window_fills_one_a_forward(sampler):
    for index in range(5):
        found = decode(table(index, attention="order"), sampler)
        assert found.stats.target_forwards == 6


@pytest.mark.parametrize("sampler", WINDOWS)
@pytest.mark.parametrize("params", PARAMS)
def test_the_window_keeps_what_is_final_and_asks_no_more(sampler, params):
    for index in range(8):
        target = table(index, 8, attention="order", begin=2)
        plain = decode(target, sampler, cache="none", **params)
        target.forwards.clear()
        found = decode(target, sampler, cache="exact", **params)
        assert found.work.process.canvas.trace == plain.work.process.canvas.trace
        width = int(sampler[13])
        # A window that was filled whole rides in the next one's forward.
        assert all(rows <= 2 * width for rows in target.forwards[1:])
        if "entropy" in sampler:
            assert sum(rows > width for rows in target.forwards[1:]) <= 1
        assert found.stats.target_forwards >= 8 / width
        held = found.cache.held
        assert held == list(enumerate(found.work.process.canvas.tokens))[: len(held)]
        decoder = decoder_of(target)
        again = start(target, CanvasParams(sampler), **params)
        decoder.admit(again)
        decoder.step([again])
        decoder.step([again])
        decoder.close(again)  # preempted
        finish(decoder, [again])
        assert again.generated == found.generated


def test_given_tokens_in_a_window_and_a_cut():
    for index in range(5):
        target = table(index, 6, attention="order")
        found = decode(target, WINDOWS[0], forced_tokens={1: 2, 2: 2, 3: 2})
        assert found.generated[1:4] == [2, 2, 2]
        cut = decode(target, WINDOWS[0], max_new_tokens=12, ending="cut")
        assert cut.generated == decode(target, WINDOWS[0], max_new_tokens=12).generated


@pytest.fixture(scope="module")
def ordered():
    return network("order")


@pytest.mark.parametrize("sampler", WINDOWS)
def test_kept_keys_are_those_of_a_causal_prefill_of_the_text(ordered, sampler):
    options = CanvasParams(sampler)
    decoder = decoder_of_network(ordered)
    sequence = start_network(ordered, options)
    finish(decoder, [sequence])
    tokens = sequence.work.process.canvas.tokens
    length = sequence.cache.length
    assert length > len(PROMPT)
    fresh = ordered.open()
    ordered.prefill(fresh, tokens[:length])
    stale = ordered.open()  # the control: another text's keys
    ordered.prefill(stale, [*tokens[: length - 1], 200])
    rows = []
    for cache in (sequence.cache, fresh, stale):
        [out] = ordered.forward([all_rows(cache, [77, 78])])
        rows.append(out.logits.copy())
        ordered.release(cache)
    assert np.abs(rows[0] - rows[1]).max() < 1e-4
    assert np.abs(rows[0] - rows[2]).max() > 1e-2


def test_reordered_rows_are_the_text_under_an_explicit_mask(ordered):
    decoder = decoder_of_network(ordered)
    sequence = start_network(ordered, CanvasParams("wedlm:window=6>counts:by=random"))
    decoder.admit(sequence)
    for _ in range(3):
        decoder.step([sequence])
    process = sequence.work.process
    ask = process.ask()
    assert list(ask.places) != sorted(ask.places)
    order = np.argsort(ask.places)
    inside = Rows.block(sequence.cache, ask.tokens, ask.places, ask.sees)
    explicit = Rows.block(
        sequence.cache, ask.tokens[order], ask.places[order], ask.sees[order][:, order]
    )
    causal = Rows.block(
        sequence.cache, ask.tokens[order], ask.places[order], np.tri(len(order), dtype=np.bool_)
    )
    a, b, c = (ordered.forward([each])[0].logits.copy() for each in (inside, explicit, causal))
    ordered.release(sequence.cache)
    assert np.abs(a[order] - b).max() < 1e-4
    assert np.abs(a[order] - c).max() > 1e-2


def test_windows_on_a_network_do_not_depend_on_the_cache(ordered):
    for sampler in WINDOWS:
        plain, kept = (
            decode_text(ordered, CanvasParams(sampler, None, cache), temperature=0.5)
            for cache in ("none", "exact")
        )
        assert plain.generated == kept.generated
        assert kept.stats.position_evaluations < plain.stats.position_evaluations


# Settings of block-causal models.


@pytest.mark.parametrize("sampler", ["threshold:tau=0.85,least=2", "threshold:tau=0.02"])
@pytest.mark.parametrize("block", [2, 8])
def test_sub_blocks_of_a_shifted_network_begin_from_a_clean_row(sampler, block):
    target = network("block", 8, shifted=True, autoregressive=True)
    options = CanvasParams(sampler, block)
    plain = decode_text(target, CanvasParams(sampler, block, "none"), max_new_tokens=20)
    assert decode_text(target, options, max_new_tokens=20).generated == plain.generated
    decoder, sequence = decoder_of_network(target), start_network(target, options)
    decoder.admit(sequence)
    process, begun = sequence.work.process, []
    assert isinstance(process, Unmasking)
    ask = process.ask

    def watched():
        asked = ask()
        if process.fresh:
            before = process.canvas.block.start - 1
            if before >= process.canvas.begin:
                begun.append(before)
                assert process.canvas.tokens[before] != process.canvas.mask
                assert before in asked.places
        return asked

    process.ask = watched
    finish(decoder, [sequence])
    target.release(sequence.cache)
    assert begun


def test_blocks_of_unequal_size_are_text_that_is_causal_and_images_that_are_whole():
    rng = np.random.default_rng(0)
    for _ in range(30):
        # Text in blocks of one, an image of several places, text again, ...
        sizes = [
            int(size)
            for part in range(4)
            for size in ([1] * rng.integers(1, 4), [rng.integers(2, 6)])[part % 2]
        ]
        number = [index for index, size in enumerate(sizes) for _ in range(size)]
        starts = np.cumsum([0, *sizes[:-1]])
        rows = rng.choice(len(number), 5)
        keys = np.arange(len(number))
        seen = visible(rows, keys, "block", starts)
        for i, row in enumerate(rows):
            for key in keys:
                image = number[row] == number[key]
                assert seen[i, key] == (key <= row or image)
    places = np.arange(7)
    assert (visible(places, places, "block", places) == np.tri(7, dtype=bool)).all()
    equal = visible(places, places, "block", np.array([0, 3, 6]))
    assert (equal == visible(places, places, "block", 3)).all()


@pytest.mark.parametrize("sampler", ["counts", "threshold:tau=0.02", "freedave>counts"])
@pytest.mark.parametrize("block", [4, 12])
def test_behind_a_causal_prompt_the_answer_has_blocks_of_its_own(sampler, block):
    target = network("block", autoregressive=True)
    begin, seen, texts = len(PROMPT), [], []
    for prompt_rows in ("causal", "blocks"):
        given = {"prompt_rows": prompt_rows}
        options = CanvasParams(sampler, block, "none", **given)
        texts.append(decode_text(target, options).generated)
        kept = decode_text(target, CanvasParams(sampler, block, "exact", **given))
        assert kept.generated == texts[-1]
        decoder, sequence = decoder_of_network(target), start_network(target, options)
        decoder.admit(sequence)
        ask = sequence.work.process.ask()
        seen.append((ask.places, ask.sees, sequence.work.process.canvas.block))
        target.release(sequence.cache)
    assert texts[0] != texts[1]
    places, sees, first = seen[0]
    assert first == range(begin, begin + block)
    assert places.tolist() == list(range(begin + block))
    for row in places:
        for key in places:
            assert sees[row, key] == (key <= row if row < begin else True)
    assert seen[1][2].start == begin // block * block, "blocks are counted from the prompt's begin"


def test_an_image_behind_a_causal_prompt_is_filled_as_on_the_whole_canvas():
    # Blocks of one and the image as one: the row of every place by the model's own forward.
    target = network("block", autoregressive=True)
    options = CanvasParams("counts:steps=1", 12, prompt_rows="causal")
    found = decode_text(target, options)
    tokens = np.array([*PROMPT, *[3] * 12])
    places = np.arange(len(tokens))
    sees = visible(places, places, "block", np.arange(len(PROMPT) + 1))
    cache = target.open()
    [output] = target.forward([Rows.block(cache, tokens, places, sees)])
    target.release(cache)
    logits = output.logits[len(PROMPT) :].copy()
    logits[:, 3] = -np.inf
    assert found.generated == logits.argmax(axis=1).tolist()


def test_a_causal_prompt_is_for_models_with_blocks():
    for attention in ("full", "order", "causal"):
        with pytest.raises(InvalidOption, match=f"attention is {attention}: leave it out"):
            decode_text(network(attention), CanvasParams(prompt_rows="causal"))
    with pytest.raises(InvalidOption, match="blocks or causal, not 'text'"):
        CanvasParams(prompt_rows="text")

"""TiDAR's groups and linear speculation: the model's own autoregressive distribution and text."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.helpers.canvases import decode, decoder_of, finish, start

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.proof.oracle import ScriptedRandomness, enumerate_distribution
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.sampling.distributions import from_dense, gumbel_max
from paceline.sampling.randomness import KeyedRandomness

SAMPLERS = ("tidar", "tidar:width=1", "linear-spec", "linear-spec:width=2")


def table(seed=0, symbols=3, places=5, **facts) -> TableDenoiser:
    joint = random_joint(symbols, places, seed)
    return TableDenoiser(joint, autoregressive=True, **{"attention": "block", "block": 4} | facts)


def from_the_left(target: TableDenoiser, randomness=None) -> list[int]:
    """Plain autoregressive decoding: greedy, or with noise keyed by position."""
    text: list[int] = []
    for place in range(target.begin, target.begin + target.joint.ndim):
        known = [(target.begin + index, token) for index, token in enumerate(text)]
        distribution = from_dense(target.conditional(place, known))
        drawn = (
            distribution.argmax()
            if randomness is None
            else gumbel_max(distribution, place, randomness)
        )
        text.append(drawn)
    return text


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("shifted", [False, True])
def test_texts_are_those_of_autoregressive_decoding(sampler, shifted):
    for seed in range(25):
        target = table(seed, begin=1 + seed % 3, shifted=shifted)
        greedy = decode(target, sampler)
        assert greedy.generated == from_the_left(target)
        drawn = decode(target, sampler, temperature=1.0, seed=seed)
        assert drawn.generated == from_the_left(target, KeyedRandomness(seed))


def distribution(target: TableDenoiser, sampler: str):
    def run(randomness):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler), temperature=1.0)
        sequence.randomness = randomness
        decoder.admit(sequence)
        finish(decoder, [sequence])
        return tuple(sequence.generated)

    return enumerate_distribution(run)


def apart(found, target: TableDenoiser) -> float:
    texts = product(range(target.symbols), repeat=target.joint.ndim)
    return max(abs(found.get(text, 0.0) - target.joint[text]) for text in texts)


@pytest.mark.parametrize("sampler", ["tidar:width=2", "linear-spec:width=3", "tidar:prune=0.4"])
@pytest.mark.parametrize("shifted", [False, True])
def test_drawn_drafts_have_the_models_law(sampler, shifted):
    separator = "," if ":" in sampler else ":"
    target = table(1, 2, 4, shifted=shifted)
    assert apart(distribution(target, f"{sampler}{separator}verifier=rejection"), target) < 1e-12


def test_accepting_everything_has_another_law(monkeypatch):
    monkeypatch.setattr(ScriptedRandomness, "bernoulli", lambda self, probability, draw: True)
    target = table(1, 2, 4)
    assert apart(distribution(target, "tidar:verifier=rejection"), target) > 1e-3


def test_sample_match_has_the_text_of_its_own_draws():
    for seed in range(20):
        target = table(seed)
        params = {"temperature": 1.0, "seed": seed}
        one = decode(target, "tidar:width=1,verifier=sample-match,prune=1", **params)
        assert one.stats.target_forwards == 5
        assert decode(target, "tidar:verifier=sample-match", **params).generated == one.generated


def test_pruning_and_the_form_change_forwards_alone():
    counts = dict.fromkeys(("tidar", "tidar:prune=0.3", "tidar:prune=1", "linear-spec"), 0)
    for seed in range(20):
        target = table(seed, places=6)
        texts = set()
        for sampler in counts:
            found = decode(target, sampler)
            texts.add(tuple(found.generated))
            counts[sampler] += found.stats.target_forwards
        assert len(texts) == 1
    assert counts["tidar"] < counts["tidar:prune=0.3"] < counts["tidar:prune=1"] == 20 * 6
    assert counts["tidar"] < counts["linear-spec"]


def test_controls_of_a_request_reach_both_roles():
    for seed in range(10):
        target = table(seed)
        plain = {"temperature": 0.9, "seed": seed, "frequency_penalty": 2.0}
        for params in (plain, {"forced_tokens": {1: 2, 3: 0}}, {"banned_tokens": (1,)}):
            one = decode(target, "tidar:prune=1", **params)
            assert decode(target, "tidar", **params).generated == one.generated
            assert decode(target, "linear-spec", **params).generated == one.generated
    scored = decode(table(0), "tidar", logprobs=2)
    assert [each.token_id for each in scored.logprobs] == scored.generated


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_texts_are_the_same_where_nothing_stays_cached(sampler):
    for seed in range(8):
        target = table(seed)
        params = {"temperature": 1.0, "seed": seed}
        alone = decode(target, sampler, **params)
        decoder = decoder_of(target)
        other = start(target, CanvasParams(sampler), **params)
        while other.finish_reason is None:
            decoder.admit(other)
            decoder.step([other])
            decoder.close(other)
        assert other.generated == alone.generated
        assert other.stats.target_forwards == alone.stats.target_forwards


def test_rows_of_groups_by_brute_force():
    target = table(0, places=9, begin=3)
    decoder = decoder_of(target)
    sequence = start(target, CanvasParams("tidar:width=2"), [0, 1, 0])
    decoder.admit(sequence)
    process = sequence.work.process
    for _ in range(2):
        ask = process.ask()
        text, drafts = len(process.canvas.tokens), len(process.drafts)
        named = [("clean", place, 0) for place in range(process.held, text + drafts)]
        for group in range(drafts + 1):
            named += [("mask", text + group + slot, group) for slot in range(3)]
        assert [place for _, place, _ in named] == ask.places.tolist()
        for row, (kind, place, group) in enumerate(named):
            assert (ask.tokens[row] == target.mask) == (kind == "mask")
            for other, (theirs, seen, of) in enumerate(named):
                if theirs == "clean":
                    may = seen <= place if kind == "clean" else seen < text + group
                else:
                    may = kind == "mask" and of == group
                assert ask.sees[row, other] == may
        decoder.step([sequence])


def test_models_without_a_next_token_are_refused():
    target = TableDenoiser(random_joint(2, 3, 0), attention="block", block=4)
    for sampler in ("tidar", "linear-spec"):
        with pytest.raises(InvalidOption, match=f"'{sampler}' is for models whose clean rows"):
            decode(target, sampler)
    with pytest.raises(InvalidOption, match="verifier"):
        decode(table(), "tidar:verifier=nonsense")
    assert np.isfinite(table().joint).all()

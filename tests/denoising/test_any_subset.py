"""ASSD on tables: the joint for every set of known places, a forward a token at most."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from tests.helpers.canvases import decode, decoder_of, finish, start

from paceline.core.types import CanvasParams
from paceline.denoising import any_subset
from paceline.errors import InvalidOption
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.table_denoiser import TableDenoiser, random_joint


def table(seed: int = 0, symbols: int = 2, places: int = 4, begin: int = 1) -> TableDenoiser:
    return TableDenoiser(random_joint(symbols, places, seed), begin, "order")


def distribution(target: TableDenoiser, sampler: str, **params):
    """Every outcome of every draw; a forward for each token at most."""

    def run(randomness):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler), temperature=1.0, **params)
        sequence.randomness = randomness
        decoder.admit(sequence)
        finish(decoder, [sequence])
        pinned = len(params.get("forced_tokens", ()))
        assert sequence.stats.target_forwards <= target.joint.ndim - pinned
        return tuple(sequence.generated)

    return enumerate_distribution(run)


def apart(found, target: TableDenoiser, pinned=()) -> float:
    """Largest distance from the joint, given the pinned places."""
    texts = [
        text
        for text in product(range(target.symbols), repeat=target.joint.ndim)
        if all(text[index] == token for index, token in dict(pinned).items())
    ]
    mass = sum(target.joint[text] for text in texts)
    assert not {*found} - {*texts}
    return max(abs(found.get(text, 0.0) - target.joint[text] / mass) for text in texts)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 10])
def test_the_law_is_the_joints(width):
    for seed, symbols, places in ((0, 2, 4), (1, 3, 3)):
        target = table(seed, symbols, places)
        assert apart(distribution(target, f"assd:width={width}"), target) < 1e-12


def test_for_every_set_of_known_places():
    target = table(2)
    for count in (1, 2, 3):
        for places in combinations(range(4), count):
            pinned = {place: (place + count) % 2 for place in places}
            assert (
                apart(distribution(target, "assd:width=3", forced_tokens=pinned), target, pinned)
                < 1e-12
            )


def test_accepting_everything_has_another_law(monkeypatch):
    monkeypatch.setattr(any_subset, "verified", lambda p, q, token, *rest: token)
    target = table(0)
    assert apart(distribution(target, "assd"), target) > 1e-3


def test_drafts_save_forwards_and_greedy_texts_are_sequential():
    saved = 0
    for seed in range(30):
        target = table(seed, 3, 6, 1 + seed % 3)
        one, many = decode(target, "assd:width=1"), decode(target, "assd")
        assert many.generated == one.generated
        assert one.stats.target_forwards == 6
        assert many.stats.target_forwards <= 6
        saved += 6 - many.stats.target_forwards
    assert saved > 20


def test_texts_are_the_same_where_nothing_stays_cached():
    # A cache that is lost at every step is recomputation.
    for seed in range(20):
        target = table(seed, 3, 6)
        params = {"temperature": 1.0, "seed": seed, "forced_tokens": {3: 1}}
        alone = decode(target, "assd:width=3", **params)
        decoder = decoder_of(target)
        other = start(target, CanvasParams("assd:width=3"), **params)
        while other.finish_reason is None:
            decoder.admit(other)
            decoder.step([other])
            decoder.close(other)
        assert other.generated == alone.generated
        assert other.stats.position_evaluations > alone.stats.position_evaluations


def test_penalties_count_accepted_drafts():
    for seed in range(10):
        target = table(seed, 3, 6)
        params = {"frequency_penalty": 3.0, "logit_bias": {1: 0.5}}
        one = decode(target, "assd:width=1", **params).generated
        assert decode(target, "assd", **params).generated == one


def test_rows_see_what_is_before_them_in_the_order():
    target = table(0, 3, 5)
    decoder = decoder_of(target)
    sequence = start(target, CanvasParams("assd:width=3"), forced_tokens={2: 1})
    decoder.admit(sequence)
    process = sequence.work.process
    for _ in range(2):
        ask = process.ask()
        order = process.order.tolist()
        clean = [row for row, token in enumerate(ask.tokens) if token != target.mask]
        for row, place in enumerate(ask.places.tolist()):
            for other, seen in enumerate(ask.places.tolist()):
                before = order.index(seen) < order.index(place)
                may = other == row or (other in clean and before)
                assert ask.sees[row, other] == may
        decoder.step([sequence])


def test_it_is_for_models_of_any_subset():
    with pytest.raises(InvalidOption, match="assd' is for attention order"):
        decode(TableDenoiser(random_joint(2, 3, 0)), "assd")


def test_an_unknown_width_is_an_error():
    with pytest.raises(InvalidOption, match="width"):
        decode(table(), "assd:width=0")
    assert np.isfinite(decode(table(), "assd", temperature=1.0).stats.target_forwards)

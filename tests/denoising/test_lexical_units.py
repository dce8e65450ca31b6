"""Lexical units: the distribution of texts by its definition, and plain decoding as the limit."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.denoising.test_self_verified import apart, distribution, from_the_left, table
from tests.helpers.canvases import decode, decoder_of, start

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.methods.canvas import lexical_units
from paceline.proof.table_denoiser import TableDenoiser
from paceline.sampling.randomness import KeyedRandomness
from paceline.verifiers.rejection import Rejection


def by_definition(target: TableDenoiser, width: int, tau: float) -> dict[tuple[int, ...], float]:
    """A token given the text, then tokens given the same text while one is above tau."""
    out: dict[tuple[int, ...], float] = defaultdict(float)

    def grow(text: tuple[int, ...], mass: float, known: int) -> None:
        # `known` tokens were known to the forward that draws the next one.
        place = len(text)
        if mass == 0 or place == target.joint.ndim:
            out[text] += mass
            return
        seen = [(target.begin + at, token) for at, token in enumerate(text[:known])]
        shares = target.conditional(target.begin + place, seen)
        if place > known and (place > known + width or shares.max() <= tau):
            grow(text, mass, place)
            return
        for token in range(target.symbols):
            grow((*text, token), mass * float(shares[token]), known)

    grow((), 1.0, 0)
    return out


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("width", "tau"), [(1, 0.0), (2, 0.6), (3, 0.7), (2, 1.0)])
def test_texts_have_the_distribution_of_the_definition(monkeypatch, width, tau, shifted):
    monkeypatch.setattr(lexical_units, "Coupled", Rejection)  # whose draws can be enumerated
    for seed in range(3):
        target = table(seed, 2, 4, shifted=shifted)
        found = distribution(target, f"lexical-units:width={width},tau={tau}")
        wanted = by_definition(target, width, tau)
        assert sum(wanted.values()) == pytest.approx(1)
        assert max(abs(found.get(text, 0.0) - p) for text, p in wanted.items()) < 1e-12
        if tau == 1:
            assert apart(found, target) < 1e-12


def test_it_is_lossy_and_another_threshold_has_another_distribution(monkeypatch):
    monkeypatch.setattr(lexical_units, "Coupled", Rejection)
    target = table(1, 2, 4)
    found = distribution(target, "lexical-units:width=2,tau=0.6")
    assert apart(found, target) > 1e-3
    wanted = by_definition(target, 2, 0.0)
    assert max(abs(found.get(text, 0.0) - p) for text, p in wanted.items()) > 1e-3


@pytest.mark.parametrize("shifted", [False, True])
def test_at_threshold_one_texts_are_those_of_autoregressive_decoding(shifted):
    for seed in range(25):
        target = table(seed, begin=1 + seed % 3, shifted=shifted)
        greedy = decode(target, "lexical-units:tau=1")
        assert greedy.generated == from_the_left(target)
        assert greedy.stats.target_forwards == 5
        drawn = decode(target, "lexical-units:tau=1", temperature=1.0, seed=seed)
        assert drawn.generated == from_the_left(target, KeyedRandomness(seed))


def test_a_lower_threshold_takes_fewer_forwards():
    counts = [0, 0, 0]
    for seed in range(20):
        for index, tau in enumerate((1.0, 0.6, 0.0)):
            found = decode(table(seed, places=6), f"lexical-units:width=2,tau={tau}")
            counts[index] += found.stats.target_forwards
    assert counts[0] == 20 * 6 > counts[1] > counts[2] == 20 * 2


def test_controls_of_a_request_and_a_lost_cache():
    for seed in range(10):
        target = table(seed)
        found = decode(target, "lexical-units:tau=0.5", forced_tokens={1: 2, 3: 0})
        assert (found.generated[1], found.generated[3]) == (2, 0)
        assert 1 not in decode(target, "lexical-units:tau=0", banned_tokens=(1,)).generated
        params = {"temperature": 1.0, "seed": seed}
        alone = decode(target, "lexical-units:tau=0.5", **params)
        decoder = decoder_of(target)
        other = start(target, CanvasParams("lexical-units:tau=0.5"), **params)
        while other.finish_reason is None:
            decoder.admit(other)
            decoder.step([other])
            decoder.close(other)
        assert other.generated == alone.generated
    scored = decode(table(0), "lexical-units:tau=0", logprobs=2)
    assert [each.token_id for each in scored.logprobs] == scored.generated
    steps = [fill.step for fill in scored.work.process.canvas.trace]
    assert steps == [0, 0, 0, 0, 1]


def test_what_it_is_not_for_is_refused():
    with pytest.raises(InvalidOption, match="tau"):
        decode(table(), "lexical-units:tau=2")
    with pytest.raises(InvalidOption, match="width"):
        decode(table(), "lexical-units:width=0")

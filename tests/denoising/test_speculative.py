"""Rejection along a rule's order: the distribution is the rule's, by enumeration."""

from __future__ import annotations

from itertools import product
from math import exp

import numpy as np
import pytest
from tests.helpers.canvases import decode, decoder_of, finish, start

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.methods.canvas.speculative import Drawing
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.table_denoiser import TableDenoiser, random_joint

RULES = ("counts", "counts:by=margin", "counts:per_step=2", "threshold:tau=0.6")


def distribution(target: TableDenoiser, sampler: str, **options):
    """Every outcome of every draw."""

    def run(randomness):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler, **options), temperature=1.0)
        sequence.randomness = randomness
        decoder.admit(sequence)
        finish(decoder, [sequence])
        return tuple(sequence.generated)

    return enumerate_distribution(run)


def likelihoods(target: TableDenoiser, sampler: str, **options):
    """That of the rule alone: each text is forced, and its trace says how likely it was."""
    found = {}
    for text in product(range(target.symbols), repeat=target.joint.ndim):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler, **options), temperature=1.0)
        decoder.admit(sequence)
        picks = np.asarray((0,) * target.begin + text)
        context = sequence.work.process.context
        context.distributions.picks = lambda probs, places, sibling=0, picks=picks: picks[places]
        finish(decoder, [sequence])
        found[text] = exp(sum(fill.logprob for fill in sequence.work.process.canvas.trace))
    return found


def apart(one, other) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("symbols", "places", "block"), [(3, 3, None), (2, 4, None), (2, 4, 2)])
def test_the_law_is_that_of_the_rule(rule, symbols, places, block):
    target = TableDenoiser(random_joint(symbols, places, 3))
    alone = likelihoods(target, rule, block=block)
    for width in (1, 2, 4):
        assert (
            apart(distribution(target, f"speculative:width={width}>{rule}", block=block), alone)
            < 1e-12
        )


def test_with_attention_blocks_and_a_cache():
    target = TableDenoiser(random_joint(2, 4, 1), attention="block", block=2, shifted=True)
    alone = likelihoods(target, "counts", cache="exact")
    assert apart(distribution(target, "speculative>counts", cache="exact"), alone) < 1e-12


def test_accepting_everything_has_another_law(monkeypatch):
    def accept(self, p, place, randomness):
        return (
            self.drafted[place][0]
            if place in self.drafted
            else original(self, p, place, randomness)
        )

    original = Drawing._accepted
    target = TableDenoiser(random_joint(3, 3, 3))
    alone = likelihoods(target, "counts")
    monkeypatch.setattr(Drawing, "_accepted", accept)
    assert apart(distribution(target, "speculative>counts"), alone) > 1e-3


def test_it_takes_fewer_forwards_and_is_freedave_when_greedy():
    drawn = greedy = 0
    for seed in range(30):
        target = TableDenoiser(random_joint(3, 6, seed, 1.0))
        found = decode(target, "speculative>counts", temperature=1.0, seed=seed)
        drawn += found.stats.target_forwards
        found = decode(target, "speculative>counts")
        assert found.generated == decode(target, "counts").generated
        greedy += found.stats.target_forwards
    assert drawn < 0.9 * 30 * 6
    assert greedy < 0.9 * 30 * 6


def test_a_text_is_the_same_after_preemption():
    target = TableDenoiser(random_joint(3, 6, 7), attention="block", block=3)
    for seed in range(6):
        alone = decode(target, "speculative>counts", temperature=0.8, seed=seed).generated
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams("speculative>counts"), temperature=0.8, seed=seed)
        decoder.admit(sequence)
        decoder.step([sequence])
        decoder.step([sequence])
        decoder.close(sequence)
        finish(decoder, [sequence])
        assert sequence.generated == alone


def test_rules_that_look_at_draws_are_refused():
    target = TableDenoiser(random_joint(3, 3, 0))
    with pytest.raises(InvalidOption, match="use freedave>counts"):
        decode(target, "speculative>counts:by=picked")

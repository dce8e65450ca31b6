"""Running ahead of a sequence: its sampler, its draws, and the sequence left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.types import ProbArray, SamplingParams
from paceline.methods.cascade import LONGEST, Ahead
from paceline.proof.tabular import TabularModel, processed
from paceline.sampling.distributions import one_hot
from paceline.sampling.generation import Generation
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose

MODEL = TabularModel(5, 3, seed=1, sharpness=1.5)
PARAMS = SamplingParams(
    temperature=0.8,
    top_p=0.9,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    forced_tokens={3: 2},
)


class Names:
    """Notes the names of draws."""

    def __init__(self) -> None:
        self.given: list[Draw] = []

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        self.given.append(draw)
        return 0

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        self.given.append(draw)
        return True

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        self.given.append(draw)
        return np.full(size, 0.5)

    def noise(self, draw: Draw) -> GumbelNoise:
        self.given.append(draw)
        return GumbelNoise(bytes(16))


def started(prompt: list[int], params: SamplingParams = PARAMS) -> tuple[Generation, Names]:
    sequence = Generation.start(7, prompt, params)
    sequence.randomness = names = Names()
    return sequence, names


def test_the_law_ahead_is_that_of_tokens_committed() -> None:
    """Penalties and forced tokens count drafted tokens, at every depth of running ahead."""
    sequence, _ = started([0, 1])
    distribution = processed(MODEL.logits, PARAMS, [0, 1])
    outer = Ahead(sequence, fresh=True)
    outer.extend([4, 4], [one_hot(4, 5)] * 2)
    inner = Ahead(outer.sequence, fresh=True)
    inner.extend([3], [one_hot(3, 5)])
    for ahead, path in ((outer, []), (outer, [1]), (inner, []), (inner, [2, 2])):
        context = (*ahead.sequence.tokens, *path)
        found = ahead.sequence.sampler.distribution(MODEL.logits(context), path)
        np.testing.assert_array_equal(found.dense(), distribution(context).dense())
    assert distribution((0, 1, 4, 4, 3)).argmax() == 2  # the forced token was reached


def test_the_sequence_itself_is_left_alone() -> None:
    sequence, _ = started([0, 1])
    before = sequence.sampler.distribution(MODEL.logits((0, 1)))
    ahead = Ahead(sequence, fresh=True)
    ahead.extend([4, 3], [one_hot(4, 5), one_hot(3, 5)])
    assert (len(ahead), ahead.tokens, len(ahead.rows)) == (2, [4, 3], 2)
    assert ahead.sequence.tokens == [0, 1, 4, 3]
    assert ahead.sequence.id == sequence.id
    assert sequence.tokens == [0, 1]
    np.testing.assert_array_equal(
        sequence.sampler.distribution(MODEL.logits((0, 1))).dense(), before.dense()
    )


draws = st.builds(
    Draw,
    position=st.integers(0, 12),
    purpose=st.sampled_from(Purpose),
    sibling=st.integers(0, 3),
    root=st.sampled_from([0, 3, 4, 5, 9]),
)


@settings(max_examples=100)
@given(st.lists(draws, min_size=2, max_size=30, unique=True), st.integers(1, 3))
def test_draws_keep_distinct_names_at_every_depth(distinct: list[Draw], depth: int) -> None:
    """A decoder verifies and draws its own tokens at every level; a drafter is at the last."""
    sequence, names = started([0, 1, 2, 3])  # the root is at 3
    verifying = [draw for draw in distinct if draw.purpose != Purpose.DRAFT]
    for level in range(depth + 1):
        for draw in distinct if level == depth else verifying:
            sequence.randomness.choice(np.ones(1), draw)
        sequence = Ahead(sequence, fresh=True).sequence
    assert len(set(names.given)) == len(names.given) == depth * len(verifying) + len(distinct)
    for draw in names.given[len(verifying) :]:
        assert (draw.purpose, draw.root) == (Purpose.DRAFT, 3)
        KeyedRandomness(0).uniform(1, draw)  # the name fits the generator's counter


def test_every_kind_of_draw_is_renamed() -> None:
    sequence, names = started([0, 1, 2])
    inside = Ahead(sequence, fresh=True).sequence.randomness
    draw = Draw(3, Purpose.ACCEPT, root=2)
    inside.choice(np.ones(2), draw)
    inside.bernoulli(0.5, draw)
    inside.uniform(2, draw)
    inside.noise(draw)
    assert len(set(names.given)) == 1
    assert names.given[0] != draw


def test_without_fresh_names_draws_are_the_sequence_s_own() -> None:
    sequence, names = started([0, 1, 2])
    assert Ahead(sequence, fresh=False).sequence.randomness is names


def test_a_root_out_of_reach_is_an_error() -> None:
    """Before the round, or further ahead than names have room for."""
    sequence, _ = started([0, 1, 2, 3])
    inside = Ahead(sequence, fresh=True).sequence.randomness
    inside.bernoulli(0.5, Draw(4, Purpose.ACCEPT, root=3 + LONGEST))
    for root in (2, 3 + 256):
        with pytest.raises(ValueError, match="inside the round at 3"):
            inside.bernoulli(0.5, Draw(4, Purpose.ACCEPT, root=root))

"""What trained drafters tell their network: rows of the context, and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, Verdict
from paceline.methods.networks.hydra import HydraDrafter
from paceline.networks.runner import Chain, Noise
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Draw, Purpose
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, SampleMatch


class _Reads:
    """A runner that notes which rows it was given."""

    depth = 2

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.noise: list[Noise | None] = []

    def open(self) -> None:
        return None

    def release(self, cache: Any) -> None:
        pass

    def draft(self, grown: Any, depth: int) -> list[Chain]:
        for each in grown:
            assert len(each.features) == len(each.tokens)
            assert np.array_equal(each.features[:, 0], np.asarray(each.tokens) - 1)
            self.taken.append(list(each.tokens))
            self.noise.append(each.noise)
        return [Chain([], [], [], []) for _ in grown] if depth else []


def test_of_a_prompt_the_end_is_read_and_only_when_a_draft_is_wanted() -> None:
    """Afterwards every token is: rows that wait for a draft are taken in, not left out."""
    runner = _Reads()
    drafter = HydraDrafter(runner)  # type: ignore[arg-type]
    tokens = list(range(1, 1501))
    sequence = Generation.start(0, tokens, SamplingParams(max_new_tokens=1000))
    features = np.repeat(np.arange(1.0, 1500.0, dtype=np.float32)[:, None], 4, axis=1)
    drafter.open(sequence)
    drafter.read(sequence, features)

    def commit(count: int) -> None:
        for _ in range(count):
            last = sequence.tokens[-1]
            sequence.tokens.append(last + 1)
            row = np.full((1, 4), last, dtype=np.float32)
            output = Output(np.zeros((1, 1), dtype=np.float32), features=row)
            drafter.observe(step_of([sequence], [trees.EMPTY], [Verdict((), last + 1)], [output]))

    commit(40)
    assert runner.taken == []
    drafter.propose([sequence], [Budget(2, 2)])
    assert runner.taken == [list(range(477, 1541))]
    commit(600)
    drafter.propose([sequence], [Budget(2, 2)])
    assert [token for part in runner.taken[1:] for token in part] == list(range(1541, 2141))


@pytest.mark.parametrize(
    ("temperature", "verifier"), [(0.0, Coupled()), (0.8, Coupled()), (0.8, SampleMatch())]
)
def test_sampled_requests_are_drafted_with_the_noise_that_the_rule_follows(
    temperature: float, verifier: Verifier
) -> None:
    runner = _Reads()
    drafter = HydraDrafter(runner)  # type: ignore[arg-type]
    drafter.gumbel_coupled = verifier.gumbel_coupled
    params = SamplingParams(temperature=temperature, seed=3)
    sequence = Generation.start(0, [1, 2, 3], params)
    drafter.open(sequence)
    drafter.read(sequence, np.array([[1.0], [2.0]], dtype=np.float32))
    drafter.propose([sequence], [Budget(9, 9)])
    [noise] = runner.noise
    if not temperature or isinstance(verifier, SampleMatch):
        assert noise is None
        return
    draws = [Draw(place, Purpose.NOISE) for place in (3, 4)]  # as deep as the network drafts
    assert noise is not None
    assert noise.keys == b"".join(sequence.randomness.noise(draw).key for draw in draws)
    assert 0 < noise.temperature < temperature

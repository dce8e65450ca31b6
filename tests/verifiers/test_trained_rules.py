"""Judge and pivot: every committed token is the target's own or passes the head's test."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.heads.test_heads import head_file
from tests.verifiers.lossy_runs import (
    DRAFTERS,
    HIDDEN,
    Truth,
    hidden_state,
    relaxed,
    requests,
    run,
)

from paceline.core.types import Distribution, SamplingParams
from paceline.methods.heads.verifiers import Judge, Pivot, features, load_head


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("heads")
    return {
        "judge": head_file(path, "judge", HIDDEN, seed=1),
        "pivot": head_file(path, "pivot", HIDDEN + 4, seed=5),
    }


def sigmoid(path: Path, kind: str, seen: list[float]) -> float:
    head = load_head(kind, str(path))
    return 1 / (1 + math.exp(-(float(np.dot(head.weight, seen)) + head.bias)))


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=10)
@given(params=requests(), threshold=st.sampled_from([0.2, 0.5, 0.8]))
def test_judge_commits_what_its_head_finds_acceptable(
    heads: dict[str, Path], drafter: str, params: SamplingParams, threshold: float
) -> None:
    def acceptable(context: tuple[int, ...], token: int) -> bool:
        state = hidden_state((*context, token)).tolist()
        return sigmoid(heads["judge"], "judge", state) > threshold - 1e-6

    rule = Judge(threshold, str(heads["judge"]))
    relaxed(run(rule, DRAFTERS[drafter], params), Truth.of(params), acceptable)


@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=10)
@given(params=requests(), threshold=st.sampled_from([0.2, 0.5, 0.8]))
def test_pivot_commits_what_its_head_finds_harmless(
    heads: dict[str, Path], drafter: str, params: SamplingParams, threshold: float
) -> None:
    truth = Truth.of(params)

    def harmless(context: tuple[int, ...], token: int) -> bool:
        probs = truth.soft(context).dense().tolist()
        p, own = (max(probs[t], 1e-12) for t in (token, truth.own(context)))
        entropy = -sum(x * math.log(x + 1e-5) for x in probs)
        rank = sum(x > probs[token] for x in probs)
        seen = [math.log(p), math.log(own / p), entropy, math.log1p(rank)]
        seen += hidden_state((*context, token)).tolist()
        return sigmoid(heads["pivot"], "pivot", seen) < threshold + 1e-5

    rule = Pivot(threshold, str(heads["pivot"]))
    relaxed(run(rule, DRAFTERS[drafter], params), truth, harmless)


@pytest.mark.parametrize("name", ["judge", "pivot"])
def test_mismatches_are_pardoned_and_refused(heads: dict[str, Path], name: str) -> None:
    params = SamplingParams(max_new_tokens=60)
    rule = (Judge if name == "judge" else Pivot)(0.5, str(heads[name]))
    steps = run(rule, DRAFTERS["likely"], params)
    assert relaxed(steps, Truth.of(params), lambda context, token: True) > 3
    assert any(step.drafted < len(step.draft) for step in steps[:-1])


def test_features_are_probabilities_then_the_hidden_state() -> None:
    distribution = Distribution(np.array([0.1, 0.6, 0.3]), None, 3)
    seen = features(distribution, 0.9, 1, 2, np.array([5.0, 6.0], np.float32))
    expected = [math.log(0.3), math.log(0.6 / 0.3), 0.9, math.log(2), 5, 6]
    assert seen.tolist() == pytest.approx(expected, rel=1e-6)
    assert seen.dtype == np.float32
    rest = features(distribution, 0.9, 1, 0, np.zeros(2, np.float32))
    assert rest[3] == pytest.approx(math.log(3))


def test_features_stay_finite_for_impossible_tokens() -> None:
    distribution = Distribution(np.array([1.0]), np.array([1]), 3)
    assert np.isfinite(features(distribution, 0.0, 1, 2, np.zeros(2, np.float32))).all()

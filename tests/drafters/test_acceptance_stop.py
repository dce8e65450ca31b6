"""Chains that end where they become doubtful: by the rule, and without a change to any text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tests.drafters.table_runner import TableRunner

from paceline.core.types import LogitArray, ProbArray
from paceline.drafters.network.stopping_head import (
    AcceptanceHead,
    AcceptanceStop,
    check_steps,
    load_acceptance_head,
    save_acceptance_head,
)
from paceline.errors import InvalidOption
from paceline.networks.runner import ContextUpdate
from paceline.proof.tabular import TabularModel

IDS = np.array([0, 2, 3])
NO_FEATURES = np.zeros((2, 0), np.float32)


class Says:
    """A head that says what a table has for the newest token and the depth."""

    def __init__(self, seed: int) -> None:
        self.table = np.random.default_rng(seed).uniform(0.3, 1.0, (4, 6))

    def chances(self, states: LogitArray, own: ProbArray) -> ProbArray:
        token, depth = states.astype(int).T
        return self.table[token, depth] * own


def logits_of(model: TabularModel, path: list[int]) -> Any:
    return model.logits(tuple(path))[IDS].astype(np.float64)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), stands=st.floats(0, 1))
def test_chains_end_behind_the_token_that_makes_them_doubtful(seed: int, stands: float) -> None:
    """Against the rule written out for one sequence."""
    rng = np.random.default_rng(seed)
    model, head = TabularModel(4, 9, seed), Says(seed)
    runner = TableRunner(model, IDS, steps=5)
    contexts = [rng.integers(0, 4, 2).tolist() for _ in range(3)]
    wanted = rng.integers(1, 6, 3).tolist()
    grown = [ContextUpdate(runner.open(), NO_FEATURES, each) for each in contexts]
    doubt = AcceptanceStop(head, IDS, stands)  # type: ignore[arg-type]
    for draft, context, most in zip(
        doubt.chains(runner, grown, wanted), contexts, wanted, strict=True
    ):
        path: list[int] = []
        scores: list[float] = []
        stood = 1.0
        while len(path) < most and stood >= stands:
            distribution = np.exp(row := logits_of(model, [*context, *path]))
            path.append(int(IDS[row.argmax()]))
            if len(path) < most:
                stood *= head.table[path[-1], len(path)] * distribution.max() / distribution.sum()
                scores.append(stood)
            else:
                scores.append(stood * distribution.max() / distribution.sum())
        assert draft.tokens.tolist() == path
        assert draft.sampling is None
        np.testing.assert_allclose(draft.scores, scores)


def head_of(width: int = 5, inner: int = 4, seed: int = 0, **metadata: str) -> AcceptanceHead:
    rng = np.random.default_rng(seed)
    shapes = {
        "in": (inner, width),
        "block.0": (inner, inner),
        "block.0.bias": (inner,),
        "block.1": (inner, inner),
        "block.1.bias": (inner,),
        "out": (inner,),
        "scale": (width,),
        "own": (1,),
        "bias": (1,),
    }
    parameters = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return AcceptanceHead(parameters, 6.0, {"weights": "abc", **metadata})


def test_a_head_that_was_written_is_read_again(tmp_path: Path) -> None:
    head, path = head_of(), tmp_path / "head"
    save_acceptance_head(path, head)
    found = load_acceptance_head(path, "abc")
    states = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    own = np.linspace(0, 1, 7)
    assert found.rejection == 6
    assert np.array_equal(found.chances(states, own), head.chances(states, own))
    assert ((found.chances(states, own) > 0) & (found.chances(states, own) < 1)).all()


def test_what_is_no_head_of_these_weights_is_named(tmp_path: Path) -> None:
    path = tmp_path / "head"

    def refused(message: str, weights: str = "abc") -> None:
        with pytest.raises(InvalidOption, match=message) as caught:
            load_acceptance_head(path, weights)
        assert "\n" not in str(caught.value)

    refused("holds no acceptance head")
    save_acceptance_head(path, head_of())
    refused("was trained with other weights than those that draft", "abd")
    path.write_bytes(path.read_bytes()[:-9])
    refused("holds no acceptance head")
    broken = head_of()
    broken.parameters["out"][0] = np.nan
    save_acceptance_head(path, broken)
    refused("impossible numbers")
    parameters = {**head_of().parameters, "block.0": np.zeros((3, 4), np.float32)}
    save_acceptance_head(path, replace(head_of(), parameters=parameters))
    refused("holds no acceptance head")
    save_file({"in": np.ones((1, 1), np.float32)}, path, {"kind": "judge"})
    refused("of another kind")
    save_file({"in": np.ones((1, 1), np.float32)}, path, {"kind": "acceptance", "rejection": "6"})
    refused("holds no acceptance head")
    with pytest.raises(InvalidOption, match="cannot write"):
        save_acceptance_head(tmp_path / "no" / "head", head_of())


def test_networks_that_draft_several_tokens_at_once_are_refused() -> None:
    runner = TableRunner(TabularModel(4, 5, 0), IDS, width=2)
    with pytest.raises(InvalidOption, match="'draft-lm' drafts several tokens at once"):
        check_steps(runner.trained)

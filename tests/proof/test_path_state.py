"""Negative controls of samplers with a state: one that branches share, or that is lost, is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.proof.joints import joint_of_loop

from paceline.core.types import ROOT, Budget, SamplingParams
from paceline.proof.cases import random_tree
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import TabularModel, processed
from paceline.sampling.sampler import Sampler, TreeDistributions
from paceline.verifiers.matching import SampleMatch

PROMPT = (0, 1)
MIROSTAT = SamplingParams(
    temperature=1, mirostat=2, mirostat_tau=1.0, mirostat_eta=0.9, max_new_tokens=4
)
DRY = SamplingParams(temperature=1, dry_multiplier=2, dry_allowed_length=1, max_new_tokens=4)
XTC = SamplingParams(temperature=1, xtc_probability=0.5, xtc_threshold=0.2, max_new_tokens=4)


def error(params: SamplingParams, nodes: int = 14) -> float:
    model = TabularModel(3, 3, 21, 0.8)
    joint = joint_of_loop(
        model.logits, 3, SampleMatch(), random_tree(3, nodes, seed=5), PROMPT, params, Budget(14, 3)
    )
    return max_error(joint, target_joint(processed(model.logits, params, PROMPT), PROMPT, 4))


def _shared(get: Callable[..., float]) -> Callable[..., float]:
    def state(self: TreeDistributions, node: int) -> float:
        # The last branch below a node speaks for all.
        parents = self._draft.parents
        return get(
            self, ROOT if node == ROOT else int(np.flatnonzero(parents == parents[node])[-1])
        )

    return state


@pytest.mark.parametrize("params", [MIROSTAT, DRY, XTC], ids=["mirostat", "dry", "xtc"])
def test_the_right_state_is_exact(params: SamplingParams) -> None:
    assert error(params) < 1e-12


@pytest.mark.parametrize("fault", ["shared", "of the root", "not kept"])
def test_a_wrong_state_of_mirostat_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "shared":
        monkeypatch.setattr(TreeDistributions, "_state", _shared(TreeDistributions._state))
    elif fault == "of the root":
        monkeypatch.setattr(TreeDistributions, "_state", lambda self, node: self._states[ROOT])
    else:
        monkeypatch.setattr(TreeDistributions, "settle", lambda self, verdict: None)
    assert error(MIROSTAT, nodes=3 if fault == "not kept" else 14) > 1e-3


@pytest.mark.parametrize("params", [DRY, XTC], ids=["dry", "xtc"])
def test_a_sampler_that_forgets_the_path_is_caught(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = Sampler.distribution
    monkeypatch.setattr(
        Sampler, "distribution", lambda self, x, path=(), **more: own(self, x, **more)
    )
    model = TabularModel(3, 3, 21, 0.8)
    propose = random_tree(3, 8, seed=3)
    joint = joint_of_loop(model.logits, 3, SampleMatch(), propose, PROMPT, params, Budget(8, 2))
    monkeypatch.undo()
    truth = target_joint(processed(model.logits, params, PROMPT), PROMPT, 4)
    assert max_error(joint, truth) > 1e-3

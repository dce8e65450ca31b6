"""Prompt tokens on the real model: no token changes, whatever they guess."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.errors import RuntimeUnavailable
from paceline.methods.ppd.prompt_tokens import PromptTokens, save_prompt_tokens
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

ACCURACIES = np.array([[0.3, 0.1, 0.05], [0.2, 0.08, 0.04], [0.1, 0.05, 0.03]])


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    """Prompt tokens that nobody trained."""
    rows = 0.13 * np.random.default_rng(0).standard_normal((3, 576)).astype(np.float32)
    metadata = {"model": load("int8").source.fingerprint}
    path = tmp_path / "ppd.safetensors"
    save_prompt_tokens(path, PromptTokens(rows, ACCURACIES, metadata))
    return f"ppd:weights={path}"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompt_tokens_change_no_token(drafter: str, temperature: float) -> None:
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 3}
    loaded, chosen = load("int8"), [PROMPTS[3], PROMPTS[1]]
    plain = make_engine(loaded, drafter="none").generate(chosen, **options)
    drafted = make_engine(loaded, drafter=drafter, nodes=11, max_batch=2).generate(
        chosen, **options
    )
    again = make_engine(loaded, drafter="none").generate(chosen, **options)
    tokens = [[output.token_ids for output in outputs] for outputs in (plain, drafted, again)]
    assert tokens[0] == tokens[1] == tokens[2]
    assert min(output.stats.drafted_tokens for output in drafted) > 100


def test_lossy_rules_and_merged_drafters_are_refused(drafter: str) -> None:
    loaded = load("int8")
    with pytest.raises(RuntimeUnavailable, match="a lossless verifier"):
        make_engine(loaded, drafter=drafter, verifier="typical")
    with pytest.raises(RuntimeUnavailable, match="no other drafter"):
        make_engine(loaded, drafter=f"{drafter}+prompt-lookup")

"""T3 on the real model: drafts from texts change no token, and save forwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline import Completion
from paceline.drafters.resources import Loaded
from paceline.methods.datastore.drafter import build
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

EDIT = "Repeat word for word: " + PROMPTS[5].removeprefix("Summarise: ")
ASKED = [EDIT, PROMPTS[3], PROMPTS[4]]
"""An output that is the input, one that repeats itself, and one that is new."""


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("int8")


@pytest.fixture(scope="module")
def plain(loaded: Loaded) -> list[Completion]:
    return make_engine(loaded, drafter="none").generate(ASKED, max_new_tokens=24)


@pytest.mark.parametrize(
    "drafter",
    [
        *("suffix-automaton", "suffix-decoding", "datastore", "input-guided"),
        *("suffix-decoding+recycling", "graft:floor=0.2+recycling+prompt-lookup"),
        *("fuse+recycling+suffix-automaton", "prompt-lookup|recycling"),
    ],
)
def test_greedy_ids_equal_plain_decoding(
    drafter: str,
    loaded: Loaded,
    plain: list[Completion],
    tmp_path: Path,
) -> None:
    text = loaded.tokenizer.encode(" ".join(PROMPTS))
    capabilities = loaded.target.capabilities
    fingerprint = loaded.tokenizer.fingerprint
    build(np.array(text, np.int32), tmp_path / "index", capabilities.vocab_size, fingerprint)
    if drafter == "datastore":
        drafter = f"datastore:index={tmp_path / 'index'}"
    engine = make_engine(loaded, drafter=drafter, nodes=7, depth=5, max_batch=3)
    for _ in range(2):  # the second time with what was remembered
        outputs = engine.generate(ASKED, max_new_tokens=24)
        assert [o.token_ids for o in outputs] == [p.token_ids for p in plain]
        assert sum(o.stats.accepted_tokens for o in outputs) > 0
    if drafter.startswith("suffix"):  # it has seen these very outputs
        assert sum(o.stats.target_forwards for o in outputs) < 0.4 * sum(
            p.stats.target_forwards for p in plain
        )

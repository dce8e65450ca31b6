"""Several texts for one prompt, on the default model: suggestions and first-finish search."""

from __future__ import annotations

import pytest
from tests.real.conftest import load

from paceline.methods.first_finish import first_finish
from paceline.methods.superposed import suggest
from paceline.registry.loading import load_model, make_engine

pytestmark = pytest.mark.real

PROMPT = "The capital of France is"


def test_superposed_decoding_with_one_draft_is_greedy_text():
    pytest.importorskip("torch")
    engine = make_engine(load_model(runtime="torch"), drafter="none")
    [alone] = suggest(engine, PROMPT, k=1, tokens=12).suggestions
    assert alone.token_ids == engine.generate(PROMPT, raw=True, max_new_tokens=12).token_ids
    found = suggest(engine, PROMPT, k=3, tokens=12)
    assert found.forwards == 12
    assert len({each.text for each in found.suggestions}) == 3
    assert all("Paris" in each.text for each in found.suggestions)


def test_the_first_to_finish_is_the_same_with_and_without_drafts():
    options = {"temperature": 1.0, "max_new_tokens": 40, "seed": 2}
    found = [
        first_finish(
            make_engine(load("int8"), drafter=drafter, nodes=4), "Name a river.", 3, **options
        )
        for drafter in ("none", "recycling")
    ]
    assert found[0].index == found[1].index
    assert found[0].completion.token_ids == found[1].completion.token_ids
    assert found[0].completion.finish_reason == "stop"

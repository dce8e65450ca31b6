"""Schedules on the default model, which drafts for itself as stored: the text of plain decoding."""

from __future__ import annotations

import pytest

from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.models.pull import DEFAULT_MODEL
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "drafter", ["pearl", "pearl:window=3", "mirror-sd:exit=28,branches=2", "easyspec", "dovetail"]
)
def test_the_text_is_that_of_plain_decoding(
    loaded: Loaded, drafter: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_new_tokens=24)
    prompts = ["The days of the week are Monday, Tuesday,", "Write a haiku about rain."]
    plain = make_engine(loaded, drafter="none")
    engine = make_engine(loaded, drafter=drafter, nodes=6, depth=6, draft_model=DEFAULT_MODEL)
    expected = [plain.generate(each, params).token_ids for each in prompts]
    found = [engine.generate(each, params) for each in prompts]
    assert [each.token_ids for each in found] == expected
    assert sum(each.stats.accepted_tokens for each in found) > 0
    assert sum(each.stats.drafter_errors for each in found) == 0

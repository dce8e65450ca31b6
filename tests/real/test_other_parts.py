"""int4 weights, and the int8 model as a drafter for its own fp32 weights."""

from __future__ import annotations

import pytest
from tests.real.prompts import PROMPTS

from paceline.drafters.resources import Loaded
from paceline.registry.loading import load_model, make_engine

pytestmark = pytest.mark.real


def test_int4_is_bit_exact_too():
    loaded = load_model(precision="int4")
    plain = make_engine(loaded, drafter="none").generate(PROMPTS[:2], max_new_tokens=24)
    drafted = make_engine(loaded, drafter="recycling", nodes=6, depth=3).generate(
        PROMPTS[:2], max_new_tokens=24
    )
    assert [d.token_ids for d in drafted] == [p.token_ids for p in plain]
    assert all(len(set(p.token_ids)) > 8 for p in plain)  # language, not a broken loop


@pytest.mark.parametrize(
    ("verifier", "temperature"), [("coupled", 0.0), ("coupled", 1.0), ("rejection", 1.0)]
)
def test_the_int8_model_drafts_for_fp32(loaded: Loaded, verifier: str, temperature: float):
    if loaded.target.capabilities.precision == "int8":
        prompts, floor = PROMPTS[:1], 0.99  # a model that drafts for itself is always right
    else:
        prompts, floor = PROMPTS[:2], 0.6
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 3}
    engine = make_engine(
        loaded, drafter="draft-model", draft_model="smollm2-135m", verifier=verifier, nodes=4
    )
    drafted = engine.generate(prompts, **options)
    stats = [d.stats for d in drafted]
    rate = sum(s.accepted_tokens for s in stats) / sum(s.drafted_tokens for s in stats)
    assert rate >= floor
    if verifier == "coupled":
        plain = make_engine(loaded, drafter="none").generate(prompts, **options)
        assert [d.token_ids for d in drafted] == [p.token_ids for p in plain]

"""What theory promises of rules and bounds, on rows p and q of the default model."""

from __future__ import annotations

import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.core.types import SamplingParams
from paceline.lab.measure import acceptance as verifier_acceptance
from paceline.models.pull import DEFAULT_MODEL
from paceline.registry.loading import load_draft

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def rounds() -> list[list[verifier_acceptance.ChainFigures]]:
    """Rounds with an early exit as draft model, which is wrong often and in many ways."""
    target = load("int8")
    draft = load_draft(target, DEFAULT_MODEL, precision="int8", layers=26)
    out = []
    for temperature, top_p, prompt in ((1.0, 1.0, 0), (0.6, 1.0, 4), (1.0, 0.9, 6)):
        params = SamplingParams(temperature=temperature, top_p=top_p, max_new_tokens=12, seed=1)
        chosen = PROMPTS[prompt : prompt + 2]
        out += verifier_acceptance.measure(target, draft, chosen, params, drafts=(1, 2, 3), depth=3)
    return out


def test_rules_and_bounds_keep_their_order(
    rounds: list[list[verifier_acceptance.ChainFigures]],
) -> None:
    entries = verifier_acceptance.orderings(rounds)
    assert len(entries) == 4
    for entry in entries:
        assert entry["holds"], entry
        assert entry["mean"] > 1e-4, "nothing differs, so nothing was tested"
        assert entry["cases"] >= 20


def test_an_early_exit_is_accepted_in_part(
    rounds: list[list[verifier_acceptance.ChainFigures]],
) -> None:
    table = {(row["verifier"], row["drafts"]): row for row in verifier_acceptance.rows(rounds)}
    assert 0.05 < table["rejection", 1]["acceptance"] < 0.95
    assert table["rejection", 1]["acceptance"] > table["coupled", 1]["acceptance"]
    assert (
        table["recursive-distinct", 3]["acceptance"] > table["recursive-distinct", 2]["acceptance"]
    )

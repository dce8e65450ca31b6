"""What ships to fill masked places of the default model drafts its own text."""

from __future__ import annotations

import pytest
from tests.real.conftest import load

from paceline.engine.engine import Completion, Engine
from paceline.models.source import DRAFTING, resolve
from paceline.registry.loading import load_model, make_engine

pytestmark = [pytest.mark.real, pytest.mark.slow]

ASKED = ["Name three facts about whales.", "Write a haiku.", "def add(a, b):"]
KINDS = ({}, {"temperature": 1.0, "seed": 4})


def answers(engine: Engine, together: bool, **params: object) -> list[Completion]:
    if together:
        return engine.generate(ASKED, max_new_tokens=24, **params)
    return [engine.generate(each, max_new_tokens=24, **params) for each in ASKED]


def check(engine: Engine) -> float:
    """Compare every text with plain decoding; return tokens per forward, greedy and alone."""
    plain = make_engine(load("file"), drafter="none")
    for params in KINDS:
        wanted = [each.token_ids for each in answers(plain, False, **params)]
        for together in (False, True):
            found = answers(engine, together, **params)
            assert [each.token_ids for each in found] == wanted
    alone = answers(engine, False)
    return sum(len(a.token_ids) for a in alone) / sum(a.stats.target_forwards for a in alone)


@pytest.mark.parametrize("sampler", ["tidar:width=3", "linear-spec:width=3"])
def test_mask_rows_bring_tokens_and_the_text_of_plain_decoding(sampler: str) -> None:
    rows = load_model(denoiser="rows", precision="file")
    per_forward = check(make_engine(rows, sampler=sampler))
    # linear-spec takes two forwards for what it accepts and one token more.
    assert per_forward > (1.1 if sampler.startswith("tidar") else 0.55)


@pytest.mark.parametrize("drafter", ["deer", "diffuspec"])
def test_a_denoiser_drafts_for_its_model_without_being_named(drafter: str) -> None:
    assert check(make_engine(load("file"), drafter=drafter, nodes=3)) > 1.1


def test_the_denoiser_is_small_and_borrows() -> None:
    [name] = DRAFTING
    source = resolve(name)
    assert sum(each.stat().st_size for each in source.path.iterdir()) < 20 * 2**20
    assert source.tokenizer().fingerprint == load("file").tokenizer.fingerprint

"""Jacobi windows and cascades on the real model: the tokens are those of plain decoding."""

from __future__ import annotations

import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline import Completion
from paceline.core.target import RuntimeOptions
from paceline.drafters.resources import Loaded
from paceline.methods.cascade import Cascade, Level
from paceline.methods.prompt_lookup import PromptLookup
from paceline.registry.loading import load_model, make_engine

pytestmark = [pytest.mark.real, pytest.mark.slow]

CHOSEN = [PROMPTS[3], PROMPTS[1]]
"""One that repeats itself and one that does not."""


def tokens(outputs: list[Completion]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_jacobi_windows_change_no_token(temperature: float) -> None:
    options = {"max_new_tokens": 48, "temperature": temperature, "seed": 3}
    loaded = load("int8")
    asked = PROMPTS[:6]  # a window of a model that was not trained for it is right now and then
    plain = make_engine(loaded, drafter="none").generate(asked, **options)
    engine = make_engine(
        loaded, drafter="jacobi", controller="fixed", nodes=5, depth=5, max_batch=2
    )
    drafted = engine.generate(asked, **options)
    assert tokens(drafted) == tokens(plain)
    assert sum(output.stats.accepted_tokens for output in drafted) > 0


@pytest.fixture(scope="module")
def fp32() -> Loaded:
    return load("fp32")


@pytest.fixture(scope="module")
def plain_greedy(fp32: Loaded) -> list[Completion]:
    return make_engine(fp32, drafter="none").generate(CHOSEN, max_new_tokens=16)


def test_a_cascade_over_int8_changes_no_token_of_fp32(
    fp32: Loaded, plain_greedy: list[Completion]
) -> None:
    """Prompt lookup drafts for int8, int8 for fp32."""
    engine = make_engine(fp32, drafter="cascade", draft_model="smollm2-135m", nodes=5, max_batch=2)
    drafted = engine.generate(CHOSEN, max_new_tokens=16)
    assert tokens(drafted) == tokens(plain_greedy)
    assert min(output.stats.block_efficiency for output in drafted) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_eagle_below_int8_changes_no_token_of_fp32(fp32: Loaded, temperature: float) -> None:
    """SpecMQuant's stack: an EAGLE-2 tree for int8, which gives it features, int8 for fp32."""
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 3}
    plain = make_engine(fp32, drafter="none").generate(CHOSEN, **options)
    growth = "" if temperature else "growth=expand-rerank,"
    drafter = f"cascade:middle=false,int8=true,bottom=eagle3,{growth}nodes=6,least=6"
    engine = make_engine(fp32, drafter=drafter, nodes=6, max_batch=2)
    rounds: list[int] = []
    middle = engine.decoder.drafter._source  # type: ignore[attr-defined]
    once = middle._round
    middle._round = lambda live: (rounds.append(len(live)), once(live))[1]
    drafted = engine.generate(CHOSEN, **options)
    assert tokens(drafted) == tokens(plain)
    assert min(output.stats.block_efficiency for output in drafted) > 3
    # Tokens per round of the model in the middle: without features EAGLE drafts almost nothing.
    assert sum(output.stats.drafted_tokens for output in drafted) > 1.5 * sum(rounds)


def test_three_models_change_no_token_of_fp32(fp32: Loaded, plain_greedy: list[Completion]) -> None:
    """Prompt lookup drafts for int4, int4 for int8, int8 for fp32."""
    options = [RuntimeOptions(precision=precision) for precision in ("int4", "int8")]
    models = [load_model(each).target for each in options]
    levels = [Level(models[0], least=2, nodes=2), Level(models[1], nodes=3)]
    engine = make_engine(fp32, nodes=5, max_batch=2)
    engine.decoder.drafter = Cascade(
        levels, models[0].capabilities.vocab_size, needs_q=False, bottom=PromptLookup()
    )
    drafted = engine.generate(CHOSEN, max_new_tokens=16)
    assert tokens(drafted) == tokens(plain_greedy)
    assert min(output.stats.block_efficiency for output in drafted) > 2

"""Drafts that come with a request: the same text whatever they are, and one round at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.helpers import table_engines as engines

from paceline.core.types import SamplingParams, Speculation
from paceline.engine.engine import Engine
from paceline.errors import PromptError
from paceline.methods.prompt_lookup import PromptLookup

PROMPT = [3, 1, 2]
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=4)


@pytest.fixture
def engine() -> Engine:
    return engines.make()


def text(engine: Engine, params: SamplingParams = PARAMS) -> list[int]:
    return list(engine.generate(PROMPT, params, raw=True).token_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_right_and_wrong_drafts_change_nothing_but_forwards(
    engine: Engine, temperature: float
) -> None:
    params = replace(PARAMS, temperature=temperature)
    expected = text(engine, params)
    drafts = {
        "right": tuple(expected[:8]),
        "half": (*expected[:4], *((token + 1) % 5 for token in expected[4:8])),
        "wrong": tuple((token + 1) % 5 for token in expected[:8]),
        "longer than the answer": tuple(expected * 3),
    }
    accepted = {}
    for name, draft in drafts.items():
        done = engine.generate(PROMPT, params, raw=True, speculation=Speculation(draft=draft))
        assert list(done.token_ids) == expected
        accepted[name] = done.sources.count("client")
    assert accepted == {"right": 8, "half": 4, "wrong": 0, "longer than the answer": 23}


def test_one_round_at_a_time_makes_the_whole_text(engine: Engine) -> None:
    """As a device does: some drafts right, some not, each request a function of what it says."""
    expected = text(engine)
    known: list[int] = []
    rounds = 0
    while len(known) < len(expected):
        draft = expected[len(known) : len(known) + 3] + [0, 0][: rounds % 3]
        done = engine.generate(
            PROMPT,
            PARAMS,
            raw=True,
            resume=known,
            speculation=Speculation(draft=tuple(draft), once=True),
        )
        again = engine.generate(
            PROMPT,
            PARAMS,
            raw=True,
            resume=known,
            speculation=Speculation(draft=tuple(draft), once=True),
        )
        assert again.token_ids == done.token_ids
        assert done.token_ids[: len(known)] == tuple(known)
        assert len(known) < len(done.token_ids)
        known = list(done.token_ids)
        rounds += 1
    assert known == expected
    assert rounds <= 8


def test_others_beside_it_are_left_alone(engine: Engine) -> None:
    expected = text(engine)
    plain = engine.generate([0, 2], PARAMS, raw=True).token_ids
    liar = Speculation(draft=(0,) * 20, once=True)
    one = engine.add(PROMPT, PARAMS, raw=True, speculation=liar)
    two = engine.add([0, 2], PARAMS, raw=True)
    done = {}
    while len(done) < 2:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
    assert done[two].token_ids == plain
    assert list(done[one].token_ids) == expected[: len(done[one].token_ids)]
    assert done[one].finish_reason == "length"


def test_a_draft_of_other_tokens_is_refused(engine: Engine) -> None:
    for draft in ((10_000,), (-1,)):
        with pytest.raises(PromptError, match="vocabulary"):
            engine.generate(PROMPT, PARAMS, raw=True, speculation=Speculation(draft=draft))


def edited(tokens: list[int]) -> dict[str, list[int]]:
    """Predictions of a text, by what was done to it; each with how much must still be found."""
    other = [(token + 1) % 5 for token in tokens]
    return {
        "right": tokens,
        "a token replaced": [*tokens[:30], other[30], *tokens[31:]],
        "some put in": [*tokens[:30], *other[:7], *tokens[30:]],
        "some left out": [*tokens[:30], *tokens[36:]],
        "its end only": tokens[50:],
        "wrong": [7] * 100,
        "much longer": [*tokens, *other, *tokens] * 20,
        "one token": tokens[:1],
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", list(edited([0] * 120)))
def test_a_prediction_is_followed_again_where_the_text_comes_back_to_it(
    temperature: float, kind: str
) -> None:
    least = {"wrong": 0, "one token": 1, "its end only": 40}.get(kind, 75)
    params = replace(PARAMS, temperature=temperature, max_new_tokens=120)
    # Every token is often another's successor, so that pairs alone mislead.
    alone = engines.make().generate(PROMPT, params, raw=True)
    prediction = edited(list(alone.token_ids))[kind]
    engine = engines.make(drafter=PromptLookup())
    done = engine.generate(PROMPT, params, raw=True, prediction=prediction)
    assert engines.key(done) == engines.key(alone)
    assert done.sources.count("prediction") >= least
    if kind == "right":
        assert done.stats.target_forwards < 8


def test_a_prediction_may_be_text_and_stands_beside_a_constraint() -> None:
    engine = engines.make(engines.Target(engines.speaker("the quick dog")))
    params = SamplingParams(max_new_tokens=40)
    done = engine.generate([5], params, raw=True, prediction="the quick dog")
    assert done.text == "the quick dog"
    assert done.sources.count("prediction") == len(engines.TOKENIZER.encode(done.text))
    held = engine.generate(
        [5],
        params,
        raw=True,
        prediction="the quick dog",
        constraint=engine.grammar.choice(["the quick fox"]),
    )
    plain = engine.generate(
        [5], params, raw=True, constraint=engine.grammar.choice(["the quick fox"])
    )
    assert held.text == plain.text == "the quick fox"

"""Drafts that come with a request: the same text whatever they are, and one round at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, takewhile

import pytest
from tests.helpers import table_engines as engines

from paceline.core.types import SamplingParams, Speculation
from paceline.engine.client_drafts import Follower
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", list(edited([0] * 120)))
def test_marks_in_a_prediction_change_no_text(temperature: float, kind: str) -> None:
    params = replace(PARAMS, temperature=temperature, max_new_tokens=120)
    alone = engines.make().generate(PROMPT, params, raw=True)
    prediction = edited(list(alone.token_ids))[kind]
    for marks in (0, 3, 4, 100):
        speculation = Speculation(marks=marks)
        done = engines.make().generate(
            PROMPT, params, raw=True, prediction=prediction, speculation=speculation
        )
        assert engines.key(done) == engines.key(alone)


TIMES = 1000


def captions(seed: int) -> list[list[int]]:
    """Captions of a growing sound: times come, go and move, and the last word is misheard."""
    rng, out = random.Random(seed), list[list[int]]()
    said = [rng.randrange(400) for _ in range(60)]
    for count in range(3, len(said), 3):
        late, timed = rng.randrange(15), rng.random() < 0.7
        words = [TIMES]
        for at, word in enumerate(said[:count], 1):
            words.append(word if at < count else rng.randrange(400))
            if timed and at % 6 == 0:
                words += [TIMES + at * 10 + late] * 2
        out.append([*words, TIMES + count * 10 + late])
    return out


def passes(text: list[int], follower: Follower) -> int:
    """How many forwards make a text, each with what the follower is fairly sure of."""
    said: list[int] = []
    count = 0
    while len(said) < len(text):
        follower.read(said)
        draft = follower.next(sum(each > 0.5 for each in follower.reach()))
        pairs = zip(draft, text[len(said) :], strict=False)
        agreed = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        said += text[len(said) : len(said) + agreed + 1]
        count += 1
    return count


def test_captions_are_followed_over_times_that_move() -> None:
    tokens = forwards = blind = 0
    for seed in range(10):
        told = captions(seed)
        for last, text in pairwise(told):
            tokens += len(text)
            forwards += passes(text, Follower(last, TIMES))
            blind += passes(text, Follower(last))
    assert tokens / forwards > 3.5
    assert tokens / blind < 2.5


def test_marks_move_together_within_those_that_are_known() -> None:
    follower = Follower([TIMES, 1, 2, TIMES + 5, TIMES + 5, 3, 4, TIMES + 9], TIMES)
    follower.read([TIMES, 1, 2, TIMES + 7])
    assert [*follower.next(4)] == [TIMES + 7, 3, 4, TIMES + 9]  # beyond, it could be no token
    follower.read([TIMES, 1, 2, TIMES + 7, TIMES + 7, 3, TIMES + 8])
    assert [*follower.next(3)] == [TIMES + 8, 4, TIMES + 9]  # one that was not there comes twice
    follower.read([TIMES, 1, 2, TIMES + 7, TIMES + 7, 3, TIMES + 8, TIMES + 8, 4])
    assert [*follower.next(3)] == [TIMES + 9]
    early = Follower([TIMES + 5, 1, TIMES + 6, 2], TIMES)
    early.read([TIMES, 1])
    assert [*early.next(2)] == [TIMES + 1, 2]
    early = Follower([TIMES + 5, 1, TIMES + 2, 2], TIMES)
    early.read([TIMES, 1])
    assert [*early.next(2)] == [TIMES, 2]  # never a word

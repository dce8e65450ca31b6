"""Bad input is one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.table_engines import VOCABULARY, make

from paceline.engine.engine import Engine
from paceline.errors import InvalidOption, PacelineError, PromptError
from paceline.verifiers.matching import Greedy

BAD: list[tuple[str, type[PacelineError], str, Callable[[Engine], object]]] = [
    ("empty text", PromptError, "empty", lambda e: e.generate("")),
    ("blank text", PromptError, "empty", lambda e: e.generate(" \n")),
    ("empty raw text", PromptError, "empty", lambda e: e.generate("", raw=True)),
    ("empty list", PromptError, "empty", lambda e: e.generate([])),
    ("bytes", PromptError, "not bytes", lambda e: e.generate(b"hi")),  # type: ignore[call-overload]
    ("nothing", PromptError, "not NoneType", lambda e: e.generate(None)),  # type: ignore[call-overload]
    ("a number", PromptError, "not int", lambda e: e.generate(5)),  # type: ignore[call-overload]
    ("bias text", InvalidOption, "'5'", lambda e: e.generate("a", logit_bias={"5": 1})),
    ("a schema", InvalidOption, "constraint", lambda e: e.generate("a", constraint={})),
    ("empty list in a list", PromptError, "empty", lambda e: e.generate([[]])),
    ("too long", PromptError, "400", lambda e: e.generate([5] * 400)),
    ("mixed list", PromptError, "token ids", lambda e: e.generate([1, "a"])),  # type: ignore[arg-type]
    ("no prompt", PromptError, "text", lambda e: e.generate([1.5])),  # type: ignore[arg-type]
    ("id too large", PromptError, "320", lambda e: e.generate([1, VOCABULARY])),
    ("negative id", PromptError, "-1", lambda e: e.generate([-1])),
    ("unknown option", InvalidOption, "'temprature'", lambda e: e.generate("a", temprature=1)),
    ("temperature", InvalidOption, "temperature", lambda e: e.generate("a", temperature=-1)),
    ("top_p", InvalidOption, "top_p", lambda e: e.generate("a", top_p=0)),
    ("max tokens", InvalidOption, "max_new_tokens", lambda e: e.generate("a", max_new_tokens=0)),
    ("empty stop", InvalidOption, "stop", lambda e: e.generate("a", stop=("",))),
    ("banned id", InvalidOption, "banned", lambda e: e.generate("a", banned_tokens=(320,))),
    ("bias id", InvalidOption, "logit_bias", lambda e: e.generate("a", logit_bias={-1: 2.0})),
    ("forced id", InvalidOption, "forced", lambda e: e.generate("a", forced_tokens={0: 999})),
    ("stop id", InvalidOption, "stop_token", lambda e: e.generate("a", stop_token_ids=(320,))),
    ("allowed id", InvalidOption, "allowed", lambda e: e.generate("a", allowed_tokens=(320,))),
    (
        "none allowed",
        InvalidOption,
        "allowed",
        lambda e: e.generate("a", allowed_tokens=(3, 4), banned_tokens=(3, 4, 5)),
    ),
    ("second parameters", InvalidOption, "prepare", lambda e: e.add(e.prepare("a"), seed=1)),
    (
        "everything banned",
        InvalidOption,
        "banned",
        lambda e: e.generate("a", banned_tokens=tuple(range(VOCABULARY))),
    ),
]


@pytest.mark.parametrize(("name", "error", "says", "call"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_is_one_line_that_names_it(
    name: str, error: type[PacelineError], says: str, call: Callable[[Engine], object]
) -> None:
    engine = make()
    with pytest.raises(error) as caught:
        call(engine)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert engine.pending == 0


def test_streams_refuse_bad_input_too() -> None:
    with pytest.raises(PromptError):
        next(iter(make().stream("")))


def test_the_greedy_verifier_refuses_to_sample() -> None:
    engine = make(verifier=Greedy())
    with pytest.raises(InvalidOption, match=r"greedy.*use verifier 'coupled'"):
        engine.generate("dog", temperature=0.5)
    assert engine.generate("dog", max_new_tokens=3).token_ids


def test_an_engine_needs_a_place() -> None:
    with pytest.raises(InvalidOption, match="max_batch"):
        make(max_batch=0)

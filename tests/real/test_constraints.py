"""Constrained texts of the real model: what is finished is valid, and no draft changes a token."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.schemas import is_valid
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.core.constraint import Constraint
from paceline.engine.engine import Completion, Engine
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "colours", "home", "age"],
    "additionalProperties": False,
}
ANSWER: dict[str, Any] = {"anyOf": [{"type": "boolean"}, {"enum": ["unknown", "later"]}]}
TOOL = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def mixed(engine: Engine) -> list[tuple[Constraint | None, dict[str, Any] | None]]:
    """Constraints of a batch of eight, and the schemas of what they give."""
    make = engine.grammar
    return [
        (make.json_schema(PERSON, compact=True), PERSON),
        (None, None),
        (make.regex("[A-Z][a-z]+( [a-z]+){4,9}[.]"), None),
        (make.json_schema(ANSWER), ANSWER),
        (make.tool_calls([TOOL]), None),
        (make.choice(["yes", "no", "perhaps not"]), None),
        (make.tool_calls([TOOL], "required", parallel=False), None),
        (make.json(), {"type": "object"}),
    ]


def answers(engine: Engine, temperature: float) -> list[Completion]:
    """The answers to one batch, in order; what is finished is checked."""
    asked = mixed(engine)
    ids = [
        engine.add(prompt, temperature=temperature, seed=i, max_new_tokens=48, constraint=each[0])
        for i, (prompt, each) in enumerate(zip(PROMPTS, asked, strict=True))
    ]
    done: dict[int, Completion] = {}
    while engine.pending:
        found = [event for event in engine.step() if event.completion is not None]
        done |= {event.request: event.completion for event in found if event.completion}
    out = [done[each] for each in ids]
    for answer, (_, schema) in zip(out, asked, strict=True):
        if schema is not None and answer.finish_reason == "stop":
            assert is_valid(answer.text, schema), answer.text
    return out


@pytest.fixture(scope="module", params=[0.0, 1.0])
def plain(request: pytest.FixtureRequest) -> tuple[float, list[Completion]]:
    engine = make_engine(load("file"), drafter="none", max_batch=1)
    return request.param, answers(engine, request.param)


@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("suffix-automaton>eagle3", {}),
        ("eagle3", {"max_batch": 1}),
        ("recycling", {}),
        ("recycling", {"controller": "fixed", "nodes": 12, "depth": 4}),
        ("none", {}),
    ],
    ids=["auto", "eagle3", "recycling", "trees", "none"],
)
def test_no_draft_changes_a_constrained_text(
    plain: tuple[float, list[Completion]], drafter: str, options: dict[str, Any]
) -> None:
    temperature, alone = plain
    drafted = answers(make_engine(load("file"), drafter=drafter, **options), temperature)
    assert [each.token_ids for each in drafted] == [each.token_ids for each in alone]
    assert any("grammar" in each.sources for each in drafted)
    finished = [each.finish_reason == "stop" for each in alone]
    assert all(finished[place] for place in (0, 3, 5, 6))

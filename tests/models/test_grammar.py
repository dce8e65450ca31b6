"""Grammars over a tiny tokenizer: what they allow, what they force, and what they refuse."""

from __future__ import annotations

import json
import random
import sys
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.schemas import is_valid
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.calls import CallForm
from paceline.models.grammar import MOST_CALLS, Grammar, Grammars, GrammarState
from paceline.models.text import Tokenizer

END, WIDTH = 2, 330  # the model's rows are wider than the vocabulary
TOKENIZER = Tokenizer(tiny_tokenizer(320), eos_token_ids=(END,))
GRAMMARS = Grammars(TOKENIZER, WIDTH)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "properties": {"what": {"$ref": "#/$defs/word"}},
                "required": ["what"],
                "additionalProperties": False,
                "$defs": {"word": {"enum": ["cat", "dog"]}},
            },
        },
    },
    {"name": "stop"},
]


def says(grammar: Grammar, text: str, ends: bool = True) -> bool:
    """Whether the grammar allows a text, with an end token after it if it `ends`."""
    ids = [*TOKENIZER.encode(text), *([END] if ends else [])]
    return grammar.start().valid(ids) == len(ids)


def written(grammar: Grammar, seed: int, most: int = 200) -> str | None:
    """A random text of the grammar; None if it did not end."""
    state, choose, out = grammar.start(), random.Random(seed), []
    for _ in range(most):
        allowed = np.flatnonzero(state.mask())
        token = END if END in allowed else int(choose.choice(allowed.tolist()))
        if token == END:
            return TOKENIZER.decode(out)
        out.append(token)
        state.commit([token])
    return None


def test_masks_follow_paths_in_any_order() -> None:
    text = TOKENIZER.encode('{"name":"a","age":12}')
    state = GRAMMARS.json_schema(PERSON).start()
    masks = [state.mask(text[:count]) for count in range(len(text) + 1)]
    for mask, token in zip(masks, [*text, END], strict=True):
        assert mask.shape == (WIDTH,)
        assert mask[token]
        assert not mask[320:].any()
    assert np.flatnonzero(masks[-1]).tolist() == [END]
    other = GRAMMARS.json_schema(PERSON).start()
    order = list(range(len(text) + 1))
    random.Random(1).shuffle(order)
    for count in order:
        assert other.valid([*text[:count], 0]) == count
        assert (other.mask(text[:count]) == masks[count]).all()
        assert other.valid(text[:count]) == count
    for count in range(len(text)):  # and committed tokens are like paths
        assert (state.mask() == masks[count]).all()
        state.commit(text[count : count + 1])


def test_end_tokens_come_where_the_text_may_end_and_nothing_after_them() -> None:
    state = GRAMMARS.regex("ab?").start()
    a, b = TOKENIZER.encode("a"), TOKENIZER.encode("b")
    assert not state.mask()[END]
    assert state.mask(a)[END]
    assert state.mask(a)[b[0]]
    assert state.valid([*a, END, END]) == 3
    assert state.valid([*a, END, *b]) == 2
    assert state.valid([END]) == 0
    assert np.flatnonzero(state.mask([*a, END])).tolist() == [END]
    assert state.mask([*b, *b]).all()  # no text gets there
    state.commit([*a, END])
    assert np.flatnonzero(state.mask()).tolist() == [END]
    assert state.forced() == ()
    state.commit([END])
    with pytest.raises(InvalidOption, match="regular expression"):
        state.commit(b)


def test_sequences_of_one_grammar_do_not_meet() -> None:
    grammar = GRAMMARS.choice(["left", "right"])
    first, second = grammar.start(), grammar.start()
    first.commit(TOKENIZER.encode("l"))
    assert second.valid(TOKENIZER.encode("right")) == len(TOKENIZER.encode("right"))
    assert TOKENIZER.decode(first.forced()) == "eft"
    with pytest.raises(InvalidOption, match="the choice"):
        first.commit(TOKENIZER.encode("right"))
    assert TOKENIZER.decode(first.forced()) == "eft"  # a token that was refused changes nothing


def test_forced_tokens_are_allowed() -> None:
    state = GRAMMARS.json_schema(PERSON, compact=True).start()
    run = state.forced()
    assert TOKENIZER.decode(run).startswith('{"name')
    assert state.valid(run) == len(run)


def test_kinds_of_grammars() -> None:
    assert says(GRAMMARS.json(), '{"a":[1,{"b":null}]}')
    assert not says(GRAMMARS.json(), "[1]")
    assert says(GRAMMARS.json(), '{"a": 1}')
    assert not says(GRAMMARS.json(compact=True), '{"a": 1}')
    assert says(GRAMMARS.json_schema({"type": "object"}), '{"a":\n 1}')
    assert says(GRAMMARS.json_schema(json.dumps(PERSON)), '{"name":"a","age":-3}')
    assert says(GRAMMARS.regex(r"\d+(\.\d+)?"), "12.5")
    assert not says(GRAMMARS.regex(r"\d+(\.\d+)?"), "12.")
    assert says(GRAMMARS.lark('start: "a" rest*\nrest: /[0-9]/'), "a12")
    assert says(GRAMMARS.gbnf('root ::= "a" num\nnum ::= [0-9]+'), "a12")
    assert not says(GRAMMARS.gbnf('root ::= "a" num\nnum ::= [0-9]+'), "a")
    words = ["yes", 'say "no"\n', "yes, but"]
    assert all(says(GRAMMARS.choice(words), word) for word in words)
    assert not says(GRAMMARS.choice(words), "yes, ")


def test_compiled_grammars_are_kept() -> None:
    assert GRAMMARS.json_schema(PERSON) is GRAMMARS.json_schema(dict(PERSON))
    assert GRAMMARS.json_schema(PERSON) is not GRAMMARS.json_schema(PERSON, compact=True)


SIMPLE: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": 3, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 0},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "maxLength": 4},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^[ab]{1,4}$"},
    {"type": "string", "format": "date"},
    {"enum": ["red", "green", 3, None]},
    {"const": {"a": [1, 2]}},
    {"anyOf": [{"type": "boolean"}, {"const": "x"}]},
    {"type": ["boolean", "null"]},
]


def _schemas() -> list[dict[str, Any]]:
    """Fifty small schemas: the simple ones, in arrays, in objects, and behind references."""
    arrays = [{"type": "array", "items": s, "minItems": 1, "maxItems": 2} for s in SIMPLE]
    objects = [
        {
            "type": "object",
            "properties": {"a": first, "b": second},
            "required": ["a"],
            "additionalProperties": False,
        }
        for first, second in zip(SIMPLE, arrays, strict=True)
    ]
    behind = [{"$ref": "#/$defs/x", "$defs": {"x": s}} for s in objects[:11]]
    return [*SIMPLE, *arrays, *objects, *behind]


@pytest.mark.parametrize("schema", _schemas(), ids=lambda s: json.dumps(s)[:40])
def test_random_texts_of_a_schema_validate(schema: dict[str, Any]) -> None:
    grammar = GRAMMARS.json_schema(schema)
    texts = [written(grammar, seed) for seed in range(4)]
    assert any(texts)
    assert all(is_valid(text, schema) for text in texts if text)


@pytest.mark.parametrize("base", [-10, -2, -1, 0, 1, 9])
def test_bounds_that_are_excluded_are_not_said(base: int) -> None:
    """Also where both ends of a range lie between two whole numbers."""
    numbers = [base + eighth / 8 for eighth in range(-8, 17)]
    texts = {f"{number:g}" for number in numbers} | {f"{base}.0", f"{base + 1}.00", "0", "-0"}
    for low, high in [(0, 0.25), (0, 0.999), (0.25, 1), (0.5, 1), (0, 1), (0, 1.5), (0.25, 0.75)]:
        for first, last in [("minimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum")]:
            schema = {"type": "number", first: base + low, last: base + high}
            inner = {"type": "array", "items": schema, "minItems": 1}
            alone, listed = GRAMMARS.json_schema(schema), GRAMMARS.json_schema(inner)
            for text in texts:
                good = is_valid(text, schema)
                wrong = says(alone, text) and not good, says(listed, f"[{text}]") and not good
                assert not any(wrong), (schema, text)
            middle = f"{base + (low + high) / 2:g}"
            assert says(alone, middle)
            assert says(listed, f"[{middle}]")
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    calls = GRAMMARS.tool_calls([tool], "f", begin="", end="")
    assert says(calls, f'{{"name": "f", "arguments": {{"a": {middle}}}}}')
    assert GRAMMARS.json_schema({"const": {"exclusiveMinimum": 0, "maximum": 0.5}})


def test_there_are_fifty_of_them() -> None:
    assert len(_schemas()) == 50


CALL = '<tool_call>\n{"name": "find", "arguments": {"what": "cat"}}\n</tool_call>'
STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


def test_tool_calls() -> None:
    auto = GRAMMARS.tool_calls(TOOLS)
    for text in ("no call", CALL, f"I look. {CALL}", f"{CALL}\n{STOP}", f"{CALL} and {STOP} done"):
        assert says(auto, text), text
    for text in ("<tool_call>", "<tool_call>find", CALL.replace("cat", "cow"), CALL[:-3]):
        assert not says(auto, f"Look: {text}"), text
    single = GRAMMARS.tool_calls(TOOLS, parallel=False)
    assert says(single, f"I look. {CALL}")
    assert says(single, "no call")
    assert not says(single, f"{CALL}\n{STOP}")
    required = GRAMMARS.tool_calls(TOOLS, "required")
    assert says(required, f"{CALL}\n{STOP}")
    assert not says(required, f"I look. {CALL}")
    assert not says(required, "")
    assert not says(GRAMMARS.tool_calls(TOOLS, "required", parallel=False), f"{CALL}\n{STOP}")
    assert says(required, "\n".join([CALL] * MOST_CALLS))
    assert not says(required, "\n".join([CALL] * (MOST_CALLS + 1)))
    named = GRAMMARS.tool_calls(TOOLS, "stop")
    assert says(named, STOP)
    assert not says(named, CALL)
    assert not says(named, f"{STOP}\n{STOP}")


def test_tool_calls_in_other_shapes() -> None:
    calls = GRAMMARS.tool_calls(
        TOOLS,
        "required",
        begin="[",
        end="]",
        between=", ",
        form=CallForm('{"tool": "', '", "parameters": ', "}"),
    )
    one = '{"tool": "stop", "parameters": {}}'
    assert says(calls, f"[{one}, {one}]")
    bare = GRAMMARS.tool_calls(TOOLS, "stop", begin="", end="")
    assert says(bare, '{"name": "stop", "arguments": {}}')


def test_openings_that_are_a_special_token_may_be_spelled_as_well() -> None:
    special, text = "<|im_start|>", '{"name": "stop", "arguments": {}}'
    grammar = GRAMMARS.tool_calls(TOOLS, begin=special, end="<|endoftext|>")
    for opening in ([1], [i for c in special for i in TOKENIZER.encode(c)]):
        begin = [*TOKENIZER.encode("so "), *opening]
        state = grammar.start()
        assert state.valid(begin) == len(begin)
        body = [*begin, *TOKENIZER.encode(text)]
        assert state.valid([*body, 0, END]) == len(body) + 2
        assert state.valid([*begin, *TOKENIZER.encode("x")]) == len(begin)


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GRAMMARS.json_schema({"not": {"format": "x"}}), "#/not"),
        (lambda: GRAMMARS.json_schema({"type": "text"}), "text"),
        (lambda: GRAMMARS.json_schema({"type": "integer", "minimum": 3, "maximum": 1}), "minimum"),
        (lambda: GRAMMARS.json_schema({"$ref": "http://127.0.0.1/x"}), "does not fetch"),
        (lambda: GRAMMARS.json_schema({"$ref": "#/$defs/y"}), "y"),
        (lambda: GRAMMARS.json_schema('{"type": '), "not JSON"),
        (lambda: GRAMMARS.json_schema("[" * 100000), "not JSON|object"),
        (lambda: GRAMMARS.json_schema("[]"), "must be an object"),
        (lambda: GRAMMARS.json_schema({"const": float("nan")}), "JSON"),
        (lambda: GRAMMARS.json_schema({"const": {1, 2}}), "JSON"),
        (lambda: GRAMMARS.regex("(a"), "unclosed group"),
        (lambda: GRAMMARS.regex("(" * 5000 + "a" + ")" * 5000), "regular expression"),
        (lambda: GRAMMARS.json_schema(_deep(400)), "too deeply"),
        (lambda: GRAMMARS.json_schema(_deep(100000)), "JSON"),
        (lambda: GRAMMARS.lark("start: " + "(" * 50000 + '"a"' + ")" * 50000), "Lark"),
        (lambda: GRAMMARS.gbnf("root ::= " + "(" * 50000 + '"a"' + ")" * 50000), "GBNF"),
        (lambda: GRAMMARS.lark("start: other"), "other"),
        (lambda: GRAMMARS.lark("begin: /a/"), "start"),
        (lambda: GRAMMARS.gbnf("root ::= ["), "GBNF"),
        (lambda: GRAMMARS.gbnf("root ::= other"), "GBNF"),
        (lambda: GRAMMARS.choice([]), "one text or more"),
        (lambda: GRAMMARS.choice("yes"), "one text or more"),
        (lambda: GRAMMARS.tool_calls(TOOLS, "fly"), "'fly'.*find, stop"),
        (lambda: GRAMMARS.tool_calls([]), "there is none"),
        (lambda: GRAMMARS.tool_calls([{"function": {}}]), "name"),
        (lambda: GRAMMARS.tool_calls([{"name": "f", "parameters": [1]}]), "'f'"),
        (
            lambda: GRAMMARS.tool_calls([{"name": "f", "parameters": {"not": {"format": "x"}}}]),
            "'f'.*not",
        ),
        (lambda: GRAMMARS.tool_calls(TOOLS, begin=""), "begin"),
        (lambda: GRAMMARS.tool_calls([{**TOOLS[0], "name": "a"}] * 1000), "1000 tools"),
        (
            lambda: GRAMMARS.json_schema(
                {"properties": dict.fromkeys(map(str, range(3000)), True)}
            ),
            "too large",
        ),
        (lambda: GRAMMARS.regex("(?=a)b"), "expression is matched by no text"),
        (lambda: GRAMMARS.lark("start: start"), "Lark grammar is matched by no text"),
        (lambda: GRAMMARS.regex("\ud83d"), "expression is no UTF-8 text"),
        (lambda: GRAMMARS.lark('start: "\ud83d"'), "Lark grammar is no UTF-8 text"),
        (lambda: GRAMMARS.gbnf('root ::= "\ud83d"'), "GBNF grammar is no UTF-8 text"),
        (lambda: GRAMMARS.choice(["a", "\ud83d"]), "choice is no UTF-8 text"),
        (lambda: GRAMMARS.regex(b"a"), "expression must be text, not bytes"),  # type: ignore[arg-type]
        (lambda: GRAMMARS.lark(None), "Lark grammar must be text"),  # type: ignore[arg-type]
        (lambda: GRAMMARS.gbnf(5), "GBNF grammar must be text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_named(make: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=named) as raised:
        make()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


AMBIGUOUS = 'start: s\ns: s s | "a" | s s s | ""'
A = TOKENIZER.encode("a")


def failing(state: GrammarState) -> int:
    """Number of tokens after which a limit of work is met."""
    for count in range(1000):
        try:
            state.commit(A)
        except InvalidOption as error:
            return count if "too much work" in str(error) else -1
    return -1


def test_what_needs_too_much_work_ends_its_own_text_alone() -> None:
    """Limits count work and not time, and a text's work is not that of others."""
    grammar = GRAMMARS.lark(AMBIGUOUS)
    first = failing(grammar.start())
    assert first > 10
    assert failing(grammar.start()) == first
    assert says(GRAMMARS.regex("ab"), "ab")


def test_a_limit_met_behind_a_path_leaves_the_text_as_it_was() -> None:
    state = GRAMMARS.lark(AMBIGUOUS).start()
    state.commit(A)
    before = state.mask().copy()
    assert state.valid(A * 500) < 500
    with pytest.raises(InvalidOption, match="too much work"):
        state.mask(A * 500)
    assert (state.mask() == before).all()
    assert state.valid(A * 3) == 3


@pytest.mark.parametrize("pattern", [r"(.|\n)*[ae](.|\n){1000}x", "((a{0,999}b?){0,999}c?){999}"])
def test_a_pattern_with_many_states_takes_no_long_time(pattern: str) -> None:
    state = GRAMMARS.regex(pattern).start()
    begin = perf_counter()
    for letter in "the quick brown ae" * 5 if "x" in pattern else "aabacaaab":
        assert state.valid(TOKENIZER.encode(letter)) == 1
        state.mask()
        state.commit(TOKENIZER.encode(letter))
    assert perf_counter() - begin < 20


@pytest.mark.parametrize(
    ("values", "other"),
    [
        ([f"w{each}x" for each in range(3000)], "w3000x"),
        ([*range(3000)], 3000),
        ([each / 4 for each in range(3000)], 0.1),
        ([*range(1000), *map(str, range(1000)), None, True, [1], {"a": False}], [True]),
    ],
)
def test_thousands_of_values_are_read_at_once_and_held(values: list[Any], other: Any) -> None:
    begin = perf_counter()
    grammar = GRAMMARS.json_schema({"allOf": [{"enum": values}, {"enum": [*values, other]}]})
    assert perf_counter() - begin < 3
    for value in (values[0], values[-1], values[len(values) // 2]):
        assert says(grammar, json.dumps(value))
    for value in (other, "nothing", 1e9):
        assert not says(grammar, json.dumps(value))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match="no end token"):
        Grammars(Tokenizer(tiny_tokenizer(320)), 320)
    odd: Any = SimpleNamespace(to_str=lambda: "{}")
    with pytest.raises(InvalidOption, match="do not read this tokenizer"):
        Grammars(Tokenizer(odd, eos_token_ids=(END,)), WIDTH)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RuntimeUnavailable, match=r"paceline\[grammar\]"):
        Grammars(TOKENIZER, WIDTH)

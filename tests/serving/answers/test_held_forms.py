"""What a grammar lets a model write is read back as a call whose arguments are of the schema."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.helpers.tiny_model import tiny_tokenizer
from tests.serving.answers.test_forms import STYLES, parse

from paceline.errors import InvalidOption
from paceline.models.grammar import Grammar, Grammars
from paceline.models.text import Tokenizer
from paceline.serving.answers.parser import AnswerParser
from paceline.serving.answers.style import HERMES, LLAMA, Style

END = 2
ALL = {**STYLES, "hermes": HERMES, "llama": LLAMA}
TOKENS = """<|tool_call> <tool_call|> <|"|> <|tool_call_start|> <|tool_call_end|> [TOOL_CALLS]
[ARGS] [CALL_ID] <|channel|> <|message|> <|end|> <|start|> <|constrain|> <|channel> <channel|>"""


def tokenizer_with(special: bool) -> Tokenizer:
    core = tiny_tokenizer(320)
    if special:
        core.add_special_tokens(TOKENS.split())
    return Tokenizer(core, eos_token_ids=(END,))


TOKENIZERS = {special: tokenizer_with(special) for special in (False, True)}
GRAMMARS = {special: Grammars(each, 400) for special, each in TOKENIZERS.items()}
WORD = {"type": "string", "maxLength": 3}
SCHEMAS: list[dict[str, Any]] = [
    {"properties": {"n": {"type": "integer", "maximum": 99, "minimum": -9}}, "required": ["n"]},
    {"properties": {"s": WORD}, "required": ["s"]},
    {"properties": {"a": {"enum": ["x y", "</parameter", "'\"\\"]}, "b": WORD}, "required": ["a"]},
    {"properties": {"s": {"type": "string", "pattern": "^[a-c]{2,4}$"}, "b": {"type": "boolean"}}},
    {"properties": {"v": {"anyOf": [WORD, {"type": "null"}, {"$ref": "#/$defs/n"}]}},
     "required": ["v"], "$defs": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}},
    {"properties": {"o": {"type": "object", "properties": {"k": WORD, "t": {"const": None}},
                          "required": ["k", "t"], "additionalProperties": False}},
     "required": ["o"]},
    {"properties": {"l": {"type": "array", "items": {"enum": [True, None, "a", 5, [1, {"a": ""}]]},
                          "maxItems": 3}}, "required": ["l"]},
    {"properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]},
    {"$ref": "#/$defs/r", "$defs": {"r": {"properties": {"s": WORD, "d": {"type": "number",
     "minimum": 0, "maximum": 1}}, "required": ["d"], "additionalProperties": False}}},
    {"enum": [{"s": "x", "n": 1}, {"s": "", "n": 2.5}]},
    {"additionalProperties": {"enum": ["yes"]}, "propertyNames": {"maxLength": 4},
     "minProperties": 1, "maxProperties": 1},
]  # fmt: skip
for schema in SCHEMAS:
    schema.setdefault("type", "object")
    if "enum" not in schema and "$ref" not in schema:
        schema.setdefault("additionalProperties", False)


def held(
    style: Style, special: bool, schema: dict[str, Any], mode: str = "required", most: int = 1
) -> Grammar:
    tools = [{"name": "f", "parameters": schema}, {"name": "stop"}]
    return GRAMMARS[special].tool_calls(
        tools,
        mode,
        begin=style.before,
        end=style.after,
        between=style.between,
        parallel=most > 1,
        form=style.form,
        said=style.said,
    )


def written(grammar: Grammar, tokenizer: Tokenizer, seed: int, most: int = 400) -> str | None:
    """A random text of the grammar; None if it did not end."""
    state, choose, out = grammar.start(), random.Random(seed), []
    for _ in range(most):
        allowed = np.flatnonzero(state.mask()).tolist()
        token = END if END in allowed else choose.choice(allowed)
        if token == END:
            return tokenizer.decode(out, skip_special=False)
        out.append(token)
        state.commit([token])
    return None


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "spelled"])
@pytest.mark.parametrize("name", ALL)
def test_random_calls_are_read_back_and_valid(name: str, special: bool) -> None:
    style, tokenizer = ALL[name], TOKENIZERS[special]
    for schema in SCHEMAS:
        grammar = held(style, special, schema, "f")
        for seed in range(6):
            text = written(grammar, tokenizer, seed)
            assert text is not None
            found = parse(style, text, tools={"f": schema, "stop": {}})
            assert [call for call, _ in found.calls] == ["f"], text
            assert found.content == "", text
            assert Draft202012Validator(schema).is_valid(json.loads(found.calls[0][1])), (
                text,
                found,
            )


def says(grammar: Grammar, special: bool, text: str, ends: bool = True) -> bool:
    ids = [*TOKENIZERS[special].encode(text), *([END] if ends else [])]
    return grammar.start().valid(ids) == len(ids)


FREE = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["s"]}  # fmt: skip
# Calls of f with s = `it's "a" <b>` and a line break, n = 1, as each model is trained to write it.
WRITTEN = {
    "xml": '<tool_call>\n<function=f>\n<parameter=s>\nit\'s "a" <b>\n\n</parameter>\n'
    "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm": '<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>it\'s "a" <b>\n</arg_value>\n'
    "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "glm tight": '<tool_call>f<arg_key>s</arg_key><arg_value>it\'s "a" <b>\n</arg_value>'
    "<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>",
    "lfm": '<|tool_call_start|>[f(s="it\'s \\"a\\" <b>\\n", n=1)]<|tool_call_end|>',
    "gemma": '<|tool_call>call:f{s:<|"|>it\'s "a" <b>\n<|"|>,n:1}<tool_call|>',
    "ministral": '[TOOL_CALLS]f[ARGS]{"s": "it\'s \\"a\\" <b>\\n", "n": 1}',
    "mistral ids": '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"s": "it\'s \\"a\\" <b>\\n", "n": 1}',
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"s": "it\'s \\"a\\" <b>\\n", "n": 1}',
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"s": "it\'s \\"a\\" <b>\\n", "n": 1}}\n'
    "</tool_call>",
    "llama": '{"name": "f", "parameters": {"s": "it\'s \\"a\\" <b>\\n", "n": 1}}',
}


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "spelled"])
@pytest.mark.parametrize("name", ALL)
def test_a_call_as_it_was_trained_is_allowed_and_others_are_not(name: str, special: bool) -> None:
    style, text = ALL[name], WRITTEN[name]
    named = held(style, special, FREE, "f")
    assert says(named, special, text)
    assert json.loads(parse(style, text, tools={"f": FREE}).calls[0][1]) == {
        "s": 'it\'s "a" <b>\n',
        "n": 1,
    }
    wrong = [text.replace("1", "x"), text[:-1], text.replace("f", "g", 1), "no call"]
    wrong += [other for key, other in WRITTEN.items() if key != name]
    assert [each for each in wrong if says(named, special, each)] == []
    if style.before and not style.said:
        twice = held(style, special, FREE, "required", most=2)
        row = (
            style.before
            + (style.between or f"{style.after}\n{style.before}").join(
                [text[len(style.before) : len(text) - len(style.after)]] * 2
            )
            + style.after
        )
        assert says(twice, special, row)
        assert not says(named, special, row)
        assert len(parse(style, row, tools={"f": FREE}).calls) == 2
    if style.before:
        auto = held(style, special, FREE, "auto")
        before = style.said if style.said else "I look. "
        assert says(auto, special, before if style.said else before + text)
        assert says(auto, special, f"{before}no call")
        assert says(auto, special, text)
        assert not says(auto, special, before * (not style.said) + text.replace("1", "x"))


def test_reasoning_goes_before_a_call_in_channels() -> None:
    style = STYLES["harmony"]
    think = style.think
    assert think is not None
    tags = (think[0], think[1] + style.turn)
    thought = f"{think[0]}Hm.{think[1]}{style.turn}"
    tools = [{"name": "f", "parameters": FREE}]
    for special, grammars in GRAMMARS.items():
        behind = grammars.behind(tags)
        calls = behind.tool_calls(
            tools, "required", begin=style.before, end="", parallel=False, form=style.form
        )
        assert says(calls, special, WRITTEN["harmony"])
        assert says(calls, special, thought + WRITTEN["harmony"])
        answer = grammars.behind(tags, head=style.said).json_schema({"type": "integer"})
        assert says(answer, special, f"{style.said}1")
        assert says(answer, special, f"{thought}{style.said}1")
        assert not says(answer, special, f"{thought}1")
        inside = grammars.behind(tags, True, style.said).json_schema({"type": "integer"})
        assert says(inside, special, f"Hm.{think[1]}{style.turn}{style.said}1")


def test_an_argument_that_python_cannot_name_is_refused() -> None:
    schema = {"type": "object", "properties": {"a-b": {"type": "string"}}, "required": ["a-b"]}
    with pytest.raises(InvalidOption, match=r"'a-b'.*Python"):
        held(STYLES["lfm"], True, schema, "f")


def test_a_grammar_of_another_form_is_not_read_back() -> None:
    """The control: JSON in the place of a family's own form is no form of that family."""
    text = written(
        held(STYLES["gemma"], True, FREE | {"properties": {}}, "stop"), TOKENIZERS[True], 1
    )
    assert text == "<|tool_call>call:stop{}<tool_call|>"
    parser = AnswerParser(HERMES, ["stop"])
    assert [delta.kind for delta in [*parser.feed(text), *parser.finish()]] == ["content"]

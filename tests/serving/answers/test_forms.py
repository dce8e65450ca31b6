"""Calls in each family's form, and answers in channels, are read the same however cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.answers.test_parser import Answer, joined

from paceline.serving.answers.channels import ChannelParser
from paceline.serving.answers.parser import AnswerParser, call_id
from paceline.serving.answers.style import HERMES, Style, find_style

STYLES = {
    "xml": find_style("tools <tool_call><function="),
    "glm": find_style("tools <tool_call>{name}\n<arg_key>"),
    "glm tight": find_style("tools <tool_call><arg_key>k</arg_key><arg_value>"),
    "lfm": find_style("tools <|tool_list_start|>"),
    "gemma": find_style("tools <|tool_call>call: <|channel>thought <channel|>"),
    "ministral": find_style("tools [TOOL_CALLS] [ARGS] [THINK][/THINK]"),
    "mistral ids": find_style("tools [TOOL_CALLS] [CALL_ID] [ARGS]"),
    "harmony": find_style("tools <|channel|>analysis"),
}
SCHEMA = {
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "o": {"$ref": "#/$defs/o"},
        "e": {"enum": [1, None, "x"]},
        "b": {"type": ["boolean", "null"]},
    },
    "$defs": {"o": {"type": "object"}},
}
TOOLS: dict[str, Any] = {"f": SCHEMA, "f2": {}, "get-it": {}}


def parse(
    style: Style, *pieces: str, tools: Mapping[str, Any] = TOOLS, inside: bool = False
) -> Answer:
    parts = ChannelParser if style.said else AnswerParser
    parser = parts(style, tools, inside=inside, request="r")
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return joined(parser, deltas + parser.finish())


def one(name: str, arguments: dict[str, Any], content: str = "", reasoning: str = "") -> Answer:
    written = json.dumps(arguments, ensure_ascii=False)
    return Answer(reasoning, content, ((name, written),), 1)


CHANNEL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
# A style, an answer, and what is read.
ANSWERS: list[tuple[str, str, Answer]] = [
    (
        "xml",
        "Hm.\n<tool_call>\n<function=f>\n<parameter=s>\n1\n<2\n</parameter>\n<parameter=n>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        one("f", {"s": "1\n<2", "n": 3}, "Hm."),
    ),
    (
        "glm",
        "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>s</arg_key>\n"
        '<arg_value> "3" </arg_value>\n</tool_call>',
        one("f", {"n": 3, "s": ' "3" '}),
    ),
    (
        "glm tight",
        "ok<tool_call>f<arg_key>o</arg_key><arg_value>{'a': True}</arg_value></tool_call> bye",
        one("f", {"o": {"a": True}}, "ok bye"),
    ),
    ("glm", "<tool_call>f2</tool_call>", one("f2", {})),
    ("glm", "<tool_call>\nf\n</tool_call>\n", one("f", {})),
    (
        "glm",
        '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>',
        one("f", {"n": 1}),
    ),
    (
        "lfm",
        "<|tool_call_start|>[f(s='it\\'s )]', n=3)]<|tool_call_end|>Looking.",
        one("f", {"s": "it's )]", "n": 3}, "Looking."),
    ),
    (
        "lfm",
        '<|tool_call_start|>[f(s="\\ud83d\\ude00", b=None, o={"a": true})]<|tool_call_end|>',
        one("f", {"s": "\U0001f600", "b": None, "o": {"a": True}}),
    ),
    (
        "lfm",
        '<|tool_call_start|>[{"name": "f", "arguments": {"n": 1}}]<|tool_call_end|>',
        one("f", {"n": 1}),
    ),
    (
        "gemma",
        '<|channel>thought\nSo.\n<channel|>Hm <|tool_call>call:f{n:3,s:<|"|>a}<b,"<|"|>,'
        'o:{k:[1,-2.5,true,{}],<|"|>l m<|"|>:null}}<tool_call|>',
        one(
            "f",
            {"n": 3, "s": 'a}<b,"', "o": {"k": [1, -2.5, True, {}], "l m": None}},
            "Hm",
            "So.",
        ),
    ),
    ("gemma", "<|tool_call>call:f2{ a : [ 1 , x y ] }<tool_call|>", one("f2", {"a": [1, "x y"]})),
    ("gemma", "<|tool_call>call:f2{}", one("f2", {})),
    (
        "ministral",
        '[THINK]So[/THINK]Hm [TOOL_CALLS]f[ARGS]{"s": "[ARGS]", "n": 1}',
        one("f", {"s": "[ARGS]", "n": 1}, "Hm", "So"),
    ),
    ("ministral", "[TOOL_CALLS]f2[ARGS] {}", one("f2", {})),
    (
        "mistral ids",
        'Hm [TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"s": "[CALL_ID]", "n": 1}',
        one("f", {"s": "[CALL_ID]", "n": 1}, "Hm"),
    ),
    ("mistral ids", "[TOOL_CALLS]f2[CALL_ID]0[ARGS]{}", one("f2", {})),
    ("mistral ids", "[TOOL_CALLS]f2[ARGS]{}", one("f2", {})),
    (
        "harmony",
        f'<|channel|>analysis<|message|>So, n < 3.\n<|end|><|start|>assistant{CHANNEL}{{"n": 1}}'
        "<|call|>",
        one("f", {"n": 1}, "", "So, n < 3.\n"),
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f"
        '<|channel|>commentary json<|message|>{"n": 1}',
        one("f", {"n": 1}, "I look."),
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
        "<|end|><|start|>assistant<|channel|>final<|message|>c <d>\n<|return|>",
        Answer("ab", "c <d>\n", (), 0),
    ),
]
# A style, and text that holds no call: all of it is content.
NONE: list[tuple[str, str]] = [
    ("xml", "<tool_call>\n<function=g>\n</function>\n</tool_call>"),
    ("xml", "<tool_call>\n<function=f>\n<parameter=n>\n3"),
    ("glm", "<tool_call>g\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
    ("glm", "<tool_call>f3\n</tool_call>"),
    ("glm", "<tool_call>f\n<arg_key>n</arg_key>\n</tool_call>"),
    ("glm", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>"),
    ("lfm", "<|tool_call_start|>[g(a=1)]<|tool_call_end|>"),
    ("lfm", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
    ("lfm", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>"),
    ("lfm", "<|tool_call_start|>[f(a=1\n)]<|tool_call_end|>"),
    ("lfm", "<|tool_call_start|>[f(a=1e999)]"),
    ("lfm", "<|tool_call_start|>[f(a='x]"),
    ("gemma", "<|tool_call>call:g{}<tool_call|>"),
    ("gemma", "<|tool_call>f{}<tool_call|>"),
    ("gemma", '<|tool_call>call:f{s:<|"|>x}<tool_call|>'),
    ("gemma", "<|tool_call>call:f{n:[1}<tool_call|>"),
    ("gemma", "<|tool_call>call:f{n}<tool_call|>"),
    ("gemma", "<|tool_call>call:f{n:1 {}}<tool_call|>"),
    ("ministral", "[TOOL_CALLS]g[ARGS]{}"),
    ("ministral", "[TOOL_CALLS]f{}"),
    ("ministral", "[TOOL_CALLS]f[ARGS]1"),
    ("ministral", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}"),
    ("mistral ids", "[TOOL_CALLS]g[CALL_ID]a1B2c3D4e[ARGS]{}"),
    ("mistral ids", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]1"),
    ("mistral ids", "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e{}"),
    ("mistral ids", "[TOOL_CALLS]f[CALL_ID]a1\n[ARGS]{}"),
    ("mistral ids", f"[TOOL_CALLS]f[CALL_ID]{'a' * 80}[ARGS]{{}}"),
    ("harmony", "plain"),
    ("harmony", "<|channel|>comment"),
    ("harmony", "<|channel|>commentary to=python<|message|>1 + 1"),
    ("harmony", "<|channel|>commentary to=functions.g<|message|>{}"),
    ("harmony", CHANNEL + "1"),
]


@pytest.mark.parametrize(("name", "text", "expected"), ANSWERS)
def test_what_answers_mean_at_every_cut(name: str, text: str, expected: Answer) -> None:
    style = STYLES[name]
    assert parse(style, text) == parse(style, *text) == expected
    for first, second in combinations(range(0, len(text) + 1, 1 + len(text) // 40), 2):
        assert parse(style, text[:first], text[first:second], text[second:]) == expected


@pytest.mark.parametrize(("name", "text"), NONE)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    for pieces in ([text], text):
        assert parse(STYLES[name], *pieces) == Answer("", text, (), 0)


@pytest.mark.parametrize("name", set(STYLES) - {"xml", "ministral", "mistral ids"})
def test_another_family_s_calls_are_not_read(name: str) -> None:
    text = next(text for style, text, found in ANSWERS if style == name and found.calls)
    assert not parse(HERMES, text).calls


def test_several_calls() -> None:
    two = Answer("", "", (("f", '{"n": 1}'), ("f2", "{}")), 2)
    for name, text in (
        (
            "xml",
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
            "\n<tool_call>\n<function=f2>\n</function>\n</tool_call>",
        ),
        (
            "glm",
            "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
            "<tool_call>f2</tool_call>",
        ),
        ("lfm", "<|tool_call_start|>[f(n=1), f2()]<|tool_call_end|>"),
        ("gemma", "<|tool_call>call:f{n:1}<tool_call|><|tool_call>call:f2{}<tool_call|>"),
        ("ministral", '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]f2[ARGS]{}'),
        ("mistral ids", '[TOOL_CALLS]f[CALL_ID]a[ARGS]{"n": 1}[TOOL_CALLS]f2[CALL_ID]a[ARGS]{}'),
    ):
        assert parse(STYLES[name], text) == parse(STYLES[name], *text) == two


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("n", "3.0", 3.0),
        ("n", "NaN", "NaN"),
        ("o", '{"a": 1}', {"a": 1}),
        ("o", "7", "7"),
        ("e", "1", 1),
        ("e", "2.5", "2.5"),
        ("b", "null", None),
        ("b", "None", None),
        ("b", "False", False),
        ("s", "null", "null"),
    ],
)
def test_values_are_of_the_schema_s_types(key: str, text: str, value: object) -> None:
    answer = f"<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    assert json.loads(parse(STYLES["glm"], answer).calls[0][1]) == {key: value}


def test_json_arguments_come_as_they_are_written() -> None:
    for name, head in (
        ("ministral", "[TOOL_CALLS]f[ARGS]"),
        ("mistral ids", "[TOOL_CALLS]f[CALL_ID]a[ARGS]"),
        ("harmony", CHANNEL),
    ):
        style = STYLES[name]
        parser = (ChannelParser if style.said else AnswerParser)(style, TOOLS, request="r")
        assert parser.feed(head) == []
        assert [delta.text for delta in parser.feed('{"s": "a')] == ["", '{"s": "a']
        assert [delta.text for delta in parser.feed('b"')] == ['b"']
        assert (parser.finish(), parser.calls) == ([], 0)


def test_an_id_that_the_model_wrote_is_the_call_s_once() -> None:
    def ids(*given: str) -> list[str]:
        text = "".join(f"[TOOL_CALLS]f[CALL_ID]{each}[ARGS]{{}}" for each in given)
        parser = AnswerParser(STYLES["mistral ids"], TOOLS, request="r")
        return [each.id for each in parser.feed(text) if each.name]

    own = [call_id("r", index) for index in range(3)]
    assert ids("a1B2c3D4e", "a1B2c3D4e", "Z1B2c3D4e") == ["a1B2c3D4e", own[1], "Z1B2c3D4e"]
    assert ids("0", "a1-2c3D4e", "a1B2c3D4ef") == own
    assert len({*ids("0", own[0], own[0])}) == 3


def test_an_answer_that_begins_within_a_channel() -> None:
    style = STYLES["harmony"]
    assert style.inside("<|start|>assistant<|channel|>analysis<|message|>")
    assert not style.inside("<|start|>assistant")
    text = "so<|end|><|start|>assistant<|channel|>final<|message|>yes"
    assert parse(style, text, inside=True) == Answer("so", "yes", (), 0)


PIECES = {
    "xml": "<tool_call> </tool_call> <function=f> </function> <parameter=n> </parameter>",
    "glm": "<tool_call> </tool_call> f f2 <arg_key> </arg_key> <arg_value> </arg_value>",
    "lfm": "<|tool_call_start|> <|tool_call_end|> [ ] f( f2( ) n= ' \\ ,",
    "gemma": '<|tool_call> <tool_call|> call:f{ call:f2{ } { [ ] n: <|"|> , : <|channel>thought',
    "ministral": '[TOOL_CALLS] [ARGS] f f2 { } {} "n" : [ ] [THINK] [/THINK]',
    "mistral ids": "[TOOL_CALLS] [CALL_ID] [ARGS] f f2 a1B2c3D4e {} { [THINK] [/THINK]",
    "harmony": "<|channel|> <|message|> <|end|> <|start|> assistant to=functions.f analysis {}",
}


@pytest.mark.parametrize("name", PIECES)
@settings(max_examples=150)
@given(data=st.data())
def test_any_text_however_cut(name: str, data: st.DataObject) -> None:
    pieces = [*PIECES[name].split(), " ", "\n", "1", "x", "é", "\x00", "\ud800"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=14)))
    style = STYLES[name]
    whole = parse(style, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(style, *parts) == parse(style, *text) == whole
    rest = iter(text)
    assert all(char in rest for char in whole.content)
    if not whole.calls and style.think is None:
        assert whole.content == text

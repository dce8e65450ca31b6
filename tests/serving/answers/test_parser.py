"""Answers are split the same however they are cut, and nothing that a model wrote is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.models.calls import CALL_ID, OBJECT
from paceline.serving.answers.call import SPACE
from paceline.serving.answers.parser import AnswerParser, Delta, call_id
from paceline.serving.answers.style import BARE, HERMES, LLAMA, Style, find_style

MISTRAL = find_style("tools [TOOL_CALLS] [")
GRANITE = find_style("tools <|tool_call|>")
FENCED = find_style("tools ```tool_code")
XML = find_style("tools <tool_call><function=")
SEED = find_style("tools <seed:tool_call><function=")
STYLES = {
    "hermes": HERMES,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "granite": GRANITE,
    "fenced": FENCED,
    "bare": BARE,
    "xml": XML,
}
THINK = ("<think>", "</think>")
THINKING = replace(HERMES, think=THINK)
NAMES = ("f", "get_weather")


class Answer(NamedTuple):
    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    whole: int


def joined(parser: AnswerParser, deltas: Sequence[Delta]) -> Answer:
    """What a client puts together; checks the order and form of deltas."""
    calls: list[tuple[str, str]] = []
    texts = {"reasoning": "", "content": ""}
    for delta in deltas:
        if delta.kind != "call":
            assert delta.text
            assert (delta.index, delta.id, delta.name) == (0, "", "")
            texts[delta.kind] += delta.text
        elif delta.name:
            assert (delta.index, delta.text) == (len(calls), "")
            own = delta.id == call_id("r", delta.index)
            assert own or (parser._style.form.mark and re.fullmatch(CALL_ID, delta.id))
            calls.append((delta.name, ""))
        else:
            assert delta.index == len(calls) - 1
            assert delta.text
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return Answer(texts["reasoning"], texts["content"], tuple(calls), parser.calls)


def parse(style: Style, *pieces: str, names: Sequence[str] = NAMES, inside: bool = False) -> Answer:
    parser = AnswerParser(style, names, inside=inside, request="r")
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    deltas += parser.finish()
    assert parser.finish() == []
    return joined(parser, deltas)


# What answers mean:


def test_a_whole_answer_of_every_part() -> None:
    text = (
        "<think>\nWhere is <tool_call>?\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "K\\u00f6ln", "n": [1, -2.5e3]}}\n</tool_call>\n'
        '<tool_call>{"arguments":{},"name":"f"}</tool_call>\n'
    )
    assert parse(THINKING, text) == Answer(
        "Where is <tool_call>?",
        "Let me see.",
        (("get_weather", '{"city": "K\\u00f6ln", "n": [1, -2.5e3]}'), ("f", "{}")),
        2,
    )


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        (HERMES, '\n <tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>\n'),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}}'),  # ended by a token
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>'),  # one brace lost
        (HERMES, '{"name": "f", "arguments": {"a": 1}}'),
        (HERMES, '```json\n{"name": "f", "arguments": {"a": 1}}\n```\n'),
        (HERMES, '<tool_call>\n{{"name": "f", "arguments": {"a": 1}}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{{"name": "f", "arguments": {{"a": 1}}}}\n</tool_call>'),
        (HERMES, '{{"name": "f", "arguments": {"a": 1}}}'),
        (HERMES, '<tools>\n{"name": "f", "arguments": {"a": 1}}\n</tools>'),
        (HERMES, '<function_call>{"name": "f", "arguments": {"a": 1}}</function_call>'),
        (MISTRAL, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        (LLAMA, '```json\n{"name": "f", "parameters": {"a": 1}}\n```'),
        (LLAMA, "f(a=1)"),
        (LLAMA, "[f(a=1)]"),
        (LLAMA, "<|python_tag|>f(a=1)"),
        (LLAMA, "\n[f( a = 1 )]"),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}'),
        (LLAMA, '\n{"type": "function", "name": "f", "parameters": {"a": 1}}'),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "123456789"}]'),
        (MISTRAL, '[TOOL_CALLS][{"arguments": {"a": 1}, "name": "f"}'),
        (GRANITE, '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]'),
        (FENCED, '```tool_code\n{"name": "f", "arguments": {"a": 1}}\n```'),
        (BARE, '{"\\u006eame": "\\u0066", "arguments": {"a": 1}}'),
    ],
)
def test_a_call_of_every_family(style: Style, text: str) -> None:
    assert parse(style, text) == Answer("", "", (("f", '{"a": 1}'),), 1)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, '<tool_call>{"name":"f"}</tool_call>\n<tool_call>{"name":"f"}</tool_call>'),
        (HERMES, '<tool_call>{"name":"f"}\n{"name":"f"}</tool_call>'),
        (HERMES, '<tool_call>{"name":"f"}<tool_call>{"name":"f"}'),
        (HERMES, '```json\n[{"name":"f"}, {"name":"f"}]\n```'),
        (HERMES, '```json\n{"name":"f"}\n```\n<tool_call>{"name":"f"}\n</tool_call>'),
        (HERMES, '<tool_call>{{"name":"f"}}\n</tool_call>\n<tool_call>{{"name":"f"}}</tool_call>'),
        (LLAMA, '{"name": "f"}; {"name": "f"}'),
        (LLAMA, "[f(), f()]"),
        (LLAMA, "f(); f()"),
        (MISTRAL, '[TOOL_CALLS] [{"name":"f"}, {"name":"f"}]'),
        (MISTRAL, '[TOOL_CALLS] [{"name":"f"}] [TOOL_CALLS] [{"name":"f"}]'),
    ],
)
def test_several_calls_and_calls_without_arguments(style: Style, text: str) -> None:
    assert parse(style, text) == Answer("", "", (("f", "{}"), ("f", "{}")), 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "<tool_call>",
        "<tool_call> [ ",
        "a < b <tool_cal",
        "<tool_call>[[{",
        "<tool_call> f(1) </tool_call>",
        '<tool_call>{{"name": "g"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"arguments": {}, "parameters": {}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": "<tool_call>"}}</tool_call>',
        '<tool_call>{"id": "f"}</tool_call>',
        '<tool_call>{}</tool_call> <tool_call>{"x": 1}',
        '{"city": "f"} ',
        'x {"name": "f"}',
        'x\n```json\n{"name": "Bob"}\n```',
        '<tools>{"type": "function", "function": {"name": "f"}}</tools>',
        "f(1)",
        "f(a)",
        "f(**{})",
        "f(a=f)",
        'f(a="x',
        "[f",
        "a f(a=1)",
        "<function_call>f(a=1)</function_call>",
        '```json\n{"a": 1}\n```',
        '```js\n{"name": "f"}\n```',
        '[{"name": "f"}]',
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert parse(HERMES, text) == Answer("", text, (), 0)


def test_calls_behind_a_sentence() -> None:
    for opened, closed in (("<tools>", "</tools>"), ("```json", "```")):
        text = f'I look it up:\n{opened}\n{{"name": "f", "arguments": {{"a": 1}}}}\n{closed}'
        assert parse(HERMES, text) == Answer("", "I look it up:", (("f", '{"a": 1}'),), 1)


def test_braces_with_a_space_between_are_not_doubled() -> None:
    text = '{"name": "f", "arguments": { {"a": 1}'
    found = parse(HERMES, text)
    assert found.calls[0][1] + found.content in text


def test_arguments_that_are_written_as_python() -> None:
    text = """f(a='it\\'s )', b=[1, {"c": None}], d=true, e=-1.5, f="K\u00f6ln")"""
    arguments = {"a": "it's )", "b": [1, {"c": None}], "d": True, "e": -1.5, "f": "K\u00f6ln"}
    found = parse(LLAMA, f"[{text}, get_weather(city='x')]")
    assert json.loads(found.calls[0][1]) == arguments
    assert found.calls[1] == ("get_weather", '{"city": "x"}')
    cut = parse(LLAMA, f"[f(a=1), {text}"[:-3])  # by the limit: nothing of it is handed on
    assert (cut.calls, cut.whole) == ((("f", '{"a": 1}'),), 1)


ELEMENTS = {
    "f": {
        "properties": {
            "a": {"type": "integer"},
            "text": {"type": "string"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "real": {"type": ["number"]},
            "on": {"type": "boolean"},
            "list": {"type": "array"},
            "other": {"$ref": "#/$defs/x"},
            "odd": {"type": [{}, 1], "anyOf": 3},
            "even": 1,
        }
    },
    "get_weather": {"properties": []},
}


def element(name: str, **values: str) -> str:
    inside = "".join(f"<parameter={key}>\n{each}\n</parameter>\n" for key, each in values.items())
    return f"<function={name}>\n{inside}</function>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("a", "5", 5),
        ("a", "five", "five"),
        ("text", "5", "5"),
        ("text", '"x"', '"x"'),
        ("text", "\n  if a < b:\n\tpass\n", "\n  if a < b:\n\tpass\n"),
        ("maybe", "null", None),
        ("maybe", "12", "12"),
        ("real", "3", 3),
        ("on", "True", True),
        ("on", "false", False),
        ("list", "['x', 1]", ["x", 1]),
        ("other", '{"b": [1]}', {"b": [1]}),
        ("other", "7", "7"),
        ("odd", "[1]", [1]),
        ("even", "[1]", "[1]"),
        ("unknown", "1", "1"),
        ("list", "[" * 9000, "[" * 9000),
    ],
)
def test_values_in_xml_are_of_the_types_of_the_schema(key: str, text: str, value: object) -> None:
    for answer in (element("f", **{key: text}), f"<function=f><parameter={key}>{text}</function>"):
        parser = AnswerParser(XML, ELEMENTS, request="r")
        found = joined(parser, [*parser.feed(answer), *parser.finish()])
        assert [name for name, _ in found.calls] == ["f"]
        stripped = (
            text.removeprefix("\n").removesuffix("\n") if "</parameter>" not in answer else text
        )
        assert json.loads(found.calls[0][1]) == {key: value if stripped == text else stripped}


@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        (XML, f"<tool_call>\n{element('f', a='1')}\n</tool_call>", "", 1),
        (XML, f"Look:\n\n<tool_call>{element('f')}</tool_call>\n", "Look:", 1),
        (XML, f"Look: {element('f', a='1')}\n</tool_call>", "Look:", 1),
        (XML, f"<tool_call>{element('f')}\n{element('get_weather')}</tool_call>", "", 2),
        (XML, f"<tool_call>{element('f')}</tool_call>\n<tool_call>{element('f')}", "", 2),
        (XML, '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", 1),
        (
            XML,
            f"<tool_call>{element('g')}</tool_call>",
            f"<tool_call>{element('g')}</tool_call>",
            0,
        ),
        (XML, "<function=f>\nhm</function>", "<function=f>\nhm</function>", 0),
        (XML, "<tool_call>\n<function=f>\n<param", "<tool_call>\n<function=f>\n<param", 0),
        (XML, "<tool_call><functions>", "<tool_call><functions>", 0),
        (SEED, f"<seed:tool_call>\n{element('f', a='1')}\n</seed:tool_call>", "", 1),
        (HERMES, element("f"), element("f"), 0),
    ],
)
def test_calls_in_xml(style: Style, text: str, content: str, calls: int) -> None:
    found = parse(style, text)
    assert (found.content, len(found.calls), found.whole) == (content, calls, calls)
    assert parse(style, *text) == found


def test_without_tools_all_is_content() -> None:
    text = ' <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> '
    assert parse(HERMES, text, names=()) == Answer("", text, (), 0)


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('{"a": 1x}}</tool_call>', '{"a": 1x', "}}</tool_call>"),
        ('{"a" 1}}</tool_call>', '{"a" ', "1}}</tool_call>"),
        ('{"a": [1,]}}', '{"a": [1,', "]}}"),
        ('{"a": "\n"}}', '{"a": "', '\n"}}'),
        ('{"a": "\\x"}}', '{"a": "\\', 'x"}}'),
        ('{"a": "\\u00g0"}}', '{"a": "\\u00', 'g0"}}'),
        ('{"a": tru}}', '{"a": tru', "}}"),
        ('{"a": 01}}', '{"a": 01', "}}"),
        ('{"a": ?}}', '{"a": ', "?}}"),
        ('{"a": [}}', '{"a": [', "}}"),
        ('{"a": {]}}', '{"a": {', "]}}"),
        ('{"a": 1,}}', '{"a": 1,', "}}"),
        ('{"a": 1', '{"a": 1', ""),  # the answer is cut short
    ],
)
def test_a_call_that_breaks_stays_as_it_was_given_out(
    text: str, arguments: str, content: str
) -> None:
    found = parse(HERMES, '<tool_call>{"name": "f", "arguments": ' + text)
    assert found == Answer("", content, (("f", arguments),), 0)


def test_text_around_calls_keeps_its_words() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert parse(HERMES, f"a\n{call}\nb {call} </tool_call>").content == "a\nb </tool_call>"
    assert parse(HERMES, f"{call} </tool_cal").content == " </tool_cal"
    assert parse(HERMES, f"{call} </tool_call").calls == (("f", "{}"),)
    assert parse(LLAMA, '{"name": "f"}; and').content == "; and"
    assert parse(MISTRAL, '[TOOL_CALLS] [{"name": "f"}, and]').content == ", and]"
    assert parse(MISTRAL, '[TOOL_CALLS] [{"name": "f"}; [').content == "; ["


def test_reasoning_begins_an_answer_or_is_none() -> None:
    assert parse(THINKING, " <think>a</think>b") == Answer("a", "b", (), 0)
    assert parse(THINKING, "<thin") == Answer("", "<thin", (), 0)
    assert parse(THINKING, "\nx<think>a</think>") == Answer("", "\nx<think>a</think>", (), 0)
    assert parse(THINKING, "<think>\n\n</think>\n\n") == Answer("", "", (), 0)
    assert parse(THINKING, "<think>\n a\n\nb\n") == Answer(" a\n\nb\n", "", (), 0)
    assert parse(THINKING, "<think>a </thin </think>\n\n b").reasoning == "a </thin "
    assert parse(HERMES, "<think>a</think>b") == Answer("", "<think>a</think>b", (), 0)


def test_answers_that_begin_inside_reasoning() -> None:
    assert parse(THINKING, "a\n</think>\n\nb", inside=True) == Answer("a", "b", (), 0)
    assert parse(THINKING, "a </th", inside=True) == Answer("a </th", "", (), 0)
    text = 'a</think>{"name": "f"}'
    assert parse(THINKING, text, inside=True) == Answer("a", "", (("f", "{}"),), 1)


def test_a_continued_message_is_fed_first() -> None:
    parser = AnswerParser(THINKING, NAMES, request="r")
    assert parser.feed("<think>so f") == [Delta("reasoning", "so f")]
    deltas = parser.feed("ar</think>b") + parser.finish()
    assert joined(parser, deltas) == Answer("ar", "b", (), 0)


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    parser = AnswerParser(HERMES, NAMES, request="r")
    assert parser.feed("ab ") == [Delta("content", "ab")]
    assert parser.feed("c<t") == [Delta("content", " c")]
    assert parser.feed('ool_call>{"name": "f", "arguments": ') == []
    identifier = call_id("r", 0)
    assert parser.feed('{"a"') == [Delta("call", "", 0, identifier, "f"), Delta("call", '{"a"')]
    assert parser.feed(': "') == [Delta("call", ': "')]
    assert parser.feed('x"}}</tool_call>') == [Delta("call", 'x"}')]
    assert parser.finish() == []


def test_ids_of_calls_are_their_own() -> None:
    ids = {call_id(request, index) for request in "ab" for index in range(99)}
    assert len(ids) == 198
    assert all(len(each) == 9 and each.isalnum() for each in ids)


# However it is cut:

CASES = [
    (THINKING, '<think>\n<a\n</think>\n\nA <b>.\n<tool_call>{"name": "f"}\n</tool_call>\n'),
    (HERMES, 'a <tool_call>[{"name":"f", "arguments":{"a": tru}}] <tool_call>{"name": "f"} ; '),
    (LLAMA, '{"name": "f", "parameters": {"a": {}}}; {"name": "f"}; <|python_tag|>f(1)'),
    (MISTRAL, '[TOOL_[TOOL_CALLS] [{"name":"f","arguments":{}}, {"name":"f"}, {"nam'),
    (FENCED, 'Sure ``\n```tool_code\n{"name":"f"}\n```\n``` x'),
    (HERMES, '\n``json ```json\n{"name":"f"}'),
    (HERMES, '\n```json\n{"name":"f"}\n``` ```json <tool_call>{"name":"f"}\n``` '),
    (GRANITE, '<|tool_<|tool_call|>[{"arguments":{"a":[]},"name":"f"},'),
]
LONG = (
    THINKING,
    "<think>\nis < it\n</think>\n\nA <b>.\n\n"
    '<tool_call>\n{"name": "f", "arguments": {"a": ["\\"}", 1e5]}}\n</tool_call>\n'
    "<tool_call>{}</tool_call> b </tool_call>\n",
    5,
)


@pytest.mark.parametrize(("style", "text", "step"), [*((*case, 1) for case in CASES), LONG])
def test_every_pair_of_cuts(style: Style, text: str, step: int) -> None:
    """All pairs for short texts; for the long one every fifth place, and all single cuts."""
    whole = parse(style, text)
    assert parse(style, *text) == whole
    pairs = [(cut, cut) for cut in range(len(text))]
    for first, second in [*pairs, *combinations(range(0, len(text) + 1, step), 2)]:
        assert parse(style, text[:first], text[first:second], text[second:]) == whole


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "<|python_tag|>"),
    *(
        "```tool_code",
        "```json",
        "<|tool_call|>",
        "{",
        "}",
        "[",
        "]",
        '"',
        ",",
        ":",
        ";",
        " ",
        "\n",
    ),
    *('{"name": "f", "arguments": {', '"name"', '"arguments": ', '{"name": "f"}', '"f"', "\\u12"),
    *("```", "-1.5e3", "true", "null", "é", "\U0001f600", "\ud800", "\x00", "<", "x"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join)


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@settings(max_examples=60)
@given(data=st.data(), text=TEXTS, thinks=st.booleans(), inside=st.booleans())
def test_any_text_however_cut(
    style: Style, data: st.DataObject, text: str, thinks: bool, inside: bool
) -> None:
    style = replace(style, think=THINK if thinks else None)
    whole = parse(style, text, inside=inside)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(style, *pieces, inside=inside) == whole
    # Nothing is made up, and what is no call keeps every character.
    for name, arguments in whole.calls:
        assert name in NAMES
        assert arguments in text or arguments == "{}"
    if not thinks and not whole.calls:
        assert whole.content == text
    rest = iter(text)
    assert all(char in rest for char in whole.content)
    if not whole.calls:
        both = (whole.reasoning + whole.content).replace("\n", "")
        assert len(both) >= len(text.replace("\n", "").strip(SPACE)) - len("".join(THINK)) * thinks


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@settings(max_examples=15)
@given(
    data=st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(-1e9, 1e9)
                | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                ),
                max_leaves=4,
            ),
            max_size=3,
        ),
        min_size=1,
        max_size=2,
    ),
    ascii_only=st.booleans(),
)
def test_written_calls_are_read_back(style: Style, data: list[object], ascii_only: bool) -> None:
    arguments = [json.dumps(each, ensure_ascii=ascii_only) for each in data]
    form = style.form if style.read is None else OBJECT
    calls = [f"{form.head}f{form.neck}{each}{form.tail}" for each in arguments]
    text = "\n".join(style.before + call + style.after for call in calls)
    found = parse(style, text)
    assert found == Answer("", "", tuple(("f", each) for each in arguments), len(calls))

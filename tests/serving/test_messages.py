"""Messages and tools in the shapes of clients, and errors that name the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import PromptError
from paceline.serving.answers.parser import AnswerParser
from paceline.serving.answers.style import HERMES
from paceline.serving.messages import (
    Notes,
    chat_messages,
    content_text,
    describe_tools,
    read_tools,
    response_messages,
    template_arguments,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "D", "strict": True}}
READ = {
    "type": "function",
    "function": {**TOOL["function"], "parameters": {"type": "object", "properties": {}}},  # type: ignore[dict-item]
}


def test_messages_of_every_role() -> None:
    given = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": None, "refusal": "no", "reasoning_content": "hm"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "tool_calls": []},
        {"role": "assistant"},
    ]
    assert chat_messages(given) == [
        {"role": "system", "content": "D"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": "no", "reasoning_content": "hm"},
        {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        {"role": "assistant", "content": ""},
    ]


USER = {"role": "user", "content": "x"}


def called(call: Any) -> list[Any]:
    return [{"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("x", "messages must be a list that is not empty"),
        ([], "messages must be a list that is not empty"),
        ([3], r"messages\[0\] must be an object, not 3"),
        ([USER, {"role": "robot"}], r"messages\[1\].role is 'robot'.*assistant, tool"),
        ([{"role": ["user"]}], r"messages\[0\].role is \['user'\]"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content must be a list"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\] must be an object"),
        (
            [USER, USER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[2\].content\[0\] is a picture, and this model reads none",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": list(range(99))}]}],
            r"messages\[0\].content\[0\].text must be text, not .{40}\.\.\.$",
        ),
        ([{**USER, "name": 3}], r"messages\[0\].name must be text"),
        ([{**USER, "tool_calls": [CALL]}], r"messages\[0\].tool_calls belongs to .* of a user"),
        (
            [{"role": "assistant", "function_call": {}}],
            r"messages\[0\].function_call.name must be text, not None",
        ),
        ([{"role": "assistant", "tool_calls": 3}], r"messages\[0\].tool_calls must be a list$"),
        (called(3), r"messages\[0\].tool_calls\[0\] must be an object"),
        (called({"type": "shell"}), r"messages\[0\].tool_calls\[0\].type is 'shell'"),
        (called({"type": "custom"}), r"tool_calls\[0\].custom must be an object, not None"),
        (called({"id": 3, "function": CALL["function"]}), r"tool_calls\[0\].id must be text"),
        (called({"function": "f"}), r"messages\[0\].tool_calls\[0\].function must be an object"),
        (called({"function": {}}), r"tool_calls\[0\].function.name must be text, not None"),
        (
            called({"function": {"name": "f", "arguments": "[1]"}}),
            r"messages\[0\]\.tool_calls\[0\]\.function\.arguments is \[1\]: it must be a JSON",
        ),
    ],
)
def test_errors_of_chats_name_the_field(messages: Any, error: str) -> None:
    with pytest.raises(PromptError, match=error):
        chat_messages(messages)


def test_items_of_a_responses_request() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "b"},
                {"type": "refusal", "refusal": "no"},
            ],
        },
        call,
        call,
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "r"}],
        },
    ]
    a, b, no, r = ({"type": "text", "text": text} for text in ("a", "b", "no", "r"))
    assert response_messages(items, "S") == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [a]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "assistant", "content": [b, no], "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [r]},
    ]
    assert response_messages("hi") == [{"role": "user", "content": "hi"}]


def test_items_of_other_tools_are_calls_or_left_out_by_name() -> None:
    shell = {"type": "exec", "command": ["ls"], "env": {}}
    items = [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** a"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "done"},
        {"type": "web_search_call", "id": "2", "status": "completed", "action": {}},
        {"type": "local_shell_call", "call_id": "3", "action": shell, "status": "completed"},
        {"type": "local_shell_call_output", "id": "3", "output": "a.txt"},
        {"id": "msg_4"},
        {"type": "shell_call", "call_id": "5", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "5", "output": [{"stdout": "a", "stderr": ""}]},
        {"type": "mcp_call", "id": "6", "name": "m", "arguments": "{}", "output": "r"},
        {"type": "compaction", "encrypted_content": "z"},
        {"type": "function_call", "call_id": "7", "namespace": "n", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "7", "output": [{"type": "input_image"}]},
        {"type": "reasoning", "encrypted_content": "z", "summary": []},
    ]
    notes = Notes(spaces={"n.f": ("n", "f")})
    read = response_messages(items, notes=notes)
    calls = [call["function"] for each in read for call in each.get("tool_calls", ())]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("patch", {"input": "*** a"}),
        ("local_shell", shell),
        ("shell", {"commands": ["ls"]}),
        ("m", {}),
        ("n.f", {}),
    ]
    said = [each["content"] for each in read if each["role"] == "tool"]
    assert said == ["done", "a.txt", '[{"stdout": "a", "stderr": ""}]', "r", []]
    assert read[1]["reasoning_content"] == "t"
    assert notes.left == [
        "input[4]:web_search_call",
        "input[7]:item_reference",
        "input[11]:compaction",
        "input[13].output[0]:input_image",
        "input[14]:reasoning",
    ]


def test_tools_that_the_server_cannot_call_are_left_out_by_name() -> None:
    hosted = ["web_search", "custom", "local_shell", "mcp", "image_generation", "tool_search"]
    other = {"type": "function", "name": "g"}
    space = {"type": "namespace", "name": "n", "tools": [TOOL, other, {"type": "custom"}]}
    notes = Notes()
    read = read_tools([TOOL, *({"type": kind} for kind in hosted), space], notes=notes)
    assert [tool["function"]["name"] for tool in read] == ["f", "n.f", "g"]
    assert notes.spaces == {"n.f": ("n", "f"), "g": ("n", "g")}
    assert notes.left == [
        *(f"tools[{i}]:{kind}" for i, kind in enumerate(hosted, 1)),
        "tools[7].tools[2]:custom",
    ]


def test_calls_of_before_tools_and_of_custom_tools_are_read() -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}
    read = chat_messages(
        [
            {"role": "assistant", "content": None, "function_call": CALL["function"]},
            {"role": "function", "name": "f", "content": "r"},
            *called(custom),
        ]
    )
    assert read[0]["tool_calls"] == [{"type": "function", "function": CALL["function"]}]
    assert read[1] == {"role": "tool", "name": "f", "content": "r"}
    assert read[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"input": "x"}'}


@pytest.mark.parametrize(
    ("items", "instructions", "error"),
    [
        (None, None, "input must be a list that is not empty"),
        ("x", 3, "instructions must be text"),
        (["x"], None, r"input\[0\] must be an object"),
        ([{"type": "item_reference"}], None, "input: no item of it says anything"),
        ([{"type": "mesage", "role": "user"}], None, r"input\[0\].type is 'mesage'"),
        ([{"role": "robot"}], None, r"input\[0\].role is 'robot'"),
        ([{"type": "function_call"}], None, r"input\[0\].name must be text"),
        ([{"type": "function_call_output"}], None, r"input\[0\].output is missing"),
        (
            [{"role": "user", "content": [{"type": "input_image"}]}],
            None,
            r"input\[0\].content\[0\] is a picture, and this model reads none",
        ),
    ],
)
def test_errors_of_responses_name_the_field(items: Any, instructions: Any, error: str) -> None:
    with pytest.raises(PromptError, match=error):
        response_messages(items, instructions)


def test_tools_of_both_shapes() -> None:
    flat = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    assert read_tools([TOOL]) == read_tools([flat]) == [READ]
    assert "parameters" not in TOOL["function"]
    assert read_tools([]) == []


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ({}, "tools must be a list$"),
        ([3], r"tools\[0\] must be an object"),
        ([{"type": 3}], r"tools\[0\].type is 3: it must be 'function'"),
        ([{"type": "namespace", "name": "n"}], r"tools\[0\].tools must be a list"),
        ([{"type": "function", "function": 3}], r"tools\[0\].function must be an object"),
        ([{"type": "function", "name": "a b"}], r"tools\[0\].name is 'a b': it must be 1 to 64"),
        ([{"type": "function", "function": {}}], r"tools\[0\].function.name is None"),
        ([TOOL, TOOL], r"tools\[1\].function.name 'f' stands twice"),
        ([{"type": "function", "name": "f", "parameters": 3}], r"tools\[0\].parameters must be an"),
    ],
)
def test_errors_of_tools_name_the_field(tools: Any, error: str) -> None:
    with pytest.raises(PromptError, match=error):
        read_tools(tools)


def test_arguments_of_templates() -> None:
    assert template_arguments({"enable_thinking": False}) == {"enable_thinking": False}
    with pytest.raises(PromptError, match="chat_template_kwargs must be an object"):
        template_arguments([])
    with pytest.raises(PromptError, match=r"chat_template_kwargs\.messages cannot be set"):
        template_arguments({"messages": []})


def test_tools_in_words() -> None:
    messages = chat_messages(
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "a"}] * 2},
            {"role": "assistant", "content": "b", "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "r"},
            {"role": "tool", "content": "s"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "t"},
        ]
    )
    system, *rest = describe_tools(messages, [READ])
    assert system["role"] == "system"
    assert system["content"].startswith("S\n\nYou may call functions.")
    assert f"<tools>\n{json.dumps(READ)}\n</tools>" in system["content"]
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    results = [f"<tool_response>\n{each}\n</tool_response>" for each in "rst"]
    assert rest == [
        {"role": "user", "content": "a\na"},
        {"role": "assistant", "content": f"b\n{call}\n{call}"},
        {"role": "user", "content": f"{results[0]}\n{results[1]}\nc"},
        {"role": "assistant", "content": call},
        {"role": "user", "content": results[2]},
    ]
    assert describe_tools(messages, []) == [messages[0], *rest]
    nameless = {"function": CALL["function"]}
    assert "id" not in chat_messages(called(nameless))[0]["tool_calls"][0]
    assert describe_tools([USER], [READ])[0]["content"].startswith("You may call")
    parser = AnswerParser(HERMES, ["f"])
    parser.feed(rest[1]["content"])
    assert parser.calls == 2
    assert content_text(messages[1]) == "a\na"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments"]
            ),
            inner
            | st.sampled_from(["user", "assistant", "tool", "text", "function", "function_call"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("read", [chat_messages, response_messages, read_tools, template_arguments])
@settings(max_examples=50)
@given(value=ANY | st.lists(ANY, max_size=3))
def test_whatever_comes_is_read_or_refused_in_one_line(
    read: Callable[[Any], object], value: Any
) -> None:
    said = ""
    try:
        read(value)
    except PromptError as error:
        said = str(error)
    assert "\n" not in said

"""Log-probabilities, tools, reasoning and constraints through HTTP."""

from __future__ import annotations

import json
from time import sleep
from typing import Any

import jinja2
import numpy as np
import pytest
import tokenizers
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.helpers import table_engines as engines
from tests.helpers.serving import CHAT, TEXT, Client, Json, run

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.methods.prompt_lookup import PromptLookup
from paceline.models.text import Tokenizer
from paceline.serving.model import TokenTexts

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
TOOLS: list[Json] = [{"type": "function", "function": {"name": "add", "parameters": NUMBERS}}]
THINKING = engines.TOKENIZER.chat_template + "{# <think> </think> #}"


def speaking(text: str, opening: str = "", room: int = 2000) -> Engine:
    """An engine that answers any chat with `text`; its prompts end with `opening`."""
    script = [*engines.TOKENIZER.encode(text), engines.EOS]
    head = engines.TOKENIZER.encode(f"<|im_start|>assistant\n{opening}")

    def logits(context: tuple[int, ...]) -> Any:
        turns = [at for at, token in enumerate(context) if token == head[0]]
        said = len(context) - (turns[-1] if turns else 0) - len(head)
        row = np.zeros(engines.VOCABULARY, np.float32)
        row[script[max(0, said) % len(script)]] = 9.0
        return row

    tokenizer = Tokenizer(
        engines.TOKENIZER.core, eos_token_ids=(engines.EOS,), chat_template=THINKING + opening
    )
    return engines.make(engines.Target(logits, room), tokenizer=tokenizer)


SAID = (
    '<think>\nwell</think>\nsum: <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
)


def test_log_probabilities_are_the_very_numbers_of_the_library() -> None:
    body = TEXT | {"temperature": 1.0, "seed": 4, "logprobs": 3, "ignore_eos": True}
    params = SamplingParams(1.0, seed=4, logprobs=3, max_new_tokens=12, ignore_eos=True)
    alone = engines.make().generate("the quick", params, raw=True)

    async def asks(client: Client) -> None:
        whole = await client.ask(TEXTS, body)
        Completion.model_validate(whole, strict=True)
        found = whole["choices"][0]["logprobs"]
        assert found["token_logprobs"] == [each.logprob for each in alone.logprobs]
        for name, number, tops in zip(
            found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ):
            assert tops[name] == number
        parts = [c["logprobs"] for e in await client.stream(TEXTS, body) for c in e["choices"]]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [each for part in parts for each in part[key]] == found[key]
        chat = CHAT | {"logprobs": True, "top_logprobs": 2, "temperature": 0}
        whole = await client.ask(CHATS, chat)
        ChatCompletion.model_validate(whole, strict=True)
        content = whole["choices"][0]["logprobs"]["content"]
        assert all(each["top_logprobs"][0]["logprob"] == each["logprob"] for each in content)
        said = b"".join(bytes(each["bytes"]) for each in content)
        assert said.decode("utf-8", "replace").startswith(whole["choices"][0]["message"]["content"])

    run(asks, engines.make(drafter=PromptLookup()))


@pytest.mark.parametrize("most", [0, 1, 5])
def test_an_echoed_prompt_is_scored(most: int) -> None:
    ids = engines.TOKENIZER.encode("the quick brown fox")
    body = {"prompt": ids, "max_tokens": most, "echo": True, "logprobs": 2, "temperature": 0}

    async def asks(client: Client) -> None:
        whole = await client.ask(TEXTS, body)
        found = whole["choices"][0]["logprobs"]
        assert len(found["tokens"]) == len(ids) + whole["usage"]["completion_tokens"]
        assert found["token_logprobs"][0] is None
        for at, number in enumerate(found["token_logprobs"][1:], 1):
            assert found["top_logprobs"][at][found["tokens"][at]] == number < 0
        assert whole["choices"][0]["text"].startswith("the quick brown fox")
        parts = [c for e in await client.stream(TEXTS, body) for c in e["choices"]]
        assert [c["logprobs"] for c in parts] == [found]
        again = await client.ask(
            TEXTS, body | {"prompt_logprobs": 1, "echo": False, "max_tokens": 1}
        )
        scored = again["choices"][0]["prompt_logprobs"]
        assert scored[0] is None
        numbers = [each[str(ids[at])]["logprob"] for at, each in enumerate(scored[1:], 1)]
        assert numbers == found["token_logprobs"][1 : len(ids)]

    run(asks)


def test_calls_and_reasoning_are_parted_whole_and_streamed() -> None:
    body = {"messages": [{"role": "user", "content": "1"}], "tools": TOOLS, "temperature": 0}

    async def asks(client: Client) -> None:
        whole = await client.ask(CHATS, body)
        ChatCompletion.model_validate(whole, strict=True)
        [choice] = whole["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["reasoning_content"] == "well"
        assert message["content"].strip() == "sum:"
        [call] = message["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert 0 < whole["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20

    run(asks, speaking(SAID))

    async def streams(client: Client) -> None:
        chunks = await client.stream(CHATS, body)
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk, strict=True)
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"]]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "well"
        assert "".join(d.get("content", "") for d in deltas).strip() == "sum:"
        calls = [call for d in deltas for call in d.get("tool_calls", [])]
        assert calls[0]["function"]["name"] == "add"
        assert calls[0]["id"]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    run(streams, speaking(SAID))


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_comes_again_ends_the_answer(stream: bool) -> None:
    """What a weak model says behind it is neither told nor decoded."""
    calls = [
        f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>'
        for a in (1, 2, 1)
    ]
    engine = speaking("".join(calls) + "dog " * 400)
    step = engine.step

    def slow() -> Any:
        sleep(0.001)
        return step()

    engine.step = slow  # type: ignore[method-assign]
    body = {"messages": [{"role": "user", "content": "1"}], "tools": TOOLS, "temperature": 0}
    body |= {"max_tokens": 1500, "stream_options": {"include_usage": True} if stream else None}

    async def asks(client: Client) -> None:
        if stream:
            chunks = await client.stream(CHATS, body)
            usage = chunks[-1]["usage"]
            parts = [choice for chunk in chunks for choice in chunk["choices"]]
            reason = parts[-1]["finish_reason"]
            told = [call for part in parts for call in part["delta"].get("tool_calls", [])]
            assert "".join(part["delta"].get("content") or "" for part in parts) == ""
            names = [call["function"]["name"] for call in told if "name" in call["function"]]
            assert names == ["add", "add"]
        else:
            whole = await client.ask(CHATS, body)
            [choice], usage = whole["choices"], whole["usage"]
            reason = choice["finish_reason"]
            given = [each["function"]["arguments"] for each in choice["message"]["tool_calls"]]
            assert given == ['{"a": 1}', '{"a": 2}']
        assert reason == "tool_calls"
        assert usage["completion_tokens"] < 600

    run(asks, engine)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (CHATS, CHAT, ": ping"),
        (TEXTS, TEXT, ": ping"),
        (RESPONSES, {"input": "x"}, "event: response.in_progress"),
        ("/v1/messages", CHAT, "event: ping"),
        ("/api/chat", CHAT | {"model": "tables"}, '"content":""'),
    ],
)
def test_a_stream_in_which_nothing_comes_tells_its_client_that_it_lives(
    path: str, body: Json, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As events where the API has one: Codex CLI leaves streams of comments alone."""
    monkeypatch.setattr("paceline.serving.app.PING_SECONDS", 0.01)
    engine = engines.make()
    step, waits = engine.step, iter([0.3])

    def late() -> Any:
        sleep(next(waits, 0.0))
        return step()

    engine.step = late  # type: ignore[method-assign]

    async def asks(client: Client) -> None:
        response = await client.post(path, body | {"stream": True})
        parts = response.text.splitlines()
        assert sum(told in part for part in parts) > 5
        if path == RESPONSES:
            events = [json.loads(part[6:]) for part in parts if part.startswith("data: ")]
            assert [each["sequence_number"] for each in events] == list(range(len(events)))
            assert events[-1]["type"] == "response.incomplete" or "completed" in events[-1]["type"]
            for event in events:
                STREAM_EVENT.validate_python(event)

    run(asks, engine)


def test_a_request_may_bring_a_template_where_that_is_allowed() -> None:
    """The prompt is what jinja2 makes of it, but that a message spells no special token."""
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role | upper }}: {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>BOT:{% endif %}"
    )
    messages = [{"role": "user", "content": "the quick"}, {"role": "assistant", "content": "dog"}]
    body = {"messages": messages, "max_tokens": 2, "return_token_ids": True, "seed": 1}
    judge = jinja2.Template(source).render(messages=messages, add_generation_prompt=True)
    right = engines.TOKENIZER.encode(judge)

    async def asks(client: Client) -> None:
        served = client.service.hosting.find(None).model
        assert (
            "--allow-chat-template"
            in (await client.refused(CHATS, body | {"chat_template": source}))["message"]
        )
        served.allow_chat_template = True
        plain = await client.ask(CHATS, body)
        own = await client.ask(CHATS, body | {"chat_template": source})
        assert own["choices"][0]["prompt_token_ids"] == right
        assert plain["choices"][0]["prompt_token_ids"] != right
        assert (await client.ask(CHATS, body))["choices"] == plain["choices"]
        hidden = [{"role": "user", "content": "<|im_start|>"}]
        spelled = await client.ask(CHATS, body | {"chat_template": source, "messages": hidden})
        mark = engines.TOKENIZER.special_ids["<|im_start|>"]
        assert spelled["choices"][0]["prompt_token_ids"].count(mark) == 2
        for wrong in (
            "{% for %}",
            "{{ raise_exception('no') }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages[9].content }}",
            "x" * 100_001,
            3,
        ):
            error = await client.refused(CHATS, body | {"chat_template": wrong})
            assert error["param"] in ("chat_template", "messages"), wrong
        for path, asked in (
            (TEXTS, TEXT),
            (RESPONSES, {"input": "x"}),
            ("/v1/messages", CHAT | {"model": "tables"}),
        ):
            response = await client.post(path, asked | {"chat_template": source})
            assert response.status_code == 400
            assert "chat_template" in response.text

    run(asks)


def test_items_of_a_response_are_parted_whole_and_streamed() -> None:
    tools = [{"type": "function", "name": "add", "parameters": NUMBERS, "strict": False}]
    body = {"input": "1", "tools": tools, "temperature": 0}
    scored = {"include": ["message.output_text.logprobs"]}

    async def asks(client: Client) -> Json:
        assert (await client.refused(RESPONSES, body | scored))["param"] == "include"
        only = await client.ask(RESPONSES, {"input": "1", "temperature": 0} | scored)
        assert [item["type"] for item in only["output"]] == ["reasoning", "message"]
        part = only["output"][1]["content"][0]
        assert len(part["logprobs"]) == only["usage"]["output_tokens"]
        whole = await client.ask(RESPONSES, body)
        Response.model_validate(whole, strict=True)
        return whole

    whole = run(asks, speaking(SAID))
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call"]
    assert whole["status"] == "completed"
    assert whole["output"][2]["arguments"] == '{"a": 1}'

    async def streams(client: Client) -> list[Json]:
        return await client.stream(RESPONSES, body)

    events = run(streams, speaking(SAID))
    for event in events:
        STREAM_EVENT.validate_python(event)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    plain = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in done]
    assert plain == [
        {k: v for k, v in item.items() if k not in ("id", "call_id")} for item in whole["output"]
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    whole = run(lambda c: c.ask(RESPONSES, {"input": "1", "temperature": 0}), speaking(""))
    assert whole["output"][0]["content"][0]["text"] == ""
    assert whole["status"] == "completed"


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"regex": "[ab]{3}"}, lambda text: set(text) <= {"a", "b"} and len(text) == 3),
        ({"guided_choice": ["dog", "fox"]}, lambda text: text in ("dog", "fox")),
        ({"grammar": 'root ::= "q" "u"'}, lambda text: text == "qu"),
        ({"ebnf": 'start: "l" "a"'}, lambda text: text == "la"),
        ({"structured_outputs": {"json": SCHEMA}}, lambda text: json.loads(text)["a"] in (1, 2)),
        ({"json_schema": json.dumps(SCHEMA)}, lambda text: json.loads(text)["a"] in (1, 2)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            lambda text: json.loads(text)["a"] in (1, 2),
        ),
    ],
)
def test_an_answer_is_held_to_what_was_asked_for(fields: Json, holds: Any) -> None:
    body = CHAT | {"temperature": 1.0, "seed": 3, "max_tokens": 60} | fields

    async def asks(client: Client) -> list[str]:
        plain = body | {"speculation": {"enabled": False}}
        answers = [await client.ask(CHATS, each) for each in (body, plain)]
        return [answer["choices"][0]["message"]["content"] for answer in answers]

    drafted, plain = run(asks, engines.make(drafter=PromptLookup()))
    assert drafted == plain
    assert holds(drafted)


def test_a_tool_is_called_where_one_must_be() -> None:
    schema = SCHEMA | {"properties": {"a": {"enum": [1]}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    body = CHAT | {"tools": tools, "temperature": 0, "max_tokens": 300}
    named = {"type": "function", "function": {"name": "add"}}

    async def asks(client: Client) -> None:
        for choice in ("required", "any", named):
            fields = {"tool_choice": choice, "parallel_tool_calls": False}
            answer = await client.ask(CHATS, body | fields)
            [found] = answer["choices"]
            assert found["finish_reason"] == "tool_calls"
            [call] = found["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["a"] == 1
        for wrong in ("always", {"type": "function", "function": {"name": "sub"}}):
            error = await client.refused(CHATS, body | {"tool_choice": wrong})
            assert error["param"] == "tool_choice"
        assert (await client.ask(CHATS, body | {"tool_choice": "none"}))["choices"]
        both = {"tool_choice": "required", "regex": "a"}
        assert (await client.refused(CHATS, body | both))["param"] == "tool_choice"
        error = await client.refused(CHATS, CHAT | {"tool_choice": "required"})
        assert error["param"] == "tool_choice"

    run(asks, engines.make(engines.Target(max_context=2000)))


def test_a_template_that_reads_tools_shows_them() -> None:
    template = (
        engines.TOKENIZER.chat_template or ""
    ) + "{% for tool in tools or [] %}{{ tool }}{% endfor %}"
    core = engines.TOKENIZER.core
    tokenizer = Tokenizer(core, eos_token_ids=(engines.EOS,), chat_template=template)

    async def asks(client: Client) -> None:
        bodies = (CHAT, CHAT | {"tools": TOOLS, "tool_choice": "auto"})
        plain, shown = [(await client.ask(CHATS, body))["usage"] for body in bodies]
        text = str(TOOLS[0])
        assert shown["prompt_tokens"] == plain["prompt_tokens"] + len(tokenizer.encode(text))

    run(asks, engines.make(engines.Target(max_context=2000), tokenizer=tokenizer))


def test_a_message_goes_on_without_the_head_of_an_answer() -> None:
    fields = {"continue_final_message": True, "add_generation_prompt": True}
    error = run(lambda client: client.refused(CHATS, CHAT | fields))
    assert error["param"] == "continue_final_message"


def test_a_call_that_the_model_begins_is_one_of_the_tools() -> None:
    """Text before it is the model's own; from the opener on, names and arguments are held."""
    wrong = '<tool_call>\n{"name": "sub", "arguments": [1, 2, 3]}'
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    body: Json = {"messages": [{"role": "user", "content": "1"}], "temperature": 0}
    body |= {"tools": tools, "max_tokens": 200}

    async def asks(client: Client) -> tuple[Json, Json]:
        held = (await client.ask(CHATS, body))["choices"][0]
        form = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
        form |= {"chat_template_kwargs": {"enable_thinking": False}}
        other = (await client.ask(CHATS, body | form))["choices"][0]  # the format holds all of it
        return held, other

    held, other = run(asks, speaking(f"I look: {wrong}"))
    assert held["message"]["content"].startswith("I look:")  # behind the call it is free again
    [call, *_] = held["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"])["a"] in (1, 2)
    assert json.loads(other["message"]["content"])["a"] in (1, 2)

    async def on(client: Client) -> Json:  # behind an end token a grammar lets nothing follow
        answer: Json = (await client.ask(CHATS, body | {"ignore_eos": True}))["choices"][0]
        return answer

    assert run(on, speaking("said"))["message"]["content"].count("said") > 5

    rows = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    unheld = {"type": "object", "properties": {"a": rows}, "required": ["a"]}
    loose = [{"type": "function", "function": {"name": "add", "parameters": unheld}}]
    firm = [{"type": "function", "function": loose[0]["function"] | {"strict": True}}]

    async def loosely(client: Client) -> Json:
        error = await client.refused(CHATS, body | {"tools": firm})
        assert "#/properties/a/uniqueItems" in error["message"]
        response = await client.post(CHATS, body | {"tools": loose})
        told = response.headers["x-paceline-ignored"]
        assert told == "tools.add#/properties/a/uniqueItems"
        answer: Json = response.json()["choices"][0]
        return answer

    said = run(loosely, speaking(f"I look: {wrong}"))["message"]
    assert said["tool_calls"][0]["function"]["name"] == "add"  # all else is held


def test_an_equal_call_ends_the_list_and_a_cut_one_is_not_whole() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    one, two = call, call.replace("1", "2")
    body: Json = {"messages": [{"role": "user", "content": "1"}], "temperature": 0, "tools": TOOLS}
    body |= {"tool_choice": "required", "chat_template_kwargs": {"enable_thinking": False}}
    for said, count, most, reason in (
        ("\n".join([one] * 4), 1, 300, "tool_calls"),
        ("\n".join([one, two, one, two]), 2, 300, "tool_calls"),
        ("\n".join([one, two]), 2, 300, "tool_calls"),
        ("\n".join([one] * 4), 1, 50, None),  # somewhere within the second or third
    ):

        async def asks(client: Client, most: int = most) -> tuple[Json, list[Json]]:
            asked = body | {"max_tokens": most}
            return await client.ask(CHATS, asked), await client.stream(CHATS, asked)

        whole, chunks = run(asks, speaking(said))
        [choice] = whole["choices"]
        given = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert given == ['{"a": 1}', '{"a": 2}'][:count]
        assert reason is None or choice["finish_reason"] == reason
        parts = [d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])]
        assert "".join(part["function"]["arguments"] for part in parts) == "".join(given)
        assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_comes_before_a_held_answer(opened: bool) -> None:
    """Whatever holds it; the prompt may open the reasoning, and the request leave it out."""
    thought = 'well: {"a" 3} <tool_call>\n{"name": "sub"'
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    asked: list[tuple[Json, str]] = [
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, '{"a": 1}'),
        ({"guided_grammar": 'root ::= "{\\"a\\": " [0-9]+ "}"'}, '{"a": 1}'),
        ({"guided_regex": r'\{"a": \d\}'}, '{"a": 1}'),
        ({"tools": TOOLS, "tool_choice": "required"}, call),
        ({"tools": TOOLS}, call),
    ]
    body: Json = {"messages": [{"role": "user", "content": "1"}], "temperature": 0}
    for fields, said in asked:
        tag = "" if opened else "<think>"
        engine = speaking(f"{tag}{thought}</think>\n\n{said}", "<think>" if opened else "")

        async def asks(client: Client, fields: Json = fields) -> Json:
            answer: Json = await client.ask(CHATS, body | fields | {"max_tokens": 300})
            return answer["choices"][0]["message"]  # type: ignore[no-any-return]

        message = run(asks, engine)
        assert message["reasoning_content"] == thought
        if "tools" in fields:
            [one] = message["tool_calls"]
            assert one["function"]["arguments"] == '{"a": 1}'
        else:
            assert message["content"] == '{"a": 1}'
    off = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 8} | asked[0][0]

    async def without(client: Client) -> Json:
        return await client.ask(CHATS, body | off)

    if not opened:
        said = run(without, engine)["choices"][0]["message"]["content"]
        assert said.startswith("{")


def test_a_wrong_grammar_is_refused_with_its_field() -> None:
    async def asks(client: Client) -> None:
        for field, value in [("regex", "["), ("ebnf", "start: x"), ("json_schema", "{")]:
            assert (await client.refused(CHATS, CHAT | {field: value}))["param"] == field

    run(asks)


def test_a_held_answer_goes_on_from_its_tokens() -> None:
    body = TEXT | {"regex": "[a-z]{6}", "temperature": 1.0, "seed": 1, "return_token_ids": True}

    async def asks(client: Client) -> None:
        [whole] = (await client.ask(TEXTS, body))["choices"]
        tokens = whole["token_ids"]
        for size in range(1, len(tokens) - 1):
            [rest] = (await client.ask(TEXTS, body | {"resume_token_ids": tokens[:size]}))[
                "choices"
            ]
            assert tokens[:size] + rest["token_ids"] == tokens
            assert whole["text"].endswith(rest["text"])

    run(asks)


def test_any_json_object_is_an_answer_of_json_mode() -> None:
    body = {"messages": CHAT["messages"], "temperature": 1.0, "seed": 2, "max_tokens": 250}
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    asked = {"input": "the quick", "text": wanted, "max_output_tokens": 60}

    async def asks(client: Client) -> None:
        found = await client.ask(CHATS, body | {"response_format": {"type": "json_object"}})
        assert found["choices"][0]["message"]["content"].startswith("{")
        found = await client.ask(RESPONSES, asked)
        assert json.loads(found["output"][0]["content"][0]["text"])["a"] in (1, 2)
        assert found["text"] == wanted

    run(asks)


def test_calls_go_on_from_any_token() -> None:
    body = {"messages": [{"role": "user", "content": "1"}], "tools": TOOLS, "temperature": 0}
    body |= {"return_token_ids": True}
    flat = [{"type": "function", "name": "add", "parameters": NUMBERS, "strict": False}]

    async def asks(client: Client) -> None:
        whole = await client.ask(CHATS, body)
        tokens = whole["choices"][0]["token_ids"]
        for size in range(5, len(tokens) - 1, 4):
            chunks = await client.stream(CHATS, body | {"resume_token_ids": tokens[:size]})
            choices = [c for chunk in chunks for c in chunk["choices"]]
            assert tokens[:size] + [t for c in choices for t in c.get("token_ids", [])] == tokens
            assert choices[-1]["finish_reason"] == "tool_calls"
            rest = await client.ask(CHATS, body | {"resume_token_ids": tokens[:size]})
            calls = rest["choices"][0]["message"].get("tool_calls", [])
            assert all('{"a": 1}'.endswith(call["function"]["arguments"]) for call in calls)
            assert all(call["function"]["name"] == "add" for call in calls)
            item = {
                "input": "1",
                "tools": flat,
                "temperature": 0,
                "resume_token_ids": tokens[:size],
            }
            for event in await client.stream(RESPONSES, item):
                STREAM_EVENT.validate_python(event)
            assert event["type"] == "response.completed"

    run(asks, speaking(SAID))


def test_documents_reach_the_template_or_are_refused() -> None:
    error = run(lambda c: c.refused(CHATS, CHAT | {"documents": [{"text": "x"}]}))
    assert "documents" in error["message"]


def test_tokens_of_words_are_spelled_with_spaces() -> None:
    core = tokenizers.Tokenizer(tokenizers.models.BPE({"\u2581a": 0, "<0xE2>": 1, "b": 2}, []))
    texts = TokenTexts(Tokenizer(core))
    assert [texts.name(token) for token in range(3)] == [" a", "bytes:\\xe2", "b"]


def test_tokens_have_names_of_their_own() -> None:
    texts = TokenTexts(engines.TOKENIZER)
    for token in range(engines.TOKENIZER.vocab_size):
        text, raw = texts[token]
        assert bytes(raw).decode("utf-8", "replace") == text
    # The model's vocabulary is larger than the tokenizer's.
    names = {texts.name(token) for token in range(engines.VOCABULARY)}
    assert len(names) == engines.VOCABULARY


def test_a_grammar_that_is_too_large_is_refused_or_named() -> None:
    """One of 3,000 properties ended the process, by the depth of its rules."""
    fields = {f"field_{i}": {"type": "string"} for i in range(3000)}
    schema = {"type": "object", "properties": fields}
    body = CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    error = run(lambda c: c.refused("/v1/chat/completions", body))
    assert "is too large" in error["message"]

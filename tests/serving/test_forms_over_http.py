"""Every family's own form of calls through HTTP, as OpenAI's client sees it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from jsonschema import Draft202012Validator
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, run
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer
from tests.serving.answers.test_held_forms import TOKENS, WRITTEN

from paceline.drafters.base import Drafter
from paceline.engine.engine import Engine
from paceline.methods.prompt_lookup import PromptLookup
from paceline.models.text import Tokenizer

SHOWN = {
    "xml": "<tool_call><function=",
    "glm": "<tool_call>{name}\n<arg_key>",
    "lfm": "<|tool_list_start|>",
    "gemma": "<|tool_call>call: <|channel>thought <channel|>",
    "ministral": "[TOOL_CALLS] [ARGS]",
    "mistral ids": "[TOOL_CALLS] [CALL_ID] [ARGS]",
    "harmony": "<|channel|>analysis",
}
"""What a template shows of each form."""
THOUGHTS = {
    "gemma": "<|channel>thought\nHm.\n<channel|>",
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
}
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "maxLength": 14},
        "n": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["s", "n"],
    "additionalProperties": False,
}
CORE = tiny_tokenizer(300)
CORE.add_special_tokens(TOKENS.split())
ASKED: Json = {"model": "tables", "messages": [{"role": "user", "content": "1"}], "max_tokens": 300}


def engine_of(name: str, text: str = "", drafter: Drafter | None = None) -> Engine:
    """An engine with a form's template and special tokens; it says `text`, or what tables say."""
    shown = f"{{# {SHOWN[name]} #}}{{% for tool in tools or [] %}}{{{{ tool }}}}{{% endfor %}}"
    template = shown + CHAT_TEMPLATE
    tokenizer = Tokenizer(CORE, eos_token_ids=(engines.EOS,), chat_template=template)
    script = [*tokenizer.encode(text), engines.EOS]
    head = tokenizer.encode("<|im_start|>assistant\n")

    def logits(context: tuple[int, ...]) -> Any:
        begins = [at for at in range(len(context)) if list(context[at : at + len(head)]) == head]
        said = len(context) - begins[-1] - len(head) if begins else 0
        row = np.zeros(engines.VOCABULARY, np.float32)
        row[script[said % len(script)]] = 9.0
        return row

    target = engines.Target(logits if text else engines.MODEL.logits, 3000)
    return engines.make(target, drafter, tokenizer=tokenizer)


def tool(strict: bool = False) -> Json:
    function = {"name": "f", "parameters": SCHEMA}
    return {"type": "function", "function": function | ({"strict": True} if strict else {})}


def client_of(client: Client) -> Any:
    return openai.AsyncOpenAI(
        base_url="http://tables/v1", api_key="x", http_client=client.http, max_retries=0
    )


@pytest.mark.parametrize("name", SHOWN)
def test_a_call_as_the_model_writes_it_whole_and_streamed(name: str) -> None:
    text = THOUGHTS.get(name, "") + WRITTEN[name]
    body = ASKED | {"tools": [tool()], "temperature": 0}

    async def asks(client: Client) -> None:
        sdk = client_of(client)
        whole = (await sdk.chat.completions.create(**body)).choices[0]
        async with sdk.chat.completions.stream(**body) as stream:
            async for _ in stream:
                pass
            streamed = (await stream.get_final_completion()).choices[0]
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls"
            assert not choice.message.content
            assert (getattr(choice.message, "reasoning_content", None) or "") == (
                "Hm." if name in THOUGHTS else ""
            )
            [call] = choice.message.tool_calls
            assert call.function.name == "f"
            assert json.loads(call.function.arguments) == {"s": 'it\'s "a" <b>\n', "n": 1}

    run(asks, engine_of(name, text))


@pytest.mark.parametrize("name", SHOWN)
def test_a_model_that_says_anything_is_held_to_the_form(name: str) -> None:
    """Required, named and strict calls; the same with drafts and without."""
    named = {"type": "function", "function": {"name": "f"}}
    fields = {"temperature": 1.0, "seed": 5, "parallel_tool_calls": False}

    async def asks(client: Client) -> list[str]:
        found = []
        for choice, strict in (("required", False), (named, False), ("required", True)):
            given = {"tools": [tool(strict)], "tool_choice": choice}
            answer = await client_of(client).chat.completions.create(**ASKED, **fields, **given)
            [message] = [each.message for each in answer.choices]
            [call] = message.tool_calls
            assert answer.choices[0].finish_reason == "tool_calls"
            assert Draft202012Validator(SCHEMA).is_valid(json.loads(call.function.arguments))
            found.append(call.function.arguments)
        return found

    assert run(asks, engine_of(name, drafter=PromptLookup())) == run(asks, engine_of(name))


def test_an_answer_in_channels_is_held_to_a_format_behind_its_header() -> None:
    asked = {"temperature": 1.0, "seed": 1}
    asked |= {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}

    async def asks(client: Client) -> None:
        body = {key: value for key, value in ASKED.items() if key != "model"} | asked
        answer = (await client.ask("/v1/chat/completions", body))["choices"][0]
        assert answer["finish_reason"] == "stop"
        said = json.loads(answer["message"]["content"])
        assert Draft202012Validator(SCHEMA).is_valid(said)

    run(asks, engine_of("harmony", THOUGHTS["harmony"]))

"""The routes, over a tabular engine: shapes, errors, limits, and texts as of the library alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
import zlib
from typing import Any

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.helpers import table_engines as engines
from tests.helpers.serve_tables import Slow
from tests.helpers.serving import CHAT, TEXT, Client, Json, events, run, serving

from paceline.core.types import SamplingParams
from paceline.errors import PacelineError
from paceline.methods.prompt_lookup import PromptLookup
from paceline.serving import http
from paceline.serving.app import Service
from paceline.serving.settings import Settings

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SAMPLED: Json = {"temperature": 1.0, "seed": 11, "presence_penalty": 0.3, "ignore_eos": True}
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def drafting() -> Any:
    return engines.make(drafter=PromptLookup())


# Shapes:


def test_a_chat_answer_is_of_openais_type() -> None:
    answer = run(lambda c: c.ask(CHATS, CHAT | SAMPLED))
    whole = ChatCompletion.model_validate(answer, strict=True)
    [choice] = whole.choices
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details is not None
    assert whole.system_fingerprint is not None
    assert whole.system_fingerprint.startswith("fp_")
    assert answer["seed"] == 11


def test_a_completion_is_of_openais_type() -> None:
    answer = run(lambda c: c.ask(TEXTS, TEXT | SAMPLED | {"n": 2, "prompt": ["dog", "the"]}))
    whole = Completion.model_validate(answer, strict=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in whole.choices}) == 4
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 48


def test_a_response_is_of_openais_type() -> None:
    body = {"input": "the quick", "max_output_tokens": 9, "instructions": "be brief"} | SAMPLED
    answer = run(lambda c: c.ask(RESPONSES, body))
    whole = Response.model_validate(answer, strict=True)
    assert whole.status == "incomplete"
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 9


@pytest.mark.parametrize("extra", [{}, {"stop": ["e", "zz"]}, {"n": 3}])
def test_a_streamed_chat_joins_to_the_whole(extra: Json) -> None:
    body = CHAT | SAMPLED | {"max_tokens": 40, "return_token_ids": True} | extra

    async def both(client: Client) -> tuple[Json, list[Json]]:
        options = {"stream_options": {"include_usage": True}}
        return await client.ask(CHATS, body), await client.stream(CHATS, body | options)

    whole, chunks = run(both, drafting())
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(c["delta"].get("content", "") for c in mine)
        assert text == choice["message"]["content"]
        assert [t for c in mine for t in c.get("token_ids", [])] == choice["token_ids"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert all(c["finish_reason"] is None for c in mine[:-1])


@pytest.mark.parametrize("echo", [False, True])
def test_a_streamed_completion_joins_to_the_whole(echo: bool) -> None:
    body = TEXT | SAMPLED | {"echo": echo, "n": 2}

    async def both(client: Client) -> tuple[Json, list[Json]]:
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        return await client.ask(TEXTS, body), await client.stream(TEXTS, body | options)

    whole, chunks = run(both)
    for chunk in chunks:
        # OpenAI's type is that of whole answers; its chunks have null there as well.
        said = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in chunk["choices"]]
        Completion.model_validate(chunk | {"choices": said}, strict=True)
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert choice["text"].startswith("the quick") == echo
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 24


def test_a_streamed_response_joins_to_the_whole() -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "dog"}]}]}
    body |= SAMPLED | {"max_output_tokens": 20}

    async def both(client: Client) -> tuple[Json, list[Json]]:
        return await client.ask(RESPONSES, body), await client.stream(RESPONSES, body)

    whole, stream = run(both, drafting())
    for event in stream:
        STREAM_EVENT.validate_python(event)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert [event["type"] for event in stream[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    text = "".join(e["delta"] for e in stream if e["type"] == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"]
    last = stream[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["output"][0]["content"] == whole["output"][0]["content"]
    assert last["response"]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_changes_counts_and_not_the_text(stream: bool) -> None:
    body = CHAT | {"max_tokens": 40, "n": 2, "temperature": 0, "ignore_eos": True}
    counted = "accepted_prediction_tokens", "rejected_prediction_tokens"

    async def asks(client: Client) -> None:
        async def usage(prediction: Any) -> tuple[int, ...]:
            asked = body | {"prediction": prediction}
            if stream:
                options = {"stream_options": {"include_usage": True}}
                found = (await client.stream(CHATS, asked | options))[-1]["usage"]
            else:
                answer = await client.ask(CHATS, asked)
                ChatCompletion.model_validate(answer, strict=True)
                assert answer["choices"] == plain["choices"]
                found = answer["usage"]
            return tuple(found["completion_tokens_details"][name] for name in counted)

        plain = await client.ask(CHATS, body)
        said = plain["choices"][0]["message"]["content"]
        size = len(engines.TOKENIZER.encode(said))
        right, wrong = await usage({"type": "content", "content": said})
        assert right >= size
        assert right + wrong == 2 * size
        half = {"type": "text", "text": said[: len(said) // 2]}
        parts = await usage({"type": "content", "content": [half, {**half, "text": "!" * 9}]})
        assert 0 < parts[0] < right
        assert await usage({"type": "content", "content": ""}) == (0, 0)
        large = {"content": "the fox " * 100_000}  # of more tokens than four contexts
        for wrong_one in ({"type": "file", "content": "x"}, {"content": 3}, "x", large):
            error = await client.refused(CHATS, body | {"prediction": wrong_one})
            assert error["param"].startswith("prediction")

    run(asks, engines.make(engines.Target(engines.speaker("the quick brown fox jumps"))))


def test_drafts_are_counted_as_load_generators_read_them() -> None:
    body = {"prompt": "dog dog dog dog dog dog", "max_tokens": 60, "temperature": 0}
    answer = run(lambda c: c.ask(TEXTS, body), drafting())
    found = answer["metrics"]["speculative_decoding"]
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"]
    accepted = sum(size * count for size, count in enumerate(histogram))
    assert accepted == found["num_accepted_draft_tokens"] > 0
    assert len(histogram) == found["num_spec_tokens"] + 1


# Texts are those of the library alone:


def params(body: Json) -> SamplingParams:
    known = {"temperature", "seed", "presence_penalty", "ignore_eos", "top_k", "min_p"}
    given = {key: value for key, value in body.items() if key in known}
    return SamplingParams(max_new_tokens=body["max_tokens"], **given)


def test_under_load_every_text_is_that_of_the_library_alone() -> None:
    draw = random.Random(7)
    asked = []
    for number in range(80):
        body: Json = {"prompt": draw.choice(engines.PROMPTS), "max_tokens": draw.randrange(1, 30)}
        body |= {"temperature": draw.choice([0.0, 1.0]), "seed": number, "ignore_eos": True}
        body |= {"min_p": draw.choice([0.0, 0.1]), "presence_penalty": draw.choice([0.0, 0.5])}
        body |= {"speculation": {"enabled": draw.random() < 0.5}, "stream": draw.random() < 0.5}
        asked.append((body, draw.random() < 0.15))

    async def client(http: Client, mine: list[Any]) -> list[tuple[Json, str]]:
        out = []
        for body, leaves in mine:
            work = asyncio.ensure_future(http.post(TEXTS, body))
            if leaves:
                await asyncio.sleep(0)
                work.cancel()
                continue
            response = await work
            found = events(response.text) if body["stream"] else [response.json()]
            out.append((body, "".join(c["text"] for e in found for c in e["choices"])))
        return out

    async def load(http: Client) -> list[tuple[Json, str]]:
        sixteen = await asyncio.gather(*(client(http, asked[i::16]) for i in range(16)))
        await asyncio.wait_for(http.service.emptied(), 10)
        return [each for found in sixteen for each in found]

    target = engines.Target()
    target.slots = 3
    answers = run(load, engines.make(target, PromptLookup(), max_batch=4))
    assert len(answers) > 50
    plain = engines.make()
    for body, text in answers:
        assert text == plain.generate(body["prompt"], params(body), raw=True).text, body
    assert target.live == []


def test_chats_go_on_by_what_metadata_holds() -> None:
    """As `resume_token_ids` itself, which routers take out of chats."""

    async def asks(client: Client) -> None:
        body = CHAT | SAMPLED | {"metadata": {"return_token_ids": "true", "note": "kept"}}
        [whole] = (await client.ask(CHATS, body))["choices"]
        for given in (whole["token_ids"][:5], json.dumps(whole["token_ids"][:5])):
            held = {"metadata": {"return_token_ids": True, "resume_token_ids": given}}
            [rest] = (await client.ask(CHATS, body | held))["choices"]
            assert rest["token_ids"] == whole["token_ids"][5:]
        [none] = (await client.ask(CHATS, body | {"return_token_ids": False}))["choices"]
        assert "token_ids" not in none  # a field is stronger than metadata

    run(asks)


def test_drafts_change_nothing_wherever_they_are_switched() -> None:
    body = CHAT | SAMPLED | {"max_tokens": 40}
    switches: list[Json] = [
        {},
        {"speculation": {"enabled": False}},
        {"speculation": {"nodes": 2, "depth": 1}},
        {"metadata": {"speculation": '{"enabled": false}'}},
        {"metadata": {"speculation": {"depth": 1}}},
    ]

    async def all_of(client: Client) -> list[str]:
        answers = [await client.ask(CHATS, body | each) for each in switches]
        return [answer["choices"][0]["message"]["content"] for answer in answers]

    assert len(set(run(all_of, drafting()))) == 1


def test_without_a_seed_the_answer_says_which_it_took() -> None:
    body = {key: value for key, value in (CHAT | SAMPLED).items() if key != "seed"}

    async def asks(client: Client) -> tuple[Json, Json, Json]:
        first, other = await client.ask(CHATS, body), await client.ask(CHATS, body)
        return first, other, await client.ask(CHATS, body | {"seed": first["seed"]})

    first, other, again = run(asks)
    assert first["seed"] != other["seed"]
    assert first["choices"] == again["choices"] != other["choices"]


def test_answers_of_one_request_differ_and_can_be_asked_for_again() -> None:
    async def asks(client: Client) -> list[list[str]]:
        body = TEXT | SAMPLED
        answers = [await client.ask(TEXTS, body | {"n": n}) for n in (1, 3, 3)]
        return [[choice["text"] for choice in answer["choices"]] for answer in answers]

    one, three, again = run(asks)
    assert three == again
    assert one[0] == three[0]
    assert len(set(three)) == 3


@pytest.mark.parametrize("extra", [{}, {"stop": ["ow"]}, {"temperature": 0, "stop": ["q"]}])
def test_an_answer_goes_on_from_any_of_its_tokens(extra: Json) -> None:
    body = TEXT | SAMPLED | {"max_tokens": 20, "frequency_penalty": 0.4} | extra
    body |= {"return_token_ids": True}

    async def asks(client: Client) -> None:
        chunks = [c for e in await client.stream(TEXTS, body) for c in e["choices"]]
        whole = await client.ask(TEXTS, body)
        tokens, text = [], ""
        for chunk in chunks[:-1]:
            tokens += chunk["token_ids"]
            text += chunk["text"]
            rest = await client.ask(TEXTS, body | {"resume_token_ids": tokens})
            [choice] = rest["choices"]
            assert text + choice["text"] == whole["choices"][0]["text"]
            assert tokens + choice["token_ids"] == whole["choices"][0]["token_ids"]
            assert rest["usage"] == whole["usage"]
        tokens += chunks[-1]["token_ids"]
        ended = await client.refused(TEXTS, body | {"resume_token_ids": tokens})
        assert "ended" in ended["message"]

    run(asks)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("text", ["Say: \u65e5\u672c\u8a9e", "\U0001f600\U0001f600 a", "the"])
def test_offsets_say_where_tokens_begin(text: str, ids: bool) -> None:
    """By bytes: what the tokens before wrote, in whole characters."""
    prompt: Any = engines.make().tokenizer.encode(text) if ids else text
    body = SAMPLED | {"prompt": prompt, "echo": True, "logprobs": 0, "return_token_ids": True}

    async def asks(client: Client) -> None:
        for more in ({"max_tokens": 8}, {"max_tokens": 8, "echo": False}):
            [choice] = (await client.ask(TEXTS, body | more))["choices"]
            tokens = choice["token_ids"]
            if "echo" not in more:
                tokens = choice["prompt_token_ids"] + tokens
            raw = [
                client.service.hosting.find(None).model.tokenizer.bytes_of(token)
                for token in tokens
            ]
            found = choice["logprobs"]["text_offset"]
            assert len(found) == len(tokens)
            wrote = [b"".join(raw[:i]).decode("utf-8", "ignore") for i in range(len(raw))]
            if "\ufffd" not in choice["text"]:
                assert found == [len(each) for each in wrote]
            assert found[-1] <= len(choice["text"])

    run(asks)


# What never fits, and what sets no limit:


LONG = "the quick " * 300


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXTS, {"prompt": LONG}, "prompt"),
        (TEXTS, {"prompt": [3] * 400}, "prompt"),
        (TEXTS, {"prompt": "z " * 2_000_000}, "prompt"),
        (CHATS, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (CHATS, {"messages": [{"role": "user", "content": "z " * 2_000_000}]}, "messages"),
        (RESPONSES, {"input": LONG}, "input"),
    ],
)
def test_what_never_fits_is_the_clients_mistake(path: str, body: Json, param: str) -> None:
    """In words of OpenAI that clients look for, and at once."""
    error = run(lambda c: c.refused(path, body))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("This model's maximum context length is 400 tokens. However")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXTS, {"prompt": [3] * 200, "max_tokens": -1}),
        (TEXTS, {"prompt": [3] * 200, "n_predict": -1}),
        (TEXTS, {"prompt": [3] * 200, "max_tokens": 200}),
        (TEXTS, {"prompt": [3] * 200, "max_tokens": 10**9}),
        (TEXTS, {"prompt": [3] * 500, "max_tokens": 3, "truncate_prompt_tokens": -1}),
        (CHATS, CHAT | {"max_tokens": -1}),
        (CHATS, CHAT | {"max_tokens": None, "max_completion_tokens": -1}),
        (RESPONSES, {"input": "the", "max_output_tokens": -1}),
    ],
)
def test_minus_one_sets_no_limit(path: str, body: Json) -> None:
    usage = run(lambda c: c.ask(path, body | {"ignore_eos": True}))["usage"]
    assert usage["total_tokens"] == 400


@pytest.mark.parametrize("path", [TEXTS, CHATS])
def test_who_asks_sees_how_far_the_prompt_is_read(path: str) -> None:
    """With llama.cpp's field and names, from what was cached to the whole."""
    text = "the quick " * 300
    body: Json = {"max_tokens": 3, "return_progress": True, "stream": True, "seed": 1}
    body |= {"prompt": text} if path == TEXTS else {"messages": CHAT["messages"][:1]}
    if path == CHATS:
        body["messages"] = [{"role": "user", "content": text}]

    async def asks(client: Client) -> None:
        chunks = events((await client.post(path, body)).text)
        told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        processed = [each["processed"] for each in told]
        assert told  # pieces that a reader is too slow for are merged
        assert processed == sorted(set(processed))
        assert processed[-1] == told[-1]["total"] > 128
        assert all(set(each) == {"total", "cache", "processed", "time_ms"} for each in told)
        rest = events((await client.post(path, body | {"return_progress": False})).text)
        assert said(chunks) == said(rest)

    def said(chunks: list[Json]) -> str:
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        return "".join(part.get("text", part.get("delta", {}).get("content", "")) for part in parts)

    run(asks, engines.make(engines.Target(max_context=2000)))


def test_many_at_once_are_all_answered() -> None:
    async def asks(client: Client) -> None:
        bodies = [TEXT | {"max_tokens": 2, "seed": seed} for seed in range(200)]
        answers = await asyncio.gather(*(client.post(TEXTS, body) for body in bodies))
        assert {answer.status_code for answer in answers} == {200}

    run(asks)


def test_a_client_that_does_not_read_is_left() -> None:
    async def asks(client: Client) -> None:
        async def receive() -> Any:
            if given:
                return given.pop()
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.sleep(60)  # as a connection whose buffers are full

        data = json.dumps(TEXT | {"stream": True, "max_tokens": 300, "ignore_eos": True}).encode()
        given = [{"type": "http.request", "body": data, "more_body": False}]
        scope = {"type": "http", "method": "POST", "path": TEXTS, "headers": []}
        scope |= {"query_string": b"", "http_version": "1.1", "server": ("tables", 80)}
        await asyncio.wait_for(client.service.app(scope, receive, send), 10)
        assert client.service.idle

    run(asks, read_timeout=0.05)


# Bodies and heads as they come:


@pytest.mark.parametrize(
    ("headers", "pack"),
    [
        ({"content-encoding": "gzip"}, gzip.compress),
        ({"content-encoding": "deflate"}, zlib.compress),
        ({}, lambda data: b"\xef\xbb\xbf" + data),
        ({"content-type": "text/plain"}, bytes),
    ],
)
def test_bodies_are_unpacked(headers: Any, pack: Any) -> None:
    async def asks(client: Client) -> None:
        data = pack(json.dumps(TEXT).encode())
        response = await client.http.post(TEXTS, content=data, headers=headers)
        assert response.status_code == 200, response.text

    run(asks)


@pytest.mark.parametrize(
    ("packing", "data", "status", "said"),
    [
        ("zstd", b"{}", 415, "'zstd' is not read: send gzip"),
        ("br", b"{}", 415, "'br'"),
        ("gzip", b"{}", 400, "the body is no gzip"),
        ("gzip", gzip.compress(b"{}" * 99, mtime=0)[:-9], 400, "it is cut off"),
        ("gzip", gzip.compress(b" " * 10**8, mtime=0), 413, "larger than"),
        ("identity", "{}".encode("utf-16"), 400, "the body is UTF-16"),
    ],
)
def test_bodies_that_cannot_be_unpacked_say_so(
    packing: str, data: bytes, status: int, said: str
) -> None:
    async def asks(client: Client) -> None:
        headers = {"content-encoding": packing}
        response = await client.http.post(TEXTS, content=data, headers=headers)
        assert response.status_code == status
        assert said in response.json()["error"]["message"]

    run(asks)


def test_names_and_paths_of_plain_meaning_are_taken() -> None:
    async def asks(client: Client) -> None:
        for name in ("openai/tables", "Tables", "tables:latest", "OTHER:latest"):
            await client.ask(TEXTS, TEXT | {"model": name})
        for name in ("openai/gpt", "tables:7b", "someone/tables"):
            error = await client.refused(TEXTS, TEXT | {"model": name}, 404)
            assert error["code"] == "model_not_found"
        for path in (TEXTS + "/", "//v1/completions", "/v1//completions/"):
            await client.ask(path, TEXT)
        for path in ("/v1/models/", "/v1/models"):
            listed = (await client.http.get(path)).json()["data"]
            assert [each["id"] for each in listed] == ["tables", "other"]
        assert (await client.http.head("/v1/models")).status_code == 200
        assert (await client.http.get("/v1/models/tables")).json()["id"] == "tables"

    run(asks)


def test_no_line_of_a_stream_breaks_where_clients_break_lines() -> None:
    """Python's `splitlines`, as some clients read streams."""
    odd = "a\x85b\u2028c\u2029d"
    parts = http.sse([{"text": odd}]).decode().splitlines()
    assert len(parts) == 2
    assert json.loads(parts[0].removeprefix("data: ")) == {"text": odd}


def test_what_is_left_out_is_told_in_a_header_or_refused() -> None:
    body = {
        "input": [{"role": "user", "content": "the"}, {"type": "web_search_call", "id": "1"}],
        "tools": [{"type": "web_search"}],
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 3,
    }

    async def asks(client: Client) -> None:
        response = await client.post(RESPONSES, body)
        assert response.status_code == 200, response.text
        assert response.headers["x-paceline-ignored"].split(", ") == [
            "tools[0]:web_search",
            "input[1]:web_search_call",
            "reasoning.effort",
            "reasoning.summary",
            "include:reasoning.encrypted_content",
        ]
        error = await client.refused(RESPONSES, body | {"tool_choice": "required"})
        assert "no function among the tools" in error["message"]

    run(asks)
    assert "tools[0]" in run(lambda c: c.refused(RESPONSES, body), strict=True)["message"]


# What is refused:


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHATS, CHAT | {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHATS, CHAT | {"top_logprobs": 2}, "top_logprobs"),
        (CHATS, CHAT | {"logit_bias": {"x": 1}}, "logit_bias"),
        (CHATS, CHAT | {"metadata": {"speculation": "off"}}, "metadata.speculation"),
        (CHATS, CHAT | {"metadata": {"speculation": {"nodes": 0}}}, "metadata.speculation.nodes"),
        (CHATS, CHAT | {"metadata": {"resume_token_ids": "[-1]"}}, "metadata.resume_token_ids[0]"),
        (CHATS, CHAT | {"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        (CHATS, CHAT | {"n": 2, "resume_token_ids": [5]}, "n"),
        (CHATS, CHAT | {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        (CHATS, CHAT | {"regex": "a", "guided_choice": ["a"]}, "regex"),
        (CHATS, CHAT | {"response_format": {"type": "json_schema"}}, "response_format"),
        (TEXTS, TEXT | {"max_tokens": 0}, "max_tokens"),
        (TEXTS, TEXT | {"prompt": []}, "prompt"),
        (TEXTS, TEXT | {"prompt": ["a", [1]]}, "prompt"),
        (TEXTS, TEXT | {"prompt": [1, 320]}, "prompt"),
        (TEXTS, TEXT | {"prompt": ""}, "prompt"),
        (TEXTS, TEXT | {"prompt": [3] * 400}, "prompt"),
        (TEXTS, TEXT | {"prompt": ["a"] * 1025}, "prompt"),
        (TEXTS, TEXT | {"prompt": ["a", "b"], "resume_token_ids": [5]}, "resume_token_ids"),
        (TEXTS, TEXT | {"resume_token_ids": [320]}, "prompt"),
        (TEXTS, TEXT | {"stop_token_ids": [320]}, "stop_token_ids"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
    ],
)
def test_a_mistake_is_refused_with_its_field(path: str, body: Json, param: str) -> None:
    error = run(lambda c: c.refused(path, body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_more_answers_than_the_server_ever_takes_are_refused() -> None:
    assert run(lambda c: c.refused(TEXTS, TEXT | {"n": 128}), max_waiting=64)["param"] == "n"


def test_another_model_is_not_found() -> None:
    assert run(lambda c: c.refused(CHATS, CHAT | {"model": "gpt"}, 404))["param"] == "model"
    assert run(lambda c: c.ask(CHATS, CHAT | {"model": "other"}))["model"] == "other"


def test_ignored_fields_are_told_in_a_header() -> None:
    async def asks(client: Client) -> None:
        response = await client.post(TEXTS, TEXT | {"made_up": 1, "a\r\nb: c": 2, "": 3})
        assert response.headers["x-paceline-ignored"] == "made_up, a??b:?c, ?"
        assert "b" not in response.headers

    run(asks)
    run(lambda c: c.refused(TEXTS, TEXT | {"made_up": 1}), strict=True)


def test_other_routes_and_methods_say_what_is_wrong() -> None:
    async def asks(client: Client) -> None:
        for method, path, status in [("GET", "/nope", 404), ("GET", CHATS, 405)]:
            response = await client.http.request(method, path)
            assert response.status_code == status
            assert response.json()["error"]["message"]

    run(asks)


def test_large_bodies_are_refused() -> None:
    run(lambda c: c.refused(TEXTS, TEXT | {"prompt": "x" * 2000}, 413), max_body=1000)

    async def in_parts(client: Client) -> None:
        async def parts() -> Any:
            for _ in range(9):
                yield b" " * 300

        response = await client.http.post(TEXTS, content=parts())
        assert response.status_code == 413

    run(in_parts, max_body=1000)


MUTATIONS: list[Any] = [
    *(None, True, 0, -1, 1e308, -1e308, 10**30, "", "x" * 5000, "\x00", "\ud83d", [], {}, [[]]),
    *([None], {"a": {"b": []}}, float("nan"), float("inf"), 2**63, "1", [1e308], {"1": 1e308}),
]


def test_no_body_brings_the_server_down() -> None:
    draw = random.Random(3)
    fields = [*CHAT, *SAMPLED, "top_k", "min_p", "stop", "n", "logit_bias", "logprobs", "regex"]
    fields += ["top_logprobs", "max_tokens", "stream_options", "speculation", "tools", "metadata"]
    fields += ["prompt", "echo", "resume_token_ids", "min_tokens", "allowed_token_ids", "input"]
    fields += ["truncate_prompt_tokens", "response_format", "chat_template_kwargs", "tool_choice"]

    async def asks(client: Client) -> None:
        for _ in range(300):
            path, base = draw.choice([(CHATS, CHAT), (TEXTS, TEXT), (RESPONSES, {"input": "a"})])
            body = base | {"max_output_tokens": 2, "max_tokens": 2}
            for _ in range(draw.randrange(1, 3)):
                body = body | {draw.choice(fields): draw.choice(MUTATIONS)}
            data = json.dumps(body).encode()
            if draw.random() < 0.2:
                at = draw.randrange(len(data))
                data = data[:at] + bytes([draw.randrange(256)]) + data[at + draw.randrange(3) :]
            response = await asyncio.wait_for(client.http.post(path, content=data), 10)
            assert response.status_code < 500, (body, response.text)
            assert "Traceback" not in response.text
        await client.ask(CHATS, CHAT)
        assert client.service.idle

    run(asks)


# Operation:


def test_an_error_that_nobody_foresaw_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*arguments: Any) -> None:
        raise ValueError("what is inside")

    monkeypatch.setattr("paceline.serving.fill.plan_completion", plan)

    async def asks(client: Client) -> None:
        error = await client.refused(TEXTS, TEXT, 500)
        assert error["message"] == "the server failed: see its log"
        assert client.service.idle
        await client.ask(CHATS, CHAT)

    run(asks)


def test_servers_that_tell_of_their_life_are_heard() -> None:
    async def lives(client: Client) -> None:
        said, told = [], iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> Any:
            return next(told)

        async def send(message: Any) -> None:
            said.append(message["type"])

        await client.service.app({"type": "lifespan"}, receive, send)
        assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    run(lives)


def test_only_a_disconnect_ends_what_is_waited_for() -> None:
    told = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(told)

    with pytest.raises(http.Gone):
        asyncio.run(http.unless_gone(receive, asyncio.sleep(30)))
    assert next(told, None) is None


def test_log_probabilities_join_whatever_the_steps() -> None:
    body = TEXT | SAMPLED | {"echo": True, "logprobs": 2, "max_tokens": 20}
    asked = {"input": "the quick", "max_output_tokens": 30, "temperature": 1.0, "seed": 11}
    asked["include"] = ["message.output_text.logprobs"]

    async def both(client: Client) -> None:
        whole = (await client.ask(TEXTS, body))["choices"][0]
        chunks = await client.stream(TEXTS, body)
        assert [each["logprobs"] for chunk in chunks for each in chunk["choices"]] == [
            whole["logprobs"]
        ]
        [message] = (await client.ask(RESPONSES, asked))["output"]
        parts = await client.stream(RESPONSES, asked)
        said = [part for each in parts for part in each.get("logprobs", []) if "delta" in each]
        assert said == message["content"][0]["logprobs"]

    run(both, engines.make(Slow(0.01)))


def test_health_follows_the_state() -> None:
    async def asks(client: Client) -> None:
        assert (await client.http.get("/health")).status_code == 200
        client.service.drain()
        assert (await client.http.get("/health")).status_code == 503
        response = await client.post(CHATS, CHAT)
        assert response.status_code == 503
        assert response.headers["retry-after"]

    run(asks)


def test_keys_guard_every_route_but_health_and_the_page() -> None:
    async def asks() -> None:
        async with serving(keys=("key-one", "key-two")) as client:
            routes = client.service.app.routes
            for route in routes:
                response = await client.http.get(getattr(route, "path", ""))
                free = getattr(route, "path", "") in ("/health", "/")
                assert response.status_code == (200 if free else 401)
            for key, status in [("key-two", 200), ("key-three", 401), ("", 401), ("k\xe9y", 401)]:
                headers = {"authorization": b"Bearer " + key.encode("latin-1")}
                response = await client.http.get("/v1/models", headers=headers)
                assert response.status_code == status
            for name in ("x-api-key", "api-key"):
                for key, status in (("key-one", 200), ("key-three", 401)):
                    response = await client.http.get("/v1/models", headers={name: key})
                    assert response.status_code == status
            basic = {"authorization": "Basic key-one"}
            assert (await client.http.get("/v1/models", headers=basic)).status_code == 401

    asyncio.run(asks())


def test_pages_of_other_origins_are_not_let_in_unless_named() -> None:
    async def asked(client: Client) -> str | None:
        response = await client.http.get("/v1/models", headers={"origin": "https://a.example"})
        return response.headers.get("access-control-allow-origin")

    assert run(asked) is None
    assert run(asked, cors_origin=["https://a.example"]) == "https://a.example"
    assert run(asked, cors_origin=["https://b.example"]) is None


def test_requests_beyond_the_limit_are_refused_at_once() -> None:
    async def asks(client: Client) -> None:
        body = TEXT | {"max_tokens": 300, "ignore_eos": True}
        answers = await asyncio.gather(*(client.post(TEXTS, body) for _ in range(60)))
        codes = [answer.status_code for answer in answers]
        assert codes.count(200) == 6
        assert codes.count(429) == 54
        refused = [answer for answer in answers if answer.status_code == 429]
        assert all(answer.headers["retry-after"] == "1" for answer in refused)
        assert refused[0].json()["error"]["type"] == "rate_limit_error"
        assert client.service.idle

    run(asks, engines.make(max_batch=2), max_batch=2, max_waiting=4)


def test_prompt_tokens_are_limited_too() -> None:
    async def asks(client: Client) -> None:
        body = {"prompt": [5] * 50, "max_tokens": 300, "ignore_eos": True}
        answers = await asyncio.gather(*(client.post(TEXTS, body) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]

    run(asks, max_prompt_tokens=100)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:
    async def asks(client: Client) -> None:
        body = json.dumps(TEXT | {"max_tokens": 390, "ignore_eos": True, "stream": stream})
        started, sent = asyncio.Event(), []
        inbox = [{"type": "http.request", "body": body.encode()}]

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            await started.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            started.set()

        scope = {
            "type": "http",
            "method": "POST",
            "path": TEXTS,
            "headers": [],
            "query_string": b"",
        }
        work = asyncio.ensure_future(client.service.app(scope, receive, send))
        while not client.service.gate.tokens:
            await asyncio.sleep(0)
        started.set()
        await work
        assert client.service.idle
        worker = client.service.hosting.models[0].worker
        assert worker is not None
        while worker.core.busy:
            await asyncio.sleep(0.001)
        assert worker.core.engine.pending == 0
        text = b"".join(message.get("body", b"") for message in sent).decode()
        assert "[DONE]" not in text
        answer = await client.ask(CHATS, CHAT | SAMPLED)
        assert answer["choices"][0]["finish_reason"] == "length"

    run(asks)


def test_a_stream_that_fails_says_so() -> None:
    engine = engines.make()

    def broken() -> Any:
        raise RuntimeError("a bug with a secret prompt")

    engine.step = broken  # type: ignore[method-assign]

    async def asks(client: Client) -> None:
        found = await client.stream(TEXTS, TEXT)
        assert found[-1]["error"]["type"] == "server_error"
        assert "secret" not in json.dumps(found)
        found = await client.stream(RESPONSES, {"input": "a"})
        assert found[-1]["type"] == "response.failed"
        STREAM_EVENT.validate_python(found[-1])
        assert (await client.refused(TEXTS, TEXT, 500))["type"] == "server_error"

    run(asks, engine)


def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serving.app.PING_SECONDS", 0.01)
    sent = http.EventStream._send

    async def seen(stream: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            await send(message)
            if message.get("body") == http.PING:
                pinged.set()

        await sent(stream, watched)

    monkeypatch.setattr(http.EventStream, "_send", seen)
    engine = engines.make()
    step, pinged = engine.step, threading.Event()

    def slow() -> Any:
        return step() if pinged.wait(0.001) else []

    engine.step = slow  # type: ignore[method-assign]

    async def asks(client: Client) -> None:
        response = await client.post(TEXTS, TEXT | {"stream": True})
        assert ": ping\n\n" in response.text
        assert events(response.text)

    run(asks, engine)


def test_the_other_routes_answer() -> None:
    async def asks(client: Client) -> None:
        async def get(path: str) -> Json:
            response = await client.http.get(path)
            assert response.status_code == 200
            found: Json = response.json()
            return found

        assert [m["id"] for m in (await get("/v1/models"))["data"]] == ["tables", "other"]
        assert (await get("/v1/models/other"))["id"] == "other"
        assert (await client.http.get("/v1/models/x")).status_code == 404
        for name in ("model_info", "get_model_info", "server_info", "get_server_info"):
            assert (await get(f"/{name}"))["served_model_name"] == "tables"
        info = await get("/tokenizer_info")
        assert info["eos_token"] == engines.TOKENIZER.core.id_to_token(engines.EOS)
        ids = await client.ask("/tokenize", {"prompt": "the quick", "return_token_strs": True})
        assert ids["tokens"] == engines.TOKENIZER.encode("the quick", special=True)
        assert "".join(ids["token_strs"]) == "the quick"
        back = await client.ask("/detokenize", {"tokens": ids["tokens"]})
        assert back == {"prompt": "the quick"}
        chat = await client.ask("/tokenize", {"messages": CHAT["messages"]})
        assert chat["tokens"] == engines.TOKENIZER.chat(CHAT["messages"])
        paths = (await get("/openapi.json"))["paths"]
        served = {getattr(route, "path", "") for route in client.service.app.routes} - {"/"}
        short = {path for path in served if f"/v1{path}" in served}
        assert "/chat/completions" in short
        served -= short
        assert {path.replace("{name}", "{name:path}") for path in paths} == served

    run(asks)


def test_metrics_count_what_was_served() -> None:
    async def asks(client: Client) -> None:
        await client.ask(TEXTS, TEXT | SAMPLED)
        await client.refused(TEXTS, {})
        page = (await client.http.get("/metrics")).text
        lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
        for prefix in ("paceline:", "vllm:"):
            assert float(lines[prefix + "generation_tokens_total"]) == 12
            assert float(lines[prefix + 'request_success_total{finished_reason="length"}']) == 1
            assert float(lines[prefix + "e2e_request_latency_seconds_count"]) == 1
        assert float(lines["paceline:requests_not_answered_total"]) == 1
        assert float(lines["paceline:num_requests_accepted"]) == 0

    run(asks, vllm_metrics=True)


def test_before_the_model_is_there_all_but_health_is_503() -> None:
    async def asks() -> None:
        service = Service(Settings())
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for path in ("/v1/models", "/model_info", "/tokenizer_info"):
                assert (await client.get(path)).status_code == 503
            for path in (CHATS, TEXTS, RESPONSES, "/tokenize", "/detokenize"):
                assert (await client.post(path, json={})).status_code == 503
            assert (await client.get("/metrics")).status_code == 200
        service.abort(PacelineError("nothing to end"))
        service.stop()

    asyncio.run(asks())


async def raw(client: Client, body: Json, leaves: asyncio.Event, whole: bool = True) -> list[Any]:
    """Ask as a bare ASGI server does; the client leaves when told. Returns what was sent."""
    inbox = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": not whole}]
    sent: list[Any] = []

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 2:  # the first part of the body: the client reads no more of it
            while not body.get("reads", True) and client.service.hosting.models[0].worker.core.busy:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)

    scope = {"type": "http", "method": "POST", "path": TEXTS, "headers": [], "query_string": b""}
    await client.service.app(scope, receive, send)
    return sent


def test_a_client_that_leaves_in_its_body_is_not_answered() -> None:
    async def asks(client: Client) -> None:
        leaves = asyncio.Event()
        leaves.set()
        sent = await raw(client, TEXT, leaves, whole=False)
        assert sent[0]["status"] == 499
        assert client.service.idle

    run(asks)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def asks(client: Client) -> None:
        body = TEXT | {"n": 8, "max_tokens": 380, "logprobs": 20, "stream": True, "reads": False}
        sent = await raw(client, body | {"ignore_eos": True}, asyncio.Event())
        assert b"reads too slowly" in b"".join(message.get("body", b"") for message in sent)
        assert client.service.idle

    run(asks)


def test_a_prompt_is_cut_to_its_end_where_asked() -> None:
    async def asks(client: Client) -> None:
        body = {"prompt": [7, 8, 9, 10], "max_tokens": 1, "truncate_prompt_tokens": 2}
        found = await client.ask(TEXTS, body | {"return_token_ids": True})
        assert found["choices"][0]["prompt_token_ids"] == [9, 10]

    run(asks)


def test_what_ended_an_answer_is_named() -> None:
    async def asks(client: Client) -> None:
        whole = await client.ask(TEXTS, TEXT | {"temperature": 0, "return_token_ids": True})
        token = whole["choices"][0]["token_ids"][3]
        found = await client.ask(TEXTS, TEXT | {"temperature": 0, "stop_token_ids": [token]})
        assert found["choices"][0]["stop_reason"] == token
        assert found["choices"][0]["finish_reason"] == "stop"

    run(asks)


OWN = {"temperature": 0.7, "top_k": 4, "typical_p": 0.9, "mirostat": 2}
OWN |= {"repetition_penalty": 1.8, "repeat_last_n": 9}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"temperature": 1.2, "top_k": 0},
        {"temperature": 0},
        {"typical_p": 1.0, "repeat_last_n": -1, "mirostat": 0},
        {"top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.3},
    ],
)
def test_what_the_models_files_ask_for_holds_where_a_client_says_nothing(said: Json) -> None:
    """Texts are the library's with both together, and a client's word is stronger."""
    engine = engines.make()
    engine.defaults = dict(OWN)
    body = {"prompt": "the quick", "max_tokens": 20, "seed": 5, "ignore_eos": True} | said
    found = run(lambda client: client.ask(TEXTS, body), engine)
    together = OWN | said
    if not together["temperature"]:  # where these mean nothing
        together |= {"typical_p": 1.0, "mirostat": 0}
    params = SamplingParams(seed=5, max_new_tokens=20, ignore_eos=True, **together)
    expected = engines.make().generate("the quick", params, raw=True).text
    assert found["choices"][0]["text"] == expected
    bare = run(lambda client: client.ask(TEXTS, body), engines.make())["choices"][0]["text"]
    assert bare != expected, "the files' words are heard"


def test_sampling_that_no_request_could_have_is_told_at_the_start() -> None:
    engine = engines.make()
    engine.defaults = {"top_p": 7.0}
    with pytest.raises(PacelineError, match=r"files ask for top_p 7: .*--no-generation-config"):
        run(lambda client: client.ask(TEXTS, TEXT), engine)


def test_errors_have_the_status_of_their_kind() -> None:
    kinds = {
        http.SlowReader: 408,
        http.ShutDown: 503,
        http.OutOfMemory: 503,
        http.Busy: 429,
        http.BadLogits: 400,
        PacelineError: 500,
    }
    for kind, status in kinds.items():
        assert http.status_of(kind("x"))[0] == status
    assert http.status_of(http.InvalidOption("max_new_tokens must be"))[1] == "max_tokens"

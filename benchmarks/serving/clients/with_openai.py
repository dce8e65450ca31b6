"""openai: every kind of request, with answers validated, which the client itself does not do."""

import json
from typing import Any

from benchmarks.serving.clients.checks import (
    ASK,
    CITY,
    MODEL,
    TOOL,
    URL,
    WEATHER,
    check_city,
    skip_tools,
)
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

client: Any = OpenAI(base_url=URL, api_key="x", max_retries=0)


def strict(kind: Any, value: Any) -> None:
    """Fail unless the JSON of `value` has the types that the client declares."""
    kind.model_validate_json(json.dumps(value.model_dump(mode="json", warnings=False)), strict=True)


def run(name: str, **options: Any) -> Any:
    answer = client.chat.completions.create(
        **{"model": MODEL, "messages": ASK, "max_tokens": 24, "seed": 7} | options
    )
    if not options.get("stream"):
        strict(ChatCompletion, answer)
    print(name, flush=True)
    return answer


whole = run("chat").choices[0].message.content
chunks = list(run("streaming", stream=True, stream_options={"include_usage": True}))
for chunk in chunks:
    strict(ChatCompletionChunk, chunk)
assert chunks[-1].choices == []
assert chunks[-1].usage.completion_tokens > 0
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole

scores = run("logprobs", logprobs=True, top_logprobs=3).choices[0].logprobs.content
assert "".join(s.token for s in scores).strip()
assert all(len(s.top_logprobs) == 3 for s in scores)
assert len(run("n", n=2).choices) == 2

form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY, "strict": True}}
check_city(run("structured output", response_format=form).choices[0].message.content)
if not skip_tools():
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        options = {"messages": WEATHER, "tools": [TOOL], "tool_choice": choice, "max_tokens": 400}
        (call, *_) = run("tools", **options).choices[0].message.tool_calls
        check_city(call.function.arguments)
        parts = [c.choices[0].delta for c in run("tools streamed", stream=True, **options)]
        calls = [t for p in parts for t in p.tool_calls or [] if t.index == 0]
        assert calls[0].function.name == "weather"
        assert calls[0].id
        check_city("".join(t.function.arguments or "" for t in calls))

asked = {"model": MODEL, "prompt": "The river", "max_tokens": 5, "logprobs": 2, "seed": 7}
strict(Completion, client.completions.create(**asked))
# The first token has no log-probability. OpenAI's own null there is not of the declared type.
text = client.completions.create(**asked, echo=True).choices[0]
assert text.text.startswith("The river")
assert text.logprobs.token_logprobs[0] is None
print("completions")

reply = client.responses.create(model=MODEL, input="Name a river.", max_output_tokens=16)
strict(Response, reply)
events = [
    e.type
    for e in client.responses.create(
        model=MODEL, input="Name a river.", max_output_tokens=16, stream=True
    )
]
assert events[0] == "response.created", events
assert events[-1] in ("response.completed", "response.incomplete"), events
print("responses")

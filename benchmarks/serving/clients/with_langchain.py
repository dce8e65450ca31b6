"""langchain-openai: chat, streaming with usage, log-probabilities, structured output, tools."""

from typing import Any

from benchmarks.serving.clients.checks import CITY, MODEL, TOOL, URL, skip_tools
from langchain_openai import ChatOpenAI

options: dict[str, Any] = {"max_tokens": 400, "seed": 7, "max_retries": 0, "stream_usage": True}
chat = ChatOpenAI(base_url=URL, api_key="x", model=MODEL, **options)
short = ChatOpenAI(
    base_url=URL,
    api_key="x",
    model=MODEL,
    **options | {"max_tokens": 24},
)
whole = short.invoke("Name a river.")
chunks = list(short.stream("Name a river."))
assert "".join(str(c.content) for c in chunks) == whole.content
assert any(c.usage_metadata for c in chunks)
print("chat, streaming")
assert short.bind(logprobs=True).invoke("Name a river.").response_metadata["logprobs"]["content"]
print("logprobs")
schema = {"title": "c", "description": "A city.", **CITY}
answer: Any = chat.with_structured_output(schema, method="json_schema").invoke("Name a city.")
assert answer["city"] in ("Paris", "Rome"), answer
print("structured output")
if not skip_tools():
    reply = chat.bind_tools([TOOL], tool_choice="weather").invoke("The weather in Paris?")
    assert reply.tool_calls[0]["name"] == "weather"
    assert reply.tool_calls[0]["args"]["city"] in ("Paris", "Rome")
    print("tools")

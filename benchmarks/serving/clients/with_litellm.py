"""litellm: chat, streaming, structured output and tools, as vLLM and as OpenAI."""

from typing import Any

import litellm
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

for provider in ("hosted_vllm", "openai"):

    def ask(provider: str = provider, **options: Any) -> Any:
        fixed = {"model": f"{provider}/{MODEL}", "api_base": URL, "api_key": "x", "num_retries": 0}
        return litellm.completion(**fixed | {"messages": ASK, "max_tokens": 24} | options)

    whole = ask(seed=7).choices[0].message.content
    parts = [c.choices[0].delta.content or "" for c in ask(seed=7, stream=True)]
    assert "".join(parts) == whole
    print("chat, streaming:", provider)
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY, "strict": True}}
    check_city(ask(response_format=form).choices[0].message.content)
    print("structured output:", provider)
    if not skip_tools():
        answer = ask(messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=400)
        check_city(answer.choices[0].message.tool_calls[0].function.arguments)
        print("tools:", provider)

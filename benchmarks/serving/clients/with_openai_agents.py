"""openai-agents: tools beside a hosted one, a handoff, streams; over Responses and over chats."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from benchmarks.serving.clients.checks import MODEL, PEOPLE, URL, people
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=URL, api_key="x", max_retries=0)
settings = ModelSettings(temperature=0, max_tokens=300)
called: list[str] = []


def counted(city: str) -> str:
    """Tell how many people live in a city."""
    called.append(city)
    return people(city)


# A weak model that is shown its tools asks again and again.
tool = function_tool(counted, name_override="people", is_enabled=lambda *_: not called)


async def main() -> None:
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        model = kind(model=MODEL, openai_client=client)
        hosted = [WebSearchTool()] if kind is OpenAIResponsesModel else []
        agent = Agent(
            name="Geographer",
            instructions="Answer with the tool people.",
            tools=[tool, *hosted],
            model=model,
            model_settings=settings,
        )
        called.clear()
        done = await Runner.run(agent, PEOPLE, max_turns=4)
        assert "2102650" in done.final_output.replace(",", ""), done.final_output
        print(f"{kind.__name__}: a task with a tool", flush=True)
        called.clear()
        stream = Runner.run_streamed(agent, PEOPLE, max_turns=4)
        async for _ in stream.stream_events():
            pass
        assert stream.final_output == done.final_output
        print("streamed")
        called.clear()
        first = Agent(
            name="Desk",
            instructions="Hand every question over to the Geographer.",
            handoffs=[agent],
            model=model,
            model_settings=ModelSettings(temperature=0, max_tokens=300, tool_choice="required"),
        )
        done = await Runner.run(first, PEOPLE, max_turns=6)
        assert done.last_agent is agent
        assert "2102650" in done.final_output.replace(",", ""), done.final_output
        print("a handoff")


asyncio.run(main())

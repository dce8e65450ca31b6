"""pydantic-ai: an agent's text, streamed text and typed answer."""

from typing import Literal

from benchmarks.serving.clients.checks import MODEL, PEOPLE, URL, people, skip_tools
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext, Tool, ToolDefinition, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Place(BaseModel):
    city: Literal["Paris", "Rome"]


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="x"))


async def once(context: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
    """Show a tool in the first step alone: a weak model would ask again and again."""
    return tool if context.run_step == 1 else None


if not skip_tools():
    asked = Tool(people, prepare=once)
    agent = Agent(model, tools=[asked], model_settings=ModelSettings(temperature=0, max_tokens=60))
    told = agent.run_sync(PEOPLE).output
    assert "2102650" in told.replace(",", ""), told
    print("a task with a tool", flush=True)
short = ModelSettings(max_tokens=24, seed=7)
whole = Agent(model, model_settings=short).run_sync("Name a river.").output
stream = Agent(model, model_settings=short).run_stream_sync("Name a river.")
assert "".join(stream.stream_text(delta=True)).strip() == whole.strip()
print("chat, streaming")
settings = ModelSettings(max_tokens=400)
native = Agent(model, output_type=NativeOutput(Place), model_settings=settings)
assert native.run_sync("Name a city.").output.city in ("Paris", "Rome")
print("structured output")
if not skip_tools():
    tools = Agent(model, output_type=ToolOutput(Place), model_settings=settings, retries=0)
    assert tools.run_sync("Name a city.").output.city in ("Paris", "Rome")
    print("tools")

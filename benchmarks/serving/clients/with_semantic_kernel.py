"""Semantic Kernel: agents that call a function, over chats and over Responses; a typed answer."""

import asyncio
from typing import Any, Literal

from benchmarks.serving.clients.checks import MODEL, PEOPLE, URL, people
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.functions import KernelArguments, kernel_function


class Place(BaseModel):
    city: Literal["Paris", "Rome"]


class Census:
    @kernel_function(description="Tell how many people live in a city.")
    def people(self, city: str) -> str:
        return people(city)


client = AsyncOpenAI(base_url=URL, api_key="x", max_retries=0)
chat = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
once = FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=1)
"""A weak model that is shown its tools asks again and again."""
common: dict[str, Any] = {
    "function_choice_behavior": once,
    "name": "Geographer",
    "instructions": "Answer with the tool people.",
}


def settings(**more: Any) -> KernelArguments:
    return KernelArguments(OpenAIChatPromptExecutionSettings(temperature=0, max_tokens=300, **more))


async def main() -> None:
    agent = ChatCompletionAgent(service=chat, plugins=[Census()], arguments=settings(), **common)
    whole = str(await agent.get_response(messages=PEOPLE))
    assert "2102650" in whole.replace(",", ""), whole
    print("a task with a tool", flush=True)
    pieces = [str(piece) async for piece in agent.invoke_stream(messages=PEOPLE)]
    assert "".join(pieces) == whole
    print("streamed")
    typed = ChatCompletionAgent(
        service=chat, name="Namer", arguments=settings(response_format=Place)
    )
    Place.model_validate_json(str(await typed.get_response(messages="Name a city.")))
    print("a typed answer")
    agent = OpenAIResponsesAgent(
        ai_model_id=MODEL, client=client, plugins=[Census()], temperature=0, **common
    )
    said = str(await agent.get_response(messages=PEOPLE))
    assert "2102650" in said.replace(",", ""), said
    print("a task over Responses")


asyncio.run(main())

"""smolagents: an agent that calls tools finishes a task."""

from benchmarks.serving.clients.checks import MODEL, PEOPLE, URL, people
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(
    MODEL, api_base=URL, api_key="x", temperature=0, max_tokens=300, parallel_tool_calls=False
)
agent = ToolCallingAgent(tools=[tool(people)], model=model, max_steps=1)
agent.prompt_templates["system_prompt"] = "Solve the task with tools."  # in place of 1,300 tokens
answer = str(agent.run(PEOPLE))
assert "2102650" in answer.replace(",", ""), answer
print("a task with a tool")

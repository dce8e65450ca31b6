"""guidance: text, JSON, a choice and a pattern as a grammar, and a task with a tool."""

import json

from benchmarks.serving.clients.checks import CITY, MODEL, PEOPLE, URL, check_city, people
from guidance import assistant, gen, select, user
from guidance import json as held
from guidance.models import OpenAI
from guidance.models.experimental import VLLMModel

greedy = {"top_p": 0.01}  # a temperature of 0 is not sent
to = {"base_url": URL, "api_key": "x", "echo": False}
plain, grammars = OpenAI(MODEL, greedy, **to), VLLMModel(MODEL, greedy, **to)

with user():
    asked = plain + PEOPLE
with assistant():
    asked += gen(tools=[people], tool_choice="required")
with assistant():
    answer = (asked + gen("answer", max_tokens=60))["answer"]
assert "2102650" in answer.replace(",", ""), answer
print("a task with a tool", flush=True)
with user():
    asked = plain + "Name a city."
with assistant():
    text = (asked + gen("text", max_tokens=20))["text"]
    city = (asked + held("city", schema=CITY))["city"]
assert text
check_city(city if isinstance(city, str) else json.dumps(city))
print("text, JSON")
with user():
    asked = grammars + "Is Paris in France, and when did its revolution begin?"
with assistant():
    told = asked + (select(["yes", "no"], name="said") + gen("year", regex=" in 1[0-9]{3}"))
assert told["said"] in ("yes", "no")
assert told["year"].startswith(" in 1")
print("a choice and a pattern")

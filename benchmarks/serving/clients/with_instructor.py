"""instructor: pydantic answers without retries, by schema and by tool."""

from typing import Any, Literal

import instructor
from benchmarks.serving.clients.checks import MODEL, URL, WEATHER, skip_tools
from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    city: Literal["Paris", "Rome"]


for mode in [instructor.Mode.JSON_SCHEMA] + [instructor.Mode.TOOLS] * (not skip_tools()):
    client: Any = instructor.from_openai(OpenAI(base_url=URL, api_key="x"), mode=mode)
    answer = client.chat.completions.create(
        model=MODEL, messages=WEATHER, response_model=Place, max_retries=0, max_tokens=400
    )
    assert answer.city in ("Paris", "Rome")
    print("structured output:", mode.value)

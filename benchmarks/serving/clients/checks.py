"""What the scripts share: questions, and the checks that clients leave out."""

import json
import os
from typing import Any

URL = os.environ.get("PACELINE_URL", "http://127.0.0.1:8000") + "/v1"
MODEL = os.environ.get("PACELINE_MODEL", "smollm2-135m")
ASK = [{"role": "user", "content": "Name a river in France."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
PEOPLE = "How many people live in Paris? Use the tool people."
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather of a city.", "parameters": CITY},
}


def people(city: str) -> str:
    """Tell how many people live in a city.

    Args:
        city: name of the city.
    """
    return f"{city} has 2102650 people."


def check_city(text: str) -> None:
    """Fail unless `text` is an object of the schema CITY and nothing else."""
    value = json.loads(text)
    assert set(value) == {"city"}, value
    assert value["city"] in ("Paris", "Rome"), value


def skip_tools() -> bool:
    """Tell whether the runner found a model whose template has no tools."""
    return os.environ.get("PACELINE_TOOLS") == "0"

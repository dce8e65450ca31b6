"""Golden texts: token ids recorded once, which no change of structure may move.

They are the same on every processor and instruction set. `python -m tests.real.test_golden`
records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.registry.loading import load_model, make_engine

pytestmark = pytest.mark.real

FILE = Path(__file__).with_name("golden.json")

PROMPTS = (
    "Write a short story about a dog who finds a key.",
    "What is 12 times 7? Explain.",
    "Write a Python function that reverses a linked list.",
    "Translate to French: Good morning, my friend. How are you today?",
    "Summarise in two sentences why the sky is blue.",
    "List five rivers and the country where each of them ends.",
    "Repeat this with semicolons for commas: red, green, blue, red, green, blue.",
    "Write a class Stack in Python with push, pop and peek.",
    "Explain to a child how a bicycle stays upright.",
    "Give a recipe for pancakes, as numbered steps.",
    "Write SQL that creates a table of customers and a table of orders.",
    "Continue: one two three four one two three four one two",
)

KINDS = {
    "greedy": SamplingParams(max_new_tokens=32),
    "sampled": SamplingParams(
        max_new_tokens=32,
        temperature=1.0,
        top_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        seed=7,
    ),
}

DRAFTERS = ("recycling", "suffix-automaton", "eagle3")


def key(loaded: Loaded) -> str:
    own = loaded.target.capabilities
    return f"{own.precision} {own.kv_precision}"


def texts(loaded: Loaded, kind: str, batch: int, **options: Any) -> list[list[int]]:
    """Token ids of all prompts."""
    engine = make_engine(loaded, max_batch=batch, **options)
    return [list(done.token_ids) for done in engine.generate(list(PROMPTS), KINDS[kind])]


@pytest.fixture(scope="module")
def expected(loaded: Loaded) -> dict[str, list[list[int]]]:
    return dict(json.loads(FILE.read_text())[key(loaded)])


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_texts(loaded: Loaded, expected: dict[str, Any], kind: str, batch: int) -> None:
    assert texts(loaded, kind, batch, drafter="none") == expected[kind]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafted_texts(loaded: Loaded, expected: dict[str, Any], kind: str, drafter: str) -> None:
    assert texts(loaded, kind, 8, drafter=drafter, nodes=8, depth=4) == expected[kind]


def main() -> None:
    recorded: dict[str, Any] = {}
    for precision in ("file", "fp32"):
        loaded = load_model(precision=precision)
        print(key(loaded), file=sys.stderr)
        recorded[key(loaded)] = {kind: texts(loaded, kind, 1, drafter="none") for kind in KINDS}
    FILE.write_text(json.dumps(recorded, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Golden texts: token ids recorded once, which no change of structure may move.

Bits depend on the arithmetic of a machine (`key`); where it is not recorded yet, drafts and
batches are held against plain decoding here. `python -m tests.real.test_golden` records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import SamplingParams
from paceline.core import processor
from paceline.core.target import RuntimeOptions
from paceline.registry.loaded import Loaded
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
    """The arithmetic that decides the bits: runtime, precisions, kernels, instruction sets."""
    own = loaded.target.capabilities
    wanted = {"avx2", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8"}
    names = sorted(processor.flags() & wanted)
    return " ".join(map(str, (own.precision, own.kv_precision, own.attention, *names)))


def texts(loaded: Loaded, kind: str, batch: int, **options: Any) -> list[list[int]]:
    """Token ids of all prompts."""
    engine = make_engine(loaded, max_batch=batch, **options)
    return [list(done.token_ids) for done in engine.generate(list(PROMPTS), KINDS[kind])]


@pytest.fixture(scope="module")
def expected(loaded: Loaded) -> dict[str, list[list[int]]]:
    recorded = json.loads(FILE.read_text())
    if key(loaded) in recorded:
        return dict(recorded[key(loaded)])
    return {kind: texts(loaded, kind, 1, drafter="none") for kind in KINDS}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_plain_texts(loaded: Loaded, expected: dict[str, Any], kind: str, batch: int) -> None:
    assert texts(loaded, kind, batch, drafter="none") == expected[kind]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_drafted_texts(loaded: Loaded, expected: dict[str, Any], kind: str, drafter: str) -> None:
    assert texts(loaded, kind, 8, drafter=drafter, nodes=8, depth=4) == expected[kind]


def main() -> None:
    """Record the texts of this machine's arithmetic beside those that stand in the file."""
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    for precision in ("int8", "fp32"):
        loaded = load_model(options=RuntimeOptions(precision=precision))
        print(key(loaded), file=sys.stderr)
        recorded[key(loaded)] = {kind: texts(loaded, kind, 1, drafter="none") for kind in KINDS}
    FILE.write_text(json.dumps(recorded, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

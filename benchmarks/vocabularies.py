"""Draft models of other vocabularies on requests of one domain, in order: do they learn?

    python -m benchmarks.vocabularies --model FILE.gguf --draft-model smollm2-135m

Prints, per drafter and quarter of the requests, tokens per forward, the share of drafted tokens
that were accepted, and how many texts are those of plain decoding.
"""

from __future__ import annotations

import argparse
import json
import random

from paceline.registry.loading import load_model, make_engine

ACTIONS = """sums the squares of|removes duplicates from|finds the largest of|reverses|
counts the even|sorts by length|returns the median of|joins with commas|filters the positive|
finds the second smallest of|rotates by k|splits in half|checks whether there are duplicates in|
returns the running total of|groups by first letter|finds the longest of|
counts how often each occurs of|shuffles|returns every third of|compares two"""
THINGS = """a list of integers|a list of words|a tuple of floats|the digits of a number|
the lines of a file|the keys of a dictionary|the characters of a string|a list of dates|
the rows of a matrix|the names in a CSV file"""


def requests() -> list[str]:
    """Return 200 requests for short functions, in a fixed random order."""
    actions, things = (text.replace("\n", "").split("|") for text in (ACTIONS, THINGS))
    found = [f"Write a Python function that {a} {t}." for t in things for a in actions]
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--drafters", default="string-level omnidraft", help="separated by spaces")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.0)
    asked = parser.parse_args()
    loaded, prompts = load_model(asked.model), requests()[: asked.limit]
    options = {"temperature": asked.temperature, "max_new_tokens": asked.tokens}
    plain = make_engine(loaded, drafter="none")
    truth = [plain.generate(p, seed=i, **options).token_ids for i, p in enumerate(prompts)]
    for name in asked.drafters.split():
        engine = make_engine(loaded, drafter=name, draft_model=asked.draft_model, nodes=asked.nodes)
        answers = [engine.generate(p, seed=i, **options) for i, p in enumerate(prompts)]
        same = sum(a.token_ids == ids for a, ids in zip(answers, truth, strict=True))
        quarter = max(1, len(answers) // 4)
        for begin in range(0, len(answers), quarter):
            stats = [answer.stats for answer in answers[begin : begin + quarter]]
            committed, forwards, accepted, drafted = (
                sum(getattr(each, field) for each in stats)
                for field in (
                    "committed_tokens",
                    "target_forwards",
                    "accepted_tokens",
                    "drafted_tokens",
                )
            )
            row = {
                "drafter": name,
                "requests": f"{begin + 1} to {begin + len(stats)}",
                "tokens/forward": round(committed / forwards, 3),
                "accepted": round(accepted / max(1, drafted), 3),
                "identical": f"{same} of {len(answers)}",
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

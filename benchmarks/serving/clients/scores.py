"""The library's own log-likelihoods of a small task, for lm-eval's to be compared with.

python -m benchmarks.serving.clients.scores --model smollm2-135m --out scores.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

ITEMS: list[dict[str, Any]] = [
    {
        "question": f"Question: Tom has {a} apples and gets {b} more. How many has he?\nAnswer:",
        "choices": [str(a + b), str(a + b + 1), f"{a + b} apples"],
        "answer": 0,
    }
    for a in range(3, 13)
    for b in range(2, 7)
]
"""Questions, 50, with beginnings in common, which a prefix cache finds."""


def scores(model: str) -> list[list[float]]:
    """Score every choice of every item, one prompt at a time, without a prefix cache."""
    import paceline
    from paceline.core.types import SamplingParams

    engine = paceline.load(model, drafter="none", prefix_tokens=0)
    ask = SamplingParams(max_new_tokens=0, prompt_logprobs=1)
    found = []
    for item in ITEMS:
        start = len(engine.tokenizer.encode(item["question"]))
        row = []
        for choice in item["choices"]:
            tokens = engine.tokenizer.encode(f"{item['question']} {choice}")
            made = engine.generate(tokens, ask).prompt_logprobs
            row.append(sum(token.logprob for token in made[start - 1 :]))
        found.append(row)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(scores(arguments.model)))

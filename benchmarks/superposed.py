"""Superposed decoding beside greedy text and samples: right answers, likelihood, distinctness.

    python -m benchmarks.superposed

Every way continues the same beginnings by ten tokens. Forwards are those of all its texts together.
*Best* and *mean* are nats per token that the model gives the texts where they stand; *right* is the
share of beginnings of which a text (the first, any) has the answer; *distinct bigrams* is the share
of different ones among those of a beginning's texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from paceline.engine.engine import Engine
from paceline.measure import results
from paceline.measure.prompts import BUILT_IN
from paceline.registry.loading import load_model, make_engine
from paceline.zoo.superposed import suggest

FACTS = (
    ("The capital of France is", "Paris"),
    ("The capital of Japan is", "Tokyo"),
    ("The capital of Italy is", "Rome"),
    ("The capital of Egypt is", "Cairo"),
    ("The largest planet in the solar system is", "Jupiter"),
    ("The planet closest to the sun is", "Mercury"),
    ("The chemical symbol for gold is", "Au"),
    ("The chemical formula of water is", "H2O"),
    ("The longest river in Africa is", "Nile"),
    ("The highest mountain in the world is", "Everest"),
    ("The author of Romeo and Juliet is", "Shakespeare"),
    ("The theory of relativity was developed by", "Einstein"),
    ("The theory of evolution was proposed by", "Darwin"),
    ("The first president of the United States was", "Washington"),
    ("The currency of Japan is the", "yen"),
    ("The language spoken in Brazil is", "Portuguese"),
    ("The largest ocean on Earth is the", "Pacific"),
    ("A year has twelve", "months"),
    ("A triangle has three", "sides"),
    ("The opposite of hot is", "cold"),
    ("The color of the sky on a clear day is", "blue"),
    ("Plants make their food by a process called", "photosynthesis"),
    ("The organ that pumps blood through the body is the", "heart"),
    ("The Great Wall is in", "China"),
)
LENGTH = 10
TITLES = (
    *("way", "texts", "forwards", "nats/token, mean", "nats/token, best"),
    *("right, first", "right, any", "distinct bigrams"),
)
NOTE = (
    f"{len(FACTS)} beginnings whose next words are known, ten tokens each, runtime torch. N-grams "
    "are counted in the prompts of the built-in mix, alpha 0.3."
)
Texts = list[tuple[int, ...]]


def main() -> None:
    """Continue every beginning in every way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=3, help="of a beginning")
    parser.add_argument("--limit", type=int, default=len(FACTS), help="beginnings")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    engine = make_engine(load_model(given.model, runtime="torch"), drafter="none")
    k, corpus = given.texts, [each.turns[0] for each in BUILT_IN]

    def superposed(prompt: str, corpus: Sequence[str] = ()) -> tuple[Texts, int]:
        found = suggest(engine, prompt, k=k, tokens=LENGTH, corpus=corpus)
        return [each.token_ids for each in found.suggestions], found.forwards

    def generated(prompt: str, count: int, **options: float) -> tuple[Texts, int]:
        found = [
            engine.generate(prompt, raw=True, max_new_tokens=LENGTH, seed=seed, **options)
            for seed in range(count)
        ]
        return [each.token_ids for each in found], sum(e.stats.target_forwards for e in found)

    ways = {
        "greedy": lambda prompt: generated(prompt, 1),
        f"samples, top-p 0.9, {k}": lambda prompt: generated(prompt, k, temperature=1.0, top_p=0.9),
        f"superposed, {k}": superposed,
        f"superposed, {k}, n-grams": lambda prompt: superposed(prompt, corpus),
    }
    table: list[list[results.Cell]] = []
    for name, way in ways.items():
        rows = [judged(engine, *fact, *way(fact[0])) for fact in FACTS[: given.limit]]
        figures = [fmean(each) for each in zip(*rows, strict=True)]
        count, forwards, mean, best, first, hit, distinct = figures
        means = round(count), round(forwards, 1), round(mean, 2), round(best, 2)
        table.append([name, *means, f"{first:.0%}", f"{hit:.0%}", round(distinct, 2)])
        print(*table[-1], sep=" | ", flush=True)
    print(results.table(TITLES, table))
    if given.record is not None:
        title = f"Superposed decoding on {given.model}, lossy"
        command = f"python -m benchmarks.superposed --texts {k}"
        results.record(given.record, title, "verifiers-lossy", command, TITLES, table, NOTE)


def judged(
    engine: Engine, prompt: str, answer: str, texts: Texts, forwards: int
) -> tuple[float, ...]:
    """Return the figures of one beginning, in the order of the columns."""
    ids = engine.tokenizer.prompt(prompt, raw=True)
    nats = []
    for text in texts:
        # A text that ended early is judged as far as it goes.
        scored = engine.generate([*ids, *text], prompt_logprobs=0, max_new_tokens=0)
        nats.append(-fmean(each.logprob for each in scored.prompt_logprobs[-len(text) :]))
    right = [answer.lower() in engine.tokenizer.decode(text).lower() for text in texts]
    pairs = [pair for text in texts for pair in pairwise(text)]
    return (
        *(len(texts), forwards, fmean(nats), min(nats), right[0], any(right)),
        len(set(pairs)) / max(1, len(pairs)),
    )


if __name__ == "__main__":
    main()

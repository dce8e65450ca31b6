"""Lexical units over mask rows, by threshold: what they gain, and what they do to the text.

    python -m benchmarks.lexical_units --limit 12

*Units there are* is the mean length of a token with the run of tokens behind it that the model
itself, from left to right, gives more than the threshold: what perfect masks would commit. Seconds
are of the processor, on one thread, by turns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean

from benchmarks.mask_rows import timed

from paceline import Completion
from paceline.core.target import RuntimeOptions
from paceline.engine.engine import Engine
from paceline.measure import results
from paceline.measure.prompts import BUILT_IN, spread
from paceline.registry.loading import load_model, make_engine

TITLES = (
    *("threshold", "units there are", "tokens/forward", "speed", "same texts"),
    *("same beginning", "perplexity"),
)
NOTE = (
    "Greedy, three masks behind the text; the last line is plain decoding. Same beginning is the "
    "share of a text before it leaves the plain one; perplexity is the plain model's, of each text."
)


def main() -> None:
    """Decode with every threshold and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", default="auto", help="file of `paceline train mask-rows`")
    parser.add_argument("--thresholds", type=float, nargs="*", default=[1, 0.9, 0.7, 0.5, 0.3])
    parser.add_argument("--width", type=int, default=3, help="masks behind the text")
    parser.add_argument("--limit", type=int, default=12, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    prompts = [each.turns[0] for each in spread(BUILT_IN, given.limit)]
    options = RuntimeOptions(threads=1, prefix_tokens=0)
    plain = make_engine(load_model(options, model=given.model), drafter="none")
    rows = load_model(options, model=given.model, denoiser={"rows": given.rows})
    samplers = [f"lexical-units:width={given.width},tau={tau:g}" for tau in given.thresholds]
    engines = [*(make_engine(rows, sampler=each) for each in samplers), plain]
    seconds = [0.0] * len(engines)
    texts: list[list[Completion]] = [[] for _ in engines]
    for engine in engines:
        engine.generate(prompts[0], max_new_tokens=4)
    for prompt in prompts:
        for index, engine in enumerate(engines):
            spent, text = timed(
                lambda e=engine, p=prompt: e.generate(  # type: ignore[misc]
                    p, max_new_tokens=given.max_new_tokens, logprobs=0
                )
            )
            seconds[index] += spent
            texts[index].append(text)
    table: list[list[results.Cell]] = []
    for tau, mine, spent in zip([*given.thresholds, None], texts, seconds, strict=True):
        there = None if tau is None else round(units(texts[-1], tau, given.width), 2)
        told: results.Cell = "plain decoding" if tau is None else tau
        speed = round(seconds[-1] / spent, 2)
        table.append([told, there, *figures(mine, texts[-1], speed, plain, prompts)])
    print(results.table(TITLES, table))
    if given.record is not None:
        command = (
            f"python -m benchmarks.lexical_units --limit {given.limit} "
            f"--max-new-tokens {given.max_new_tokens}"
        )
        title = f"Lexical units (LUD) on {given.model}, lossy"
        results.record(given.record, title, "canvas", command, TITLES, table, NOTE)


def units(texts: Sequence[Completion], tau: float, width: int) -> float:
    """Return the mean length of a unit: a token, and up to `width` above `tau` behind it."""
    lengths = []
    for text in texts:
        probs, at = [math.exp(each.logprob) for each in text.logprobs], 0
        while at < len(probs):
            behind = probs[at + 1 : at + 1 + width]
            lengths.append(1 + len(list(takewhile(lambda p: p > tau, behind))))
            at += lengths[-1]
    return fmean(lengths)


def figures(
    mine: Sequence[Completion],
    plain: Sequence[Completion],
    speed: float,
    engine: Engine,
    prompts: Sequence[str],
) -> list[results.Cell]:
    """Return the columns from tokens per forward on."""
    tokens = sum(len(each.token_ids) for each in mine)
    pairs = list(zip(mine, plain, strict=True))
    alike = sum(a.token_ids == b.token_ids for a, b in pairs)
    begun = sum(
        len(list(takewhile(lambda x: x[0] == x[1], zip(a.token_ids, b.token_ids, strict=False))))
        for a, b in pairs
    )
    nats = 0.0
    for prompt, text in zip(prompts, mine, strict=True):
        # What the plain model thinks of the text where it stands.
        given = dict(enumerate(text.token_ids))
        asked = engine.generate(
            prompt, max_new_tokens=len(given), forced_tokens=given, logprobs=0, ignore_eos=True
        )
        nats -= sum(each.logprob for each in asked.logprobs)
    return [
        round(tokens / sum(each.stats.target_forwards for each in mine), 2),
        speed,
        f"{alike / len(mine):.0%}",
        f"{begun / tokens:.0%}",
        round(math.exp(nats / tokens), 2),
    ]


if __name__ == "__main__":
    main()

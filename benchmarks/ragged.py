"""A batch of drafts on transformers: is a text that of its prompt alone, and what is padded?

    python -m benchmarks.ragged --model smollm2-135m --record docs/results/data

Prompts are decoded one by one, together, and together with `pool` (EXSPEC: sequences of equal
length step without the others). Counts steps, those whose sequences have accepted different numbers
of tokens, after which left-padded caches must be realigned (EQSPEC), and those without padding.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.prompts import BUILT_IN, spread
from paceline.lab.measure.run import together
from paceline.registry import loading
from paceline.registry.options import Options

COLUMNS = ("way", "same texts", "tokens/forward", "steps", "sequences a step")
COLUMNS += ("steps of equal length", "steps to realign after", "rows padded, at the end")


def watched(engine: Any) -> list[tuple[int, bool, bool, float]]:
    """Note of each step: sequences, equal lengths before, equal gains, share of padding."""
    seen, step = [], engine.decoder.step

    def noted(sequences: Any, *given: Any, **named: Any) -> Any:
        before = [len(each.tokens) for each in sequences]
        done = step(sequences, *given, **named)
        after = [len(each.tokens) for each in sequences]
        if before:
            gains = {new - old for new, old in zip(after, before, strict=True)}
            padding = 1 - sum(after) / (max(after) * len(after))
            seen.append((len(before), len(set(before)) == 1, len(gains) == 1, padding))
        return done

    engine.decoder.step = noted
    return seen


def main() -> None:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(prog="ragged", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--record", type=Path, help="folder of results")
    given = parser.parse_args()
    asked = Options(model=given.model, runtime="transformers", drafter="suffix-automaton")
    loaded = loading.load_model(asked)
    texts, rows = list[tuple[int, ...]](), []
    prompts = [each.turns[0] for each in spread(BUILT_IN, given.prompts)]
    ways = {"one by one": (1, None), "together": (len(prompts), None), "pool=2": (len(prompts), 2)}
    for way, (batch, pool) in ways.items():
        engine = loading.make_engine(
            loaded, asked, max_batch=batch, pool=pool, nodes=5, depth=5, progress=False
        )
        seen = watched(engine)
        prepared = [engine.prepare(each, max_new_tokens=given.tokens) for each in prompts]
        done = together(engine, prepared)
        found = [tuple(each.token_ids) for each in done]
        texts = texts or found
        sizes, equal, even, padding = map(list, zip(*seen, strict=True))
        several = [i for i, size in enumerate(sizes) if size > 1]
        forwards = sum(each.stats.target_forwards for each in done)
        rows.append(
            [
                way,
                sum(a == b for a, b in zip(found, texts, strict=True)),
                round(sum(map(len, found)) / forwards, 2),
                len(sizes),
                round(sum(sizes) / len(sizes), 2),
                f"{sum(equal[i] for i in several) / len(several):.0%}" if several else "",
                f"{sum(not even[i] for i in several) / len(several):.0%}" if several else "",
                f"{max(padding):.0%}" if several else "",
            ]
        )
    print(dumps({"columns": COLUMNS, "rows": rows}, indent=1))
    if given.record:
        results.record(
            given.record / "batches-ragged.json",
            "Batches of drafts on transformers, beside each prompt alone",
            "batching",
            f"python -m benchmarks.ragged --model {given.model}",
            COLUMNS,
            rows,
            f"{given.prompts} prompts of {given.tokens} tokens, greedy, fp32, five drafted by "
            "`suffix-automaton`. *Same texts*: as one by one. EQSPEC realigns all caches after "
            "such a step, 40% of its time by the paper; here keys lie at the front of their row "
            "and none is moved. EXSPEC's groups are `pool=2`: of equal length, or all.",
            {
                "same texts together": rows[1][1],
                "with pool=2": rows[2][1],
                "steps, together": rows[1][3],
                "pooled": rows[2][3],
            },
        )


if __name__ == "__main__":
    main()

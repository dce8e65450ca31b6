"""Samplers of a model that drafts for itself by mask rows, by turns with plain decoding.

    python -m benchmarks.mask_rows --limit 8 --record docs/results/data/canvas-mask-rows.json

Seconds are of the processor, on one thread, since a shared machine's clock says more of others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from paceline import Completion
from paceline.core.target import RuntimeOptions
from paceline.engine.engine import Engine
from paceline.measure import results
from paceline.measure.prompts import BUILT_IN, spread
from paceline.registry.loading import load_model, make_engine

SAMPLERS = ("tidar:width=1", "tidar:width=2", "tidar:width=3", "linear-spec:width=3")
MORE = "tidar:width=3,prune=0.01"
TITLES = (
    *("sampler", "mode", "tokens/forward", "rows/forward", "speed", "speed, batch 8"),
    *("texts of plain decoding", "batch 8 = alone"),
)
NOTE = (
    "Plain decoding is the same model without mask rows: one token and one row a forward. Seconds "
    "of the processor by turns, prompts included. Every mask row is a row more, and each candidate "
    "of TiDAR has a group of its own, so a processor pays for width squared. prune is FlexDraft's."
)


def main() -> None:
    """Decode with every sampler and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", default="auto", help="file of `paceline train mask-rows`")
    parser.add_argument("--samplers", nargs="*", default=[*SAMPLERS, MORE])
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 1.0])
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    prompts = [each.turns[0] for each in spread(BUILT_IN, given.limit)]
    options = RuntimeOptions(threads=1, prefix_tokens=0)
    plain = make_engine(load_model(options, model=given.model), drafter="none")
    rows = load_model(options, model=given.model, denoiser={"rows": given.rows})
    engines = {each: make_engine(rows, sampler=each) for each in given.samplers}
    found = []
    for temperature in given.temperatures:
        params = {"temperature": temperature, "max_new_tokens": given.max_new_tokens, "seed": 1}
        for name, figures in compare(plain, engines, prompts, params).items():
            mode = f"T = {temperature:g}" if temperature else "greedy"
            found.append([name, mode, *figures])
            print(*found[-1], sep=" | ", flush=True)
    print(results.table(TITLES, found))
    if given.record is not None:
        command = (
            f"python -m benchmarks.mask_rows --limit {given.limit} "
            f"--max-new-tokens {given.max_new_tokens}"
        )
        title = f"Mask rows on {given.model}"
        results.record(given.record, title, "canvas", command, TITLES, found, NOTE)


def compare(
    plain: Engine, engines: dict[str, Engine], prompts: Sequence[str], params: dict[str, Any]
) -> dict[str, list[Any]]:
    """Return the columns behind the mode, by sampler."""
    every = {"plain": plain, **engines}
    for engine in every.values():
        engine.generate(prompts[0], max_new_tokens=4)
    texts: dict[str, list[Completion]] = {name: [] for name in every}
    alone, together = dict.fromkeys(every, 0.0), dict.fromkeys(every, 0.0)
    for prompt in prompts:
        for name, engine in every.items():
            seconds, text = timed(lambda e=engine, p=prompt: e.generate(p, **params))  # type: ignore[misc]
            alone[name] += seconds
            texts[name].append(text)
    batch: dict[str, list[Completion]] = {}
    for name, engine in every.items():
        together[name], batch[name] = timed(lambda e=engine: e.generate(list(prompts), **params))  # type: ignore[misc]
    out = {}
    for name in engines:
        mine = [list(each.token_ids) for each in texts[name]]
        own = sum(mine[i] == list(each.token_ids) for i, each in enumerate(texts["plain"]))
        same = sum(mine[i] == list(each.token_ids) for i, each in enumerate(batch[name]))
        forwards = sum(each.stats.target_forwards for each in texts[name])
        evaluated = sum(each.stats.position_evaluations for each in texts[name])
        read = sum(each.prompt_tokens for each in texts[name])
        out[name] = [
            round(sum(map(len, mine)) / forwards, 2),
            round((evaluated - read) / forwards, 1),
            round(alone["plain"] / alone[name], 2),
            round(together["plain"] / together[name], 2),
            f"{own / len(prompts):.0%}",
            f"{same / len(prompts):.0%}",
        ]
    return out


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = process_time()
    done = work()
    return process_time() - begin, done


if __name__ == "__main__":
    main()

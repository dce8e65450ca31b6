"""Schedules of a draft model and a target: simulated, measured here, and asked of other machines.

    python -m benchmarks.schedules --model FILE.gguf --draft-model FILE.gguf --threads 1

Costs of both models, what each costs while the other works, and the chance that a drafted token
stands are measured. The simulator then foretells drafter `draft-model` (sequential) and `pearl`,
which are measured by turns. With --threads 1 each model has a core. Other machines are assumptions,
printed with their figures: 8 cores with twice this memory's speed for each model (two sockets), and
a GPU, whose forward costs the same over 32 rows, with the draft model on the processor beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from threading import Event, Thread
from time import perf_counter
from typing import Any

from benchmarks.hierarchy import chance, figures

from paceline.core.target import Pass, RuntimeOptions, Target
from paceline.errors import PacelineError
from paceline.measure.machine import dumps, machine
from paceline.registry.loading import load_model
from paceline.zoo.schedules.simulator import (
    SCHEDULES,
    Setting,
    best_length,
    pearl_adaptive,
    plain,
    seconds_per_token,
    sequential,
)

STEPS = 24


def pace(target: Target, prompt: Sequence[int], stop: Event | None = None) -> float:
    """Seconds of a plain step; with `stop`, on and on until it is set."""
    cache = target.open()
    target.prefill(cache, prompt[:-1])
    token, count, begin = prompt[-1], 0, perf_counter()
    while count < STEPS if stop is None else not stop.is_set():
        [output] = target.forward([Pass(cache, [token])])
        target.keep(cache, 1, ())
        token = int(output.logits[0].argmax())
        count += 1
    seconds = (perf_counter() - begin) / max(1, count)
    target.release(cache)
    return seconds


def beside(target: Target, other: Target, prompt: Sequence[int]) -> tuple[float, float]:
    """Seconds of a plain step of `target`, alone and while `other` decodes."""
    alone = pace(target, prompt)
    stop = Event()
    thread = Thread(target=pace, args=(other, prompt, stop))
    thread.start()
    together = pace(target, prompt)
    stop.set()
    thread.join()
    return alone, together


def elsewhere(here: Setting) -> dict[str, dict[str, list[Any]]]:
    """Best draft length and speed-up over plain decoding, by machine and schedule."""
    one = here.target(1)
    machines = {
        "8 cores, each model with memory of its own": replace(
            here, target=lambda rows: here.target(rows) / 2, draft=here.draft / 2
        ),
        "target on a GPU (32 rows as one), draft model on it, too": replace(
            here, target=lambda rows: one / 20 * max(1.0, rows / 32), draft=here.draft / 20
        ),
        "target on a GPU, draft model on the processor (Dovetail, reversed)": replace(
            here, target=lambda rows: one / 20 * max(1.0, rows / 32), link=2e-5
        ),
        "target on the processor, draft model on a GPU (Dovetail)": replace(
            here, draft=here.draft / 20, link=2e-5
        ),
    }
    out = {}
    for name, setting in machines.items():
        base = seconds_per_token(plain, setting)
        out[name] = {
            schedule: [length, round(base / seconds, 2)]
            for schedule, each in SCHEDULES.items()
            if schedule != "plain"
            for length, seconds in [best_length(each, setting)]
        }
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, simulate, compare."""
    parser = argparse.ArgumentParser(prog="schedules", description="Schedules, simulated.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--limit", type=int, default=4, help="prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=4, help="of sequential drafts")
    parser.add_argument("--threads", type=int, default=1, help="of each model")
    given = parser.parse_args(argv)
    options, draft = RuntimeOptions(threads=given.threads), given.draft_model
    fixed = {"depth": given.depth, "nodes": given.depth, "draft_model": draft}
    names = ("draft-model", "pearl:most=8")
    try:
        small, large = load_model(draft, options=options), load_model(given.model, options=options)
        prompt = large.tokenizer.encode("The harbour of Lind was built in 1871 by fishermen.")
        alone, together = beside(large.target, small.target, prompt)
        own, own_together = beside(small.target, large.target, prompt)
        measured = figures(
            large,
            {names[0]: fixed, names[1]: {"depth": 8, "nodes": 8, "draft_model": draft}},
            given.limit,
            given.tokens,
        )
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    slowdown = {"target": max(1.0, together / alone), "draft": max(1.0, own_together / own)}
    costs = large.costs
    here = Setting(
        target=lambda rows: alone * costs.c(rows),
        draft=own,
        chance=chance(measured[names[0]]["block_efficiency"], given.depth),
        length=given.depth,
    )
    base = seconds_per_token(plain, here)
    foretold = {
        names[0]: base / seconds_per_token(sequential, here),
        names[1]: base
        / seconds_per_token(pearl_adaptive, replace(here, length=8), slowdown=slowdown),
    }
    result = {
        "machine": machine(),
        "forward": alone,
        "forward_beside_the_other": together,
        "drafted_token": own,
        "drafted_token_beside_the_other": own_together,
        "slowdown": slowdown,
        "chance": here.chance,
        "c_n": costs.curve(),
        "foretold_and_measured": {
            name: [foretold[name], measured[name]["speedup"]] for name in names
        },
        "identical": min(each["identical"] for each in measured.values()),
        "without_shared_memory": base / seconds_per_token(pearl_adaptive, replace(here, length=8)),
        "elsewhere": elsewhere(here),
    }
    print(dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

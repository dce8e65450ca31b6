"""The best hierarchy of suffix drafts, a draft model and a target, foretold and measured.

    python -m benchmarks.hierarchy --model FILE.gguf --draft-model FILE.gguf

Forwards are timed by size, and the chance that a drafted token stands is measured for every pair
(drafts of a fixed depth, greedy, on the built-in prompts). The recursion of HSD (Mohri et al.
2025, arXiv:2510.19705) then tells seconds per token of every hierarchy; the ones that can be run
are measured by turns with plain decoding.

With a chance a that a token of the model below stands, drafts of n tokens bring
1 + a + ... + a^n tokens a round, at the time of n tokens of the model below and of one forward
over n + 1 rows. So the seconds per token of a stack follow from those of the stack below, and more
of these never help: the best stack under each model is a shortest path.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from paceline.core.options import require
from paceline.core.target import RuntimeOptions
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PacelineError
from paceline.measure.agent import Dialogues
from paceline.measure.machine import dumps, machine
from paceline.measure.prompts import BUILT_IN, spread
from paceline.measure.report import rows
from paceline.measure.run import Record, read_alike, run, warm_up
from paceline.registry.loaded import Loaded
from paceline.registry.loading import load_model, make_engine

NAMES = ("suffix drafts", "draft model", "target")
COPY_SECONDS = 2e-5
"""Of a suffix draft, per token (docs/results/drafters.md)."""


Seconds = Callable[[int], float]
"""Time of a model's forward over some rows."""


class Stack(NamedTuple):
    """Models from the bottom up, tokens that each asks of the one below (0 of the lowest), and
    seconds per token of the whole."""

    models: tuple[int, ...]
    drafts: tuple[int, ...]
    seconds: float


def tokens_per_round(chance: float, drafted: int) -> float:
    """Return 1 + a + ... + a^n, for a chance in [0, 1]."""
    return sum(chance**n for n in range(drafted + 1))


def seconds_per_token(below: float, forward: Seconds, chance: float, drafted: int) -> float:
    """Return the latency recursion's step: a model over a stack that takes `below` a token."""
    return (drafted * below + forward(drafted + 1)) / tokens_per_round(chance, drafted)


def best_stack(
    forwards: Sequence[Seconds], chances: Sequence[Sequence[float]], longest: int = 16
) -> Stack:
    """Return the stack of least latency whose top is the last model.

    Args:
        forwards: by model, the target last.
        chances: `[model][below]`, chance that a token of `below` stands in the text of `model`;
            entries from `model` on are not read.
        longest: most tokens drafted a round.

    Raises:
        InvalidOption: no model, chances that are none, or missing ones.
    """
    if not forwards:
        raise InvalidOption("a hierarchy needs a model: give the forwards of one or more")
    require(longest >= 1, "longest", longest, "1 or more")
    if len(chances) != len(forwards) or any(len(row) < i for i, row in enumerate(chances)):
        raise InvalidOption(
            f"{len(forwards)} models need a row of chances each, with one for every model below"
        )
    best: list[Stack] = []
    for model, forward in enumerate(forwards):
        found = [Stack((model,), (0,), forward(1))]
        for below, stack in enumerate(best):
            chance = chances[model][below]
            require(0 <= chance <= 1, f"chance of {below} below {model}", chance, "in [0, 1]")
            found += [
                Stack(
                    (*stack.models, model),
                    (*stack.drafts, drafted),
                    seconds_per_token(stack.seconds, forward, chance, drafted),
                )
                for drafted in range(1, longest + 1)
            ]
        best.append(min(found, key=lambda each: each.seconds))
    return best[-1]


def chance(per_forward: float, drafted: int) -> float:
    """The chance per token with which drafts of a depth bring so many tokens a forward."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if tokens_per_round(middle, drafted) < per_forward else (low, middle)
        )
    return low


def figures(
    loaded: Loaded, drafters: dict[str, dict[str, Any]], limit: int, tokens: int
) -> dict[str, dict[str, Any]]:
    """Rows by drafter, measured by turns with plain decoding on the first prompts."""
    costs = loaded.measured_costs
    engines = {
        name: make_engine(loaded, drafter=name, spare_draft=True, progress=False, **options)
        for name, options in {"none": dict[str, Any](), **drafters}.items()
    }
    read_alike(engines.values(), costs)
    work = Dialogues(spread(BUILT_IN, limit))
    warm_up(engines, work.opening)
    records: list[Record] = []
    for finished in run(engines, work, SamplingParams(max_new_tokens=tokens)):
        records += finished
    found = rows(records, dict.fromkeys(engines, True))
    return {each["drafter"]: each for each in found if each["category"] == "all"}


def forward(loaded: Loaded) -> Seconds:
    """Seconds of a forward by rows."""
    return lambda count: float(loaded.measured_costs.time(count))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, foretell, compare."""
    parser = argparse.ArgumentParser(prog="hierarchy", description="The best hierarchy.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--limit", type=int, default=4, help="prompts")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--depth", type=int, default=4, help="of drafts that chances are from")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args(argv)
    depth, draft = given.depth, given.draft_model
    try:
        options = RuntimeOptions(threads=given.threads)
        small, target = load_model(options, model=draft), load_model(options, model=given.model)
        fixed = {"depth": depth, "nodes": depth}
        below = figures(small, {"suffix-automaton": fixed}, given.limit, given.tokens)
        above = figures(
            target,
            {
                "suffix-automaton": fixed,
                "draft-model": fixed | {"draft_model": draft},
                "cascade:bottom=suffix-automaton,nodes=4": fixed | {"draft_model": draft},
            },
            given.limit,
            given.tokens,
        )
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chances = [
        [],
        [chance(below["suffix-automaton"]["block_efficiency"], depth)],
        [
            chance(above[name]["block_efficiency"], depth)
            for name in ("suffix-automaton", "draft-model")
        ],
    ]
    times: list[Seconds] = [lambda rows: COPY_SECONDS * rows, forward(small), forward(target)]
    best = best_stack(times, chances)
    plain = times[2](1)
    copied = seconds_per_token(COPY_SECONDS, times[1], chances[1][0], 4)
    foretold = {
        "suffix-automaton": seconds_per_token(COPY_SECONDS, times[2], chances[2][0], depth),
        "draft-model": seconds_per_token(times[1](1), times[2], chances[2][1], depth),
        "cascade:bottom=suffix-automaton,nodes=4": seconds_per_token(
            copied, times[2], chances[2][1], depth
        ),
    }
    out = {
        "machine": machine(),
        "chances": chances,
        "best": [NAMES[each] for each in best.models],
        "best_drafts": best.drafts,
        "best_speedup": plain / best.seconds,
        "foretold_and_measured": {
            name: [plain / seconds, above[name]["speedup"]] for name, seconds in foretold.items()
        },
        "identical": min(each["identical"] for each in above.values()),
    }
    print(dumps(out, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

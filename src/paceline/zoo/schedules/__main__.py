"""Measure schedules on a pair of models, compare the simulator with it, and ask it for others.

python -m paceline.zoo.schedules TARGET DRAFT --facts FILE --data docs/results/data
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.measure.results import Cell
from paceline.policy.controller import Fixed
from paceline.registry.loading import load_draft, load_model
from paceline.sampling.sequence import Sequence
from paceline.verifiers.matching import Coupled
from paceline.zoo.schedules.dovetail import Dovetail
from paceline.zoo.schedules.drafting import Chains, Here, Process
from paceline.zoo.schedules.easyspec import EasySpec, FuzzyChains
from paceline.zoo.schedules.measuring import curve, side_by_side, truth_of
from paceline.zoo.schedules.mirror import Mirror
from paceline.zoo.schedules.pearl import Pearl
from paceline.zoo.schedules.simulator import SCHEDULES, Costs, Curve, Truth

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in three sentences what a hash table is.",
    "Write a Python class for a stack with push, pop and peek.",
    "What is the difference between a process and a thread?",
    "Write a SQL query that counts orders per customer.",
    "Give five tips for writing readable code.",
)
ROWS = [1, 2, 3, 4, 5, 8]
GROUPS = (2, 4)
FUZZY = 2  # prompts that fuzzy drafts are counted on

# Name, schedule, threads of each model, window.
RUNS = (
    ("plain, 1 thread", "plain", 1, 0),
    ("plain, 2 threads", "plain", 2, 0),
    ("sequential, 1 thread", "sequential", 1, 3),
    ("sequential, 2 threads", "sequential", 2, 3),
    ("pearl, 1 and 1 thread", "pearl", 1, 3),
    ("mirror-sd, 1 and 1 thread", "mirror-sd", 1, 3),
)


def measure(names: tuple[str, str], tokens: int, prompts: int, turns: int) -> dict[str, Any]:
    """Run every schedule on every prompt by turns, and measure costs between.

    Each step's time is the fastest of its turns, since its rows are the same in all.
    """
    loaded = load_model(names[0], progress=False)
    draft: Any = load_draft(loaded, names[1], progress=False).target
    target: Any = loaded.target
    draft.threads = 1
    worker, here = Process(Chains(draft)), Here(Chains(draft))
    layers = loaded.source.config.layers
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    makers: dict[str, Callable[[int, int], Drafter]] = {
        "plain": lambda threads, window: NoDrafter(),
        "sequential": lambda t, w: Dovetail(worker if t == 1 else here, window=w),
        "pearl": lambda t, w: Pearl(worker, window=w),
        "mirror-sd": lambda t, w: Mirror(worker, target=target, layers=layers, window=w),
    }

    def decode(prompt: list[int], drafter: Drafter) -> tuple[Sequence, list[float]]:
        stops, sizes = StopRules((), target.capabilities.max_context), Fixed(16, 16)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), sizes, stops)
        sequence, seconds = Sequence.start(0, prompt, params), []
        decoder.open(sequence)
        while sequence.finish_reason is None:
            start = perf_counter()
            decoder.step([sequence])
            seconds.append(perf_counter() - start)
        decoder.close(sequence)
        return sequence, seconds

    def turn(prompt: list[int], text: list[int], each: dict[str, Any]) -> None:
        for count in ("1", "2"):
            target.threads = draft.threads = int(count)
            pair = [curve(model, prompt, ROWS, 3).seconds for model in (target, draft)]
            lowest = each["costs"].get(count, pair)
            each["costs"][count] = np.minimum(pair, lowest).tolist()
        target.threads = draft.threads = 1
        both = side_by_side(target, worker, prompt, 2)
        each["costs"]["both"] = np.minimum(both, each["costs"].get("both", both)).tolist()
        for name, kind, threads, window in RUNS:
            target.threads = draft.threads = threads
            drafter = makers[kind](threads, window)
            done, seconds = decode(prompt, drafter)
            assert done.generated == text, f"{name} changed the text"
            stats, before = done.stats, each["runs"].get(name, {"steps": seconds})
            each["runs"][name] = {
                "steps": np.minimum(seconds, before["steps"]).tolist(),
                "counts": [
                    stats.target_forwards,
                    stats.target_forwards + stats.drafted_tokens,
                    stats.accepted_tokens,
                ],
                **({"waited": drafter.misses} if isinstance(drafter, Mirror) else {}),
            }

    texts = []
    for at, question in enumerate(PROMPTS[:prompts]):
        prompt = loaded.tokenizer.prompt(question)
        each: dict[str, Any] = {"costs": {}, "runs": {}, "easyspec": {}}
        text = decode(prompt, NoDrafter())[0].generated
        truth = truth_of(target, draft, prompt, text, params, exit=layers // 2)
        each["truth"] = truth.__dict__
        for index in range(turns):
            print(f"prompt {at + 1} of {prompts}, turn {index + 1} of {turns}", file=sys.stderr)
            turn(prompt, text, each)
        for group in GROUPS if at < FUZZY else ():
            print(f"prompt {at + 1} of {prompts}, easyspec:group={group}", file=sys.stderr)
            done, _ = decode(prompt, EasySpec(Here(FuzzyChains(draft, group=group)), window=3))
            assert done.generated == text, f"easyspec:group={group} changed the text"
            each["easyspec"][str(group)] = [done.stats.target_forwards, done.stats.accepted_tokens]
        texts.append(each)
    worker.stop()
    return {"tokens": tokens, "texts": texts}


def costs_of(facts: dict[str, Any], threads: int) -> Costs:
    """Return the costs of one prompt's minute."""
    target, draft = facts["costs"][str(threads)]
    alone, drafting, busy, beside = facts["costs"]["both"]
    slowed = max(1.0, busy / alone), max(1.0, beside / drafting)
    return Costs(Curve(ROWS, target), Curve(ROWS, draft), slowed=slowed)


def compared(facts: dict[str, Any]) -> list[list[Cell]]:
    """Return a row per run: measured and predicted, and whether all steps were as predicted."""
    rows: list[list[Cell]] = []
    plainly = [sum(each["runs"]["plain, 2 threads"]["steps"]) for each in facts["texts"]]
    for name, kind, threads, window in RUNS:
        times, errors, against, same, forwards = [], [], [], True, 0
        for each, before in zip(facts["texts"], plainly, strict=True):
            run = SCHEDULES[kind](Truth(**each["truth"]), costs_of(each, threads), window)
            real, seconds = each["runs"][name], sum(each["runs"][name]["steps"])
            same &= [run.forwards, run.rows, run.accepted] == real["counts"]
            same &= real.get("waited", run.waited) == run.waited
            times.append(1e3 * seconds / run.tokens)
            errors.append(run.seconds / seconds)
            against.append(before / seconds)
            forwards += run.forwards
        rows.append(
            [
                name,
                round(facts["tokens"] * len(times) / forwards, 2),
                round(median(times), 1),
                round(median(against), 2),
                "yes" if same else "no",
                round(median(errors), 2),
                f"{min(errors):.2f} to {max(errors):.2f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="paceline.zoo.schedules", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--facts", type=Path, required=True, help="what was measured; made first")
    parser.add_argument("--data", type=Path, help="folder of result files to write")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    if not args.facts.exists():
        facts = measure((args.target, args.draft), args.tokens, args.prompts, args.turns)
        args.facts.write_text(json.dumps(facts), encoding="utf-8")
    facts = json.loads(args.facts.read_text(encoding="utf-8"))
    for row in compared(facts):
        print(*row, sep="\t")


if __name__ == "__main__":
    main()

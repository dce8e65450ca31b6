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
from typing import Any

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
GROUPS = (1, 2, 3, 4)

# Name, schedule, threads of target and of draft model, window.
RUNS = (
    ("plain, 1 thread", "plain", 1, 1, 0),
    ("plain, 2 threads", "plain", 2, 2, 0),
    ("sequential, 1 thread", "sequential", 1, 1, 3),
    ("sequential, 2 threads", "sequential", 2, 2, 3),
    ("pearl, 1 and 1 thread", "pearl", 1, 1, 3),
    ("mirror-sd, 1 and 1 thread", "mirror-sd", 1, 1, 3),
)


def measure(names: tuple[str, str], tokens: int, prompts: int) -> dict[str, Any]:
    """Run every schedule on every prompt by turns, with the costs of that minute."""
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

    def decode(prompt: list[int], drafter: Drafter) -> tuple[list[int], dict[str, Any]]:
        stops, sizes = StopRules((), target.capabilities.max_context), Fixed(16, 16)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), sizes, stops)
        sequence = Sequence.start(0, prompt, params)
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        decoder.close(sequence)
        stats = sequence.stats
        seconds = stats.draft_seconds + stats.forward_seconds + stats.overhead_seconds
        found = {
            "seconds": seconds,
            "forwards": stats.target_forwards,
            "rows": stats.target_forwards + stats.drafted_tokens,
            "accepted": stats.accepted_tokens,
        }
        if isinstance(drafter, Mirror):
            found["waited"] = drafter.misses
        return sequence.generated, found

    texts = []
    for at, question in enumerate(PROMPTS[:prompts]):
        print(f"prompt {at + 1} of {prompts}", file=sys.stderr)
        prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": question}])
        target.threads = 1
        text, _ = decode(prompt, NoDrafter())
        truth = truth_of(target, draft, prompt, text, params, exit=layers // 2)
        each: dict[str, Any] = {"truth": truth.__dict__, "runs": {}, "costs": {}, "easyspec": {}}
        for threads in (1, 2):
            target.threads = draft.threads = threads
            each["costs"][str(threads)] = [
                curve(target, prompt, ROWS, 3).seconds,
                curve(draft, prompt, ROWS, 3).seconds,
            ]
        target.threads = draft.threads = 1
        each["costs"]["both"] = side_by_side(target, worker, prompt, 3)
        for name, kind, threads, draft_threads, window in RUNS:
            target.threads, draft.threads = threads, draft_threads
            found, each["runs"][name] = decode(prompt, makers[kind](threads, window))
            assert found == text, f"{name} changed the text"
        target.threads = draft.threads = 2
        for group in GROUPS if at < 3 else ():
            found, counts = decode(prompt, EasySpec(Here(FuzzyChains(draft, group=group))))
            assert found == text, f"easyspec:group={group} changed the text"
            each["easyspec"][str(group)] = counts
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
    for name, kind, threads, _, window in RUNS:
        times, errors, forwards, steps, against = [], [], 0, True, []
        for each in facts["texts"]:
            truth = Truth(**each["truth"])
            run = SCHEDULES[kind](truth, costs_of(each, threads), window)
            real = each["runs"][name]
            counts = run.forwards, run.rows, run.accepted
            steps &= counts == (real["forwards"], real["rows"], real["accepted"])
            steps &= real.get("waited", run.waited) == run.waited
            times.append(1e3 * real["seconds"] / run.tokens)
            errors.append(run.seconds / real["seconds"])
            forwards += real["forwards"]
            against.append(each["runs"]["plain, 2 threads"]["seconds"] / real["seconds"])
        spread = f"{min(errors):.2f} to {max(errors):.2f}"
        total = facts["tokens"] * len(facts["texts"])
        rows.append(
            [
                name,
                round(total / forwards, 2),
                round(median(times), 1),
                round(median(errors), 2),
                spread,
                "yes" if steps else "no",
                round(median(against), 2),
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
    args = parser.parse_args()
    if not args.facts.exists():
        facts = measure((args.target, args.draft), args.tokens, args.prompts)
        args.facts.write_text(json.dumps(facts), encoding="utf-8")
    facts = json.loads(args.facts.read_text(encoding="utf-8"))
    for row in compared(facts):
        print(*row, sep="\t")


if __name__ == "__main__":
    main()

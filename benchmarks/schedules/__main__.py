"""Measure schedules on a pair of models, compare the simulator with it, and ask it for others.

python -m benchmarks.schedules TARGET DRAFT --facts FILE --data docs/results/data
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from collections.abc import Sequence as List
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from benchmarks.schedules.machines import GOAL, asked, chance, self_speculation
from benchmarks.schedules.measuring import curve, joined, side_by_side, truth_of
from benchmarks.schedules.simulator import SCHEDULES, Costs, Curve, Truth

from paceline.core.target import Target
from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.measure.results import Cell, record, table
from paceline.policy.controller import Fixed
from paceline.registry.loading import load_draft, load_model
from paceline.sampling.sequence import Sequence
from paceline.verifiers.matching import Coupled
from paceline.zoo.schedules.dovetail import Dovetail
from paceline.zoo.schedules.drafting import ChainDrafting, DraftProcess, Here, Reply
from paceline.zoo.schedules.easyspec import EasySpec, FuzzyChains
from paceline.zoo.schedules.mirror import Mirror
from paceline.zoo.schedules.pearl import Pearl

PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Explain in three sentences what a hash table is.",
    "Write a Python class for a stack with push, pop and peek.",
    "What is the difference between a process and a thread?",
    "Write a SQL query that counts orders per customer.",
    "Give five tips for writing readable code.",
)
ROWS = [1, 2, 3, 4, 5, 8]
GROUPS = (1, 2, 4)

# Name, schedule, threads of each model, window.
RUNS = (
    ("plain, 1 thread", "plain", 1, 0),
    ("plain, 2 threads", "plain", 2, 0),
    ("sequential, 1 thread", "sequential", 1, 3),
    ("sequential, 2 threads", "sequential", 2, 3),
    ("pearl, 1 and 1 thread", "pearl", 1, 3),
    ("mirror-sd, 1 and 1 thread", "mirror-sd", 1, 3),
)


class _Timed(DraftProcess):
    # Notes the processor seconds of each answer.

    def __init__(self, chains: ChainDrafting) -> None:
        super().__init__(chains)
        self.work: list[float] = []

    def receive(self) -> Reply:
        reply = super().receive()
        self.work.append(reply.work)
        return reply


def _decode(
    target: Target, prompt: list[int], drafter: Drafter, params: SamplingParams
) -> tuple[Sequence, list[tuple[float, float]]]:
    # With seconds and processor seconds of each step.
    stops, sizes = StopRules((), target.capabilities.max_context), Fixed(16, 16)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), sizes, stops)
    sequence, steps = Sequence.start(0, prompt, params), []
    decoder.open(sequence)
    while sequence.finish_reason is None:
        start = perf_counter(), process_time()
        decoder.step([sequence])
        steps.append((perf_counter() - start[0], process_time() - start[1]))
    decoder.close(sequence)
    return sequence, steps


def fuzzy(names: tuple[str, str], facts: dict[str, Any], prompts: int) -> None:
    """Add forwards and accepted tokens of exact and grouped drafts, by group, on some prompts."""
    loaded = load_model(names[0], progress=False)
    draft = load_draft(loaded, names[1], progress=False).target
    params = SamplingParams(max_new_tokens=facts["tokens"], ignore_eos=True)
    found: dict[str, Any] = {}
    for question in PROMPTS[:prompts]:
        prompt = loaded.tokenizer.prompt(question)
        for group in GROUPS:
            print(f"easyspec:group={group}", file=sys.stderr)
            chains = FuzzyChains(draft, group=group) if group > 1 else ChainDrafting(draft)
            drafter = EasySpec(Here(chains), window=3)
            stats = _decode(loaded.target, prompt, drafter, params)[0].stats
            counts = [stats.target_forwards, stats.drafted_tokens, stats.accepted_tokens]
            before = found.get(str(group), [0, 0, 0])
            found[str(group)] = [one + other for one, other in zip(before, counts, strict=True)]
    facts["easyspec"] = found


def measure(names: tuple[str, str], tokens: int, prompts: int, turns: int) -> dict[str, Any]:
    """Run every schedule on every prompt by turns, and measure costs between.

    Each step's time is the fastest of its turns, since its rows are the same in all.
    """
    loaded = load_model(names[0], progress=False)
    draft: Any = load_draft(loaded, names[1], progress=False).target
    target: Any = loaded.target
    draft.threads = 1
    worker, here = _Timed(ChainDrafting(draft)), Here(ChainDrafting(draft))
    layers = loaded.source.config.layers
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    makers: dict[str, Callable[[int, int], Drafter]] = {
        "plain": lambda threads, window: NoDrafter(),
        "sequential": lambda t, w: Dovetail(worker if t == 1 else here, window=w),
        "pearl": lambda t, w: Pearl(worker, window=w),
        "mirror-sd": lambda t, w: Mirror(worker, target=target, layers=layers, window=w),
    }

    def turn(prompt: list[int], text: list[int], each: dict[str, Any]) -> None:
        for count in ("1", "2"):
            target.threads = draft.threads = int(count)
            pair = [curve(model, prompt, ROWS, 3) for model in (target, draft)]
            each["costs"][count] = np.minimum(pair, each["costs"].get(count, pair)).tolist()
        target.threads = draft.threads = 1
        both = side_by_side(target, worker, prompt, 2)
        each["costs"]["both"] = np.minimum(both, each["costs"].get("both", both)).tolist()
        for name, kind, threads, window in RUNS:
            target.threads = draft.threads = threads
            drafter = makers[kind](threads, window)
            worker.work.clear()
            done, steps = _decode(target, prompt, drafter, params)
            assert done.generated == text, f"{name} changed the text"
            work = [*worker.work, *[0.0] * len(steps)][: len(steps)]
            timed = np.array([[*step, drafts] for step, drafts in zip(steps, work, strict=True)])
            stats, known = done.stats, each["runs"].get(name)
            each["runs"][name] = {
                "steps": (np.minimum(timed, known["steps"]) if known else timed).tolist(),
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
        each: dict[str, Any] = {"costs": {}, "runs": {}}
        text = _decode(target, prompt, NoDrafter(), params)[0].generated
        truth = truth_of(target, draft, prompt, text, params, exit=layers // 2)
        each["truth"] = truth.__dict__
        for index in range(turns):
            print(f"prompt {at + 1} of {prompts}, turn {index + 1} of {turns}", file=sys.stderr)
            turn(prompt, text, each)
        texts.append(each)
    worker.stop()
    return {"tokens": tokens, "texts": texts}


def costs_of(facts: dict[str, Any], threads: int, work: bool = False) -> Costs:
    """Return the costs of one prompt's minutes; with `work` in processor seconds."""
    target, draft = (each[work] for each in facts["costs"][str(threads)])
    alone, drafting, busy, beside = facts["costs"]["both"]
    slowed = max(1.0, busy / alone), max(1.0, beside / drafting)
    return Costs(Curve(ROWS, target), Curve(ROWS, draft), slowed=(1.0, 1.0) if work else slowed)


def _busy(kind: str, steps: list[list[float]]) -> float:
    # What the steps would take undisturbed, by their processor seconds.
    _, own, drafts = np.array(steps).T
    return float((np.maximum(own, drafts) if kind == "pearl" else own + drafts).sum())


def compared(facts: dict[str, Any]) -> list[list[Cell]]:
    """Return a row per run: measured and predicted, and whether all steps were as predicted."""
    rows: list[list[Cell]] = []
    for name, kind, threads, window in RUNS:
        times, errors, busy, against, same, forwards = [], [], [], [], True, 0
        for each in facts["texts"]:
            truth, real = Truth(**each["truth"]), each["runs"][name]
            run = SCHEDULES[kind](truth, costs_of(each, threads), window)
            seconds = sum(step[0] for step in real["steps"])
            same &= [run.forwards, run.rows, run.accepted] == real["counts"]
            same &= real.get("waited", run.waited) == run.waited
            times.append(1e3 * seconds / run.tokens)
            errors.append(run.seconds / seconds)
            before = sum(step[0] for step in each["runs"]["plain, 2 threads"]["steps"])
            against.append(before / seconds)
            forwards += run.forwards
            if threads == 1 and kind != "mirror-sd":
                work = SCHEDULES[kind](truth, costs_of(each, threads, True), window).seconds
                busy.append(work / _busy(kind, real["steps"]))
        rows.append(
            [
                name,
                round(facts["tokens"] * len(times) / forwards, 2),
                "yes" if same else "no",
                round(median(times), 1),
                round(median(against), 2),
                round(median(errors), 2),
                _spread(errors),
                round(median(busy), 2) if busy else None,
                _spread(busy) if busy else None,
            ]
        )
    return rows


COMPARED = (
    "run",
    "tokens per forward",
    "steps as predicted",
    "ms per token",
    "speed over plain, 2 threads",
    "predicted over measured",
    "least to most",
    "the same, processor seconds",
    "least and most",
)


def middle(costs: list[Costs]) -> Costs:
    """Return the medians of several."""
    target, draft = (
        Curve(ROWS, np.median([c.seconds for c in curves], axis=0).tolist())
        for curves in ([each.target for each in costs], [each.draft for each in costs])
    )
    return Costs(target, draft)


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.schedules", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--facts", type=Path, required=True, help="what was measured; made first")
    parser.add_argument("--data", type=Path, help="folder of result files to write")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--fuzzy", type=int, default=0, help="prompts to count grouped drafts on")
    args = parser.parse_args()
    if not args.facts.exists():
        facts = measure((args.target, args.draft), args.tokens, args.prompts, args.turns)
        args.facts.write_text(json.dumps(facts), encoding="utf-8")
    facts = json.loads(args.facts.read_text(encoding="utf-8"))
    if args.fuzzy and "easyspec" not in facts:
        fuzzy((args.target, args.draft), facts, args.fuzzy)
        args.facts.write_text(json.dumps(facts), encoding="utf-8")
    one = middle([costs_of(each, 1, work=True) for each in facts["texts"]])
    truth = joined([Truth(**each["truth"]) for each in facts["texts"]])
    counts = {int(group): each for group, each in facts.get("easyspec", {}).items()}
    right = {g: chance((f + accepted) / f, 3) for g, (f, _, accepted) in counts.items()}
    fuzzily = (Truth.drawn(5000, right[1]), Truth.drawn(5000, right[2])) if right else None
    pair = f"{Path(args.target).stem}, drafted by {Path(args.draft).stem}"
    tables: dict[str, tuple[str, List[str], list[list[Cell]], str]] = {
        "schedules-measured": (
            f"Schedules of {pair}",
            COMPARED,
            compared(facts),
            f"{len(facts['texts'])} greedy texts of {facts['tokens']} tokens, by turns, on two "
            "cores that many jobs share; every text is that of plain decoding. Each step counts "
            "with the fastest of its turns. Costs were measured between the turns. Processor "
            "seconds of both models are joined as the schedule overlaps them.",
        ),
        "schedules-simulated": (
            f"Schedules on machines that are not here, simulated: {pair}",
            ("assumed machine", "schedule", "window", "speed over plain"),
            asked(one, truth, fuzzily),
            "Costs of one thread are measured, those of machines assumed: 8 cores are eight "
            "times one, a GPU of 3.35 TB/s takes 20 µs a layer and reads 2 bytes a weight, "
            "guesses of half the layers are those measured.",
        ),
        "schedules-self": (
            "Self-speculation under a schedule, by closed forms",
            ("drafts", "right", "cost of a draft token", "speed", f"cost for {GOAL}"),
            self_speculation(one),
            "Shares of a forward, from the journal. At once: the drafts have cores of their own.",
        ),
    }
    if right:
        tables["schedules-easyspec"] = (
            f"Grouped layers of the draft model: {pair}",
            ("group", "forwards", "drafted", "accepted", "right"),
            [[group, *counts[group], round(right[group], 3)] for group in sorted(counts)],
            "Chains of three tokens; the first is exact in all. Right: the probability of a "
            "token with as many tokens per forward.",
        )
    for name, (title, columns, rows, note) in tables.items():
        print(f"\n{title}\n{table(columns, rows)}")
        if args.data is not None:
            sizes = f"--tokens {facts['tokens']} --prompts {len(facts['texts'])}"
            command = f"python -m benchmarks.schedules TARGET DRAFT --facts FILE {sizes}"
            record(args.data / f"{name}.json", title, "methods", command, columns, rows, note)


if __name__ == "__main__":
    main()

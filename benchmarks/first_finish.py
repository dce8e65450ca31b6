"""First-finish search on word problems: accuracy and tokens beside one sample and a majority.

    python -m benchmarks.first_finish --model FILE.gguf --problems gsm8k.jsonl --out results

Problems have `question` and `answer`, whose last number is right. Every problem is answered 8 times
in one batch, to the end. From these samples come *one* (the mean of all), *first* of n (the
shortest that ended by itself, as `paceline generate --first-of n` decodes it), *last* of n (the
longest) and the *majority* of n; n below 8 is averaged over all choices of n from 8. Tokens are of
all samples until the search ends; *steps* are forwards in a row. Intervals are 90%, by bootstrap
over problems. Every answered problem is a line in --out; the same command goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import paceline
from paceline.engine.engine import Completion
from paceline.errors import InvalidOption, PacelineError
from paceline.measure.machine import dumps, machine
from paceline.zoo.heads.grading import ASK, last_number

SAMPLES = 8


class Sample(NamedTuple):
    """One answer: its last number, tokens, and whether it ended by itself."""

    answer: float | None
    tokens: int
    ended: bool


def searched(samples: Sequence[Sample], right: float) -> dict[str, tuple[float, float, float]]:
    """Share right, tokens and steps of each way to use the samples of one problem."""

    def good(sample: Sample) -> float:
        return float(sample.answer is not None and abs(sample.answer - right) < 1e-6)

    def shortest(some: Sequence[Sample]) -> Sample:
        return min(some, key=lambda each: (not each.ended, each.tokens))

    def majority(some: Sequence[Sample]) -> float:
        votes = Counter(each.answer for each in some if each.answer is not None)
        most = max(votes.values(), default=0)
        ways = [answer for answer, count in votes.items() if count == most]
        return float(np.mean([abs(way - right) < 1e-6 for way in ways])) if ways else 0.0

    ways: dict[str, list[tuple[float, float, float]]] = {}
    for each in samples:
        ways.setdefault("one sample", []).append((good(each), each.tokens, each.tokens))
    for n in (2, 4, SAMPLES):
        for some in itertools.combinations(samples, n):
            lengths, first = [each.tokens for each in some], shortest(some)
            all_ = (sum(lengths), max(lengths))
            stopped = (sum(min(length, first.tokens) for length in lengths), first.tokens)
            ways.setdefault(f"first of {n}", []).append((good(first), *stopped))
            last = max(some, key=lambda each: each.tokens)
            ways.setdefault(f"last of {n}", []).append((good(last), *all_))
            ways.setdefault(f"majority of {n}", []).append((majority(some), *all_))
    return {name: tuple(np.mean(found, axis=0)) for name, found in ways.items()}


def table(records: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Rows: way, share right, interval, tokens, steps."""
    by_problem = [
        searched([Sample(*each) for each in record["samples"]], record["right"])
        for record in records
    ]
    draws = np.random.default_rng(0).integers(0, len(by_problem), (2000, len(by_problem)))
    rows: list[list[Any]] = []
    for name in by_problem[0]:
        values = np.array([found[name] for found in by_problem])
        low, high = np.quantile(values[draws, 0].mean(axis=1), (0.05, 0.95))
        share, tokens, steps = values.mean(axis=0)
        rows.append([name, f"{share:.1%}", f"{low:.1%} to {high:.1%}", round(tokens), round(steps)])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Answer what is not answered yet, and print the table."""
    parser = argparse.ArgumentParser(
        prog="first_finish", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file, or a short name")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL of question and answer")
    parser.add_argument("--limit", type=int, default=40, help="so many problems, from the end")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-new-tokens", type=int, default=400)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True, help="folder for samples.jsonl")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    given = parser.parse_args(argv)
    try:
        problems = [json.loads(line) for line in given.problems.read_text("utf-8").splitlines()]
        problems = problems[-given.limit :]
        given.out.mkdir(parents=True, exist_ok=True)
        kept = given.out / "samples.jsonl"
        lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
        records = [json.loads(line) for line in lines]
        if [each["question"] for each in records] != [
            each["question"] for each in problems[: len(records)]
        ]:
            raise InvalidOption(f"{kept} has answers to other problems: give another --out")
        engine = paceline.load(
            given.model, drafter="suffix-automaton", threads=given.threads, max_batch=SAMPLES
        )
        for problem in problems[len(records) :]:
            message = [{"role": "user", "content": ASK.format(problem["question"])}]
            places = [
                engine.add(
                    message,
                    temperature=given.temperature,
                    seed=seed,
                    max_new_tokens=given.max_new_tokens,
                )
                for seed in range(SAMPLES)
            ]
            done: dict[int, Completion] = {}
            while len(done) < SAMPLES:
                ended = (event for event in engine.step() if event.completion is not None)
                done.update((event.request, event.completion) for event in ended)
            samples = [
                (last_number(each.text), len(each.token_ids), each.finish_reason == "stop")
                for each in map(done.__getitem__, places)
            ]
            records.append(
                {
                    "question": problem["question"],
                    "right": last_number(problem["answer"].split("####")[-1]),
                    "samples": samples,
                }
            )
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
            print(f"{len(records)} of {len(problems)}", end="\r", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped: the same command goes on", file=sys.stderr)
        return 130
    except (PacelineError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = table(records)
    if given.json:
        print(dumps({"machine": machine(), "problems": len(records), "rows": rows}))
    else:
        for row in rows:
            print("{:14} {:>6} ({:>16}) {:>6} tokens {:>5} steps".format(*row))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The speed of paceline and of other engines: same weights, prompts and threads, by turns.

python benchmarks/peers/make.py llama-cpp llama-cpp-python genai
python -m benchmarks.peers --model FILE.gguf --draft-model SMALL.gguf --out results
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers import report, table
from benchmarks.peers.batches import batches, rotations
from benchmarks.peers.engines import (
    ENGINES,
    USUAL,
    alone,
    configurations,
    needs_draft,
    start,
)
from benchmarks.peers.timing import Race, Samples
from benchmarks.script import Findings, add_output, run_script

from paceline.errors import InvalidOption, PacelineError
from paceline.lab.audit.named import encode
from paceline.lab.audit.remote import JsonlEngine
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.prompts import BUILT_IN, NOISE_TEXT, read_prompts, spread
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve

MARGIN = 64
"""Tokens of context beyond prompt and text: drafts look ahead."""


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run what is not in --out yet; an interrupt ends it with what there is.

    Raises:
        PacelineError: a model, the prompts or --out cannot be used, the draft model has another
            vocabulary, or --batch is larger than there are prompts.
    """
    source = resolve(arguments.model)
    tokenizer = source.tokenizer()
    draft = None if arguments.draft_model is None else resolve(arguments.draft_model)
    if draft is not None and draft.tokenizer().fingerprint != tokenizer.fingerprint:
        raise InvalidOption(
            f"--draft-model {arguments.draft_model} has another vocabulary than {source.name}: "
            "use one of its family"
        )
    prompts = list(BUILT_IN) if arguments.prompts is None else read_prompts(arguments.prompts)
    prompts = spread(prompts, arguments.limit)
    ids = [encode(tokenizer, each.turns[0], True) for each in prompts]
    size = arguments.batch
    groups = batches(range(len(ids)), size)
    names = [name for name in ENGINES if name in (arguments.only or USUAL)]
    settings = {
        "model": source.name,
        "weights": source.fingerprint,
        "draft_model": None if draft is None else draft.name,
        "prompts": len(ids),
        "prompts_sha256": hashlib.sha256(repr(ids).encode()).hexdigest(),
        "batch": size,
        "max_new_tokens": arguments.max_new_tokens,
        "threads": arguments.threads,
        "engines": names,
    }
    samples = Samples(arguments.out, settings)
    everyone = configurations(names)
    not_run = {each.name: why for each in everyone if size > 1 and (why := alone(each))}
    if draft is None:
        why = "no draft model was given: --draft-model FILE"
        not_run |= {each.name: why for each in everyone if needs_draft(each.engine)}
    wanted = [each for each in everyone if each.name not in not_run]
    longest = max(map(len, ids)) + arguments.max_new_tokens + MARGIN
    flags = ("--context", str(longest), *(("--batch", str(size)) if size > 1 else ()))
    path = None if draft is None else draft.path
    done = frozenset((turn.round, turn.prompt) for turn in samples.turns)
    everything = {(r, p) for r in range(arguments.rounds) for p in range(len(groups))}
    left = len(everything - done)
    with samples, ExitStack() as stack:
        try:
            engines: dict[str, JsonlEngine] = {}
            for name in dict.fromkeys(each.engine for each in wanted if left):
                _say(f"starting {name}")
                try:
                    engines[name] = start(name, source, arguments.threads, *flags, draft=path)
                except PacelineError as error:
                    not_run[name] = str(error)
                    _say(f"{name}: left out: {error}", keep=True)
                    continue
                stack.callback(engines[name].close)
                samples.add_about(name, engines[name].about())
            race = Race(engines, [each for each in wanted if each.engine in engines])
            if left:
                _say("warming up")
                race.warm_up(rotations(encode(tokenizer, NOISE_TEXT, True), size))
            not_run |= race.failed
            begun = time.monotonic()
            asked = [tuple(ids[number] for number in group) for group in groups]
            turns = race.run(asked, arguments.rounds, arguments.max_new_tokens, done, _say)
            for taken, turn in enumerate(turns, 1):
                samples.add_turn(turn)
                minutes = (time.monotonic() - begun) / taken * (left - taken) / 60
                _say(f"turn {taken} of {left}, about {minutes:.1f} minutes left", keep=True)
                not_run |= race.failed
        except KeyboardInterrupt:
            resume = "; the same command goes on from here" if arguments.out else ""
            _say(f"stopped{resume}", keep=True)
    rows = table.rows(samples.turns, wanted, size)
    for each in wanted:  # of an earlier run that failed to start them
        if each.name not in {row["configuration"] for row in rows} and each.engine not in not_run:
            not_run.setdefault(each.name, "no samples")
    categories = [each.category for each in prompts] if size == 1 else []  # batches mix them
    return {
        "settings": settings,
        "rounds": arguments.rounds,
        "machine": machine(),
        "about": samples.about,
        "not_run": not_run,
        "rows": rows,
        "by_category": table.by_category(samples.turns, rows, categories),
        "turns": [
            {
                "round": turn.round,
                "prompts": [prompts[number].question_id for number in groups[turn.prompt]],
                "timings": {
                    name: {**asdict(timing), "tokens": len(timing.tokens)}
                    for name, timing in turn.timings.items()
                },
            }
            for turn in samples.turns
        ],
    }


def _say(line: str, keep: bool = False) -> None:
    """One line of progress; a terminal rewrites those that are not to be kept."""
    shown = sys.stderr.isatty()
    if keep or shown:
        start, end = ("\r\033[K", "\n" if keep else "") if shown else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def findings(arguments: argparse.Namespace) -> Findings:
    """Measure, and write --out."""
    results = measure(arguments)
    if arguments.out is not None:
        text = dumps(results, indent=1) + "\n"
        (arguments.out / "results.json").write_text(text, encoding="utf-8")
        (arguments.out / "results.md").write_text(report.markdown(results), encoding="utf-8")
    return report.findings(results)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --out."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=ENGINES, metavar="ENGINE", help=", ".join(ENGINES)
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--draft-model", help="a smaller GGUF file of the same family")
    parser.add_argument("--prompts", type=Path, help="JSONL file; a built-in mix by default")
    parser.add_argument("--limit", type=_count, help="prompts, round-robin over categories")
    parser.add_argument("--rounds", type=_count, default=3)
    parser.add_argument("--max-new-tokens", type=_count, default=64)
    parser.add_argument("--batch", type=_count, default=1, help="prompts answered together")
    parser.add_argument("--threads", type=_count, default=2, help="of every engine")
    parser.add_argument("--out", type=Path, help="folder for results; the same one goes on")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Reading a prompt and going on behind it, by its length: paceline and other engines, by turns.

    python -m benchmarks.peers.contexts --model FILE.gguf --out results
    python -m benchmarks.peers.contexts --model FILE.gguf --out results --record peers-contexts

All decode without drafts. A turn is a prompt of one length, read and continued by every engine; no
prompt of an engine begins like another one, so that no cached prefix helps. *Prefill* is the
prompt's tokens over the time to the first token, *decode* the tokens after that over their time.
Memory is the engine's peak so far, so that it includes the shorter prompts. The starts are those
of `startup.py`: a process with a cold file cache, and again. With the same --out a run goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers import startup, table
from benchmarks.peers.batches import Ids
from benchmarks.peers.engines import ENGINES, configurations, start
from benchmarks.peers.report import with_range
from benchmarks.peers.timing import Configuration, Race, Samples, Turn
from benchmarks.script import Findings, add_output, run_script

from paceline.errors import InvalidOption, PacelineError
from paceline.lab.audit.engine import Timing
from paceline.lab.audit.remote import JsonlEngine
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.prompts import BUILT_IN
from paceline.lab.measure.report import aligned
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import ModelSource, resolve

CONTEXTS = (512, 2048, 8192, 16_384)
MARGIN = 64

Row = dict[str, Any]


def prompts(text: Sequence[int], contexts: Sequence[int], rounds: int) -> list[Ids]:
    """A prompt per round and context, in that order, of `text` from another place each."""
    out = []
    for number in range(rounds * len(contexts)):
        length = contexts[number % len(contexts)]
        out.append(tuple(np.resize(np.roll(text, -131 * number), length).tolist()))
    return out


def rows(
    turns: Sequence[Turn],
    plain: Sequence[Configuration],
    contexts: Sequence[int],
    peaks: Mapping[tuple[str, int], float],
) -> list[Row]:
    """A row per engine and context. A turn's prompt is its place in `prompts`."""
    out = []
    for index, context in enumerate(contexts):
        here = [turn for turn in turns if turn.prompt % len(contexts) == index]
        read = {
            row["engine"]: row
            for row in table.rows(here, plain, measured=lambda t, n=context: n / t.first_seconds)  # type: ignore[misc]
        }
        for row in table.rows(here, plain):
            figures = {"prefill": read[row["engine"]], "decode": row}
            out.append(
                {
                    "engine": row["engine"],
                    "peer": row["peer"],
                    "context": context,
                    "samples": row["samples"],
                    **{
                        f"{name}_{key}": each[key]
                        for name, each in figures.items()
                        for key in ("tokens_per_second", "low", "high", "to_best", "to_best_range")
                    },
                    "best_prefill": read[row["engine"]]["best"],
                    "best_decode": row["best"],
                    "peak_mib": peaks.get((row["engine"], context)),
                }
            )
    return out


def measure(given: argparse.Namespace, source: ModelSource) -> dict[str, Any]:
    """Run what is not in --out yet.

    Raises:
        PacelineError: --out cannot be used, or the contexts do not ascend or do not fit.
    """
    contexts = _contexts(given.contexts, source, given.tokens)
    names = given.only or list(startup.STARTED)
    text = source.tokenizer().encode("\n\n".join(t for each in BUILT_IN for t in each.turns))
    asked = prompts(text, contexts, given.rounds)
    settings = {
        "model": source.name,
        "weights": source.fingerprint,
        "contexts": contexts,
        "text_sha256": hashlib.sha256(repr(text).encode()).hexdigest(),
        "tokens": given.tokens,
        "threads": given.threads,
        "engines": names,
    }
    samples = Samples(given.out, settings)
    plain = [each for each in configurations(names) if each.mode == "plain"]
    not_run: dict[str, str] = {}
    peaks: dict[tuple[str, int], float] = {}
    longest = 0
    finished = {turn.prompt for turn in samples.turns}
    left = [number for number in range(len(asked)) if number not in finished]
    with samples, ExitStack() as stack:
        engines: dict[str, JsonlEngine] = {}
        for each in plain if left else ():
            _say(f"starting {each.engine}")
            try:
                flags = ("--plain", "--context", str(contexts[-1] + given.tokens + MARGIN))
                engines[each.engine] = start(each.engine, source, given.threads, *flags)
            except PacelineError as error:
                not_run[each.engine] = str(error)
                continue
            stack.callback(engines[each.engine].close)
            samples.add_about(each.engine, engines[each.engine].about())
        race = Race(engines, [each for each in plain if each.engine in engines])
        if left:
            race.warm_up(((*text[-40:],),))
        done = frozenset((0, number) for number in finished)
        for turn in race.run([(each,) for each in asked], 1, given.tokens, done, _say):
            samples.add_turn(turn)
            context = contexts[turn.prompt % len(contexts)]
            _say(f"prompt {turn.prompt + 1} of {len(asked)}, {context} tokens: done")
            if context > longest:  # else the peak is that of a longer prompt
                longest = context
                for name, engine in engines.items():
                    peaks[name, context] = startup.peak(engine.process) / 2**20
        not_run |= {name.split()[0]: why for name, why in race.failed.items()}
    found = rows(samples.turns, plain, contexts, peaks)
    ran = {row["engine"] for row in found}
    starts = []
    if given.starts:
        starts = startup.measure(
            [n for n in names if n in ran], source, given.threads, given.starts, ("plain",)
        )
    return {
        "settings": settings,
        "rounds": given.rounds,
        "machine": machine(),
        "about": samples.about,
        "not_run": not_run,
        "rows": found,
        "starts": starts,
        "turns": [
            {
                "context": contexts[turn.prompt % len(contexts)],
                "timings": {name: _kept(timing) for name, timing in turn.timings.items()},
            }
            for turn in samples.turns
        ],
    }


def _kept(timing: Timing) -> dict[str, float]:
    return {
        "seconds": timing.seconds,
        "first_seconds": timing.first_seconds,
        "tokens": len(timing.tokens),
    }


def _contexts(text: str, source: ModelSource, tokens: int) -> list[int]:
    """Those of the option that the model has; all of them must ascend."""
    try:
        asked = [int(part) for part in text.split(",")]
    except ValueError:
        asked = []
    if not asked or asked != sorted(set(asked)) or asked[0] < 1:
        raise InvalidOption(f"--contexts {text} must be numbers that ascend from 1 or more")
    room = source.config.max_context - tokens
    fitting = [each for each in asked if each <= room]
    if not fitting:
        raise InvalidOption(f"{source.name} has no context of {asked[0]} tokens: at most {room}")
    return fitting


COLUMNS = (
    *("engine", "weights", "context", "prefill, tokens/s", "to best", "decode, tokens/s"),
    *("to best decode", "peak MiB", "cold start, s", "warm start, s"),
)


def cells(found: Mapping[str, Any]) -> list[list[Any]]:
    """Rows of a results table: medians, and ratios to the best peer with their 10 to 90%."""
    starts = {row["engine"]: row for row in found["starts"]}
    out = []
    for row in sorted(found["rows"], key=lambda row: (row["context"], row["peer"])):
        name = row["engine"]
        first = row["context"] == found["settings"]["contexts"][0]
        begun = starts.get(name, {}) if first else {}
        out.append(
            [
                name,
                found["about"].get(name, {}).get("weights", "-"),
                row["context"],
                round(row["prefill_tokens_per_second"], 1),
                with_range(row["prefill_to_best"], row["prefill_to_best_range"]),
                round(row["decode_tokens_per_second"], 1),
                with_range(row["decode_to_best"], row["decode_to_best_range"]),
                None if row["peak_mib"] is None else round(row["peak_mib"]),
                *(
                    round(begun[f"{kind}_seconds"], 2) if f"{kind}_seconds" in begun else None
                    for kind in ("cold", "warm")
                ),
            ]
        )
    return out


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def findings(given: argparse.Namespace) -> Findings:
    """Measure, write --out, and put it as a table."""
    source = resolve(given.model)
    found = measure(given, source)
    if given.out is not None:
        (given.out / "contexts.json").write_text(dumps(found, indent=1) + "\n", encoding="utf-8")
    table_rows = cells(found)
    shown = [["-" if cell is None else str(cell) for cell in row] for row in table_rows]
    missing = (f"not run: {name}: {why}" for name, why in found["not_run"].items())
    return Findings(
        title=f"{source.name} by context",
        topic="peers",
        command=f"python -m benchmarks.peers.contexts --model {source.path.name} "
        f"--contexts {given.contexts} --rounds {given.rounds}",
        columns=COLUMNS,
        rows=table_rows,
        note=_note(found),
        data=found,
        shown="\n".join([aligned([list(COLUMNS), *shown]), *missing]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --out and --record."""
    parser = argparse.ArgumentParser(prog="contexts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument(
        "--only", nargs="+", choices=ENGINES, metavar="ENGINE", help=", ".join(startup.STARTED)
    )
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="ascending")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="decoded behind each prompt")
    parser.add_argument("--starts", type=int, default=2, help="of each engine; 0 leaves them out")
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--out", type=Path, help="folder for results; the same one goes on")
    add_output(parser)
    return run_script(parser, findings, argv)


def _note(found: Mapping[str, Any]) -> str:
    missing = "".join(f" Not run: {name} ({why})." for name, why in found["not_run"].items())
    return (
        f"Plain decoding, {found['settings']['threads']} threads, {found['rounds']} rounds by "
        "turns. Ratios are medians of ratios within a turn to the best peer at that context, with "
        "their 10 to 90%; memory is the peak so far, mapped files included; starts are to the "
        f"first token after 64.{missing}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""How long after the end of its input a prompt is answered, by how it was handed over.

    python -m benchmarks.streams --model FILE.gguf --clients 1,8 --record streams-1500m

A prompt comes in pieces, at random times (Poisson), as documents do that somebody looks up. Three
ways take turns: *writing*, a prompt that is read while it comes; *caching*, which works with any
server that keeps prefixes: the prompt so far with `max_tokens: 1` at every piece, and the answer
thrown away; *waiting* for the end. The time is that from the end of the input to the first token,
on the clock of the wall. No prompt begins like another one. Each answer is compared with that to
the whole prompt, sent at once and alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.script import Findings, add_output, run_script

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.lab.measure.machine import machine
from paceline.lab.measure.prompts import BUILT_IN
from paceline.lab.measure.streams import Piece, Prompter, Room, Stream, WallClock, Way, play
from paceline.models.pull import DEFAULT_MODEL
from paceline.registry.loading import load

WAYS: tuple[Way, ...] = get_args(Way)
COLUMNS = (
    *("clients", "way", "first token after, s", "longest, s", "read before"),
    *("forwards' tokens", "equal answers"),
)

Row = dict[str, Any]


def arrivals(draw: random.Random, text: Sequence[int], pieces: int, seconds: float) -> list[Piece]:
    """Pieces of a text at the times of a Poisson process, the last at `seconds`."""
    gaps = [draw.expovariate(1.0) for _ in range(pieces)]
    scale, at, out = seconds / sum(gaps), 0.0, []
    cuts = [len(text) * number // pieces for number in range(pieces + 1)]
    for gap, begin, end in zip(gaps, cuts, cuts[1:], strict=False):
        at += gap * scale
        out.append(Piece(at, list(text[begin:end])))
    return out


def prompt(text: Sequence[int], number: int, tokens: int) -> list[int]:
    """So many tokens of a text from another place each: no two begin alike."""
    begin = 131 * number % len(text)
    turned = [*text[begin:], *text[:begin]]
    return (turned * (tokens // len(turned) + 1))[:tokens]


def run(engine: Engine, way: Way, prompts: Sequence[list[int]], given: argparse.Namespace) -> Row:
    """Play one round of clients; each prompt is then answered alone."""
    params = SamplingParams(max_new_tokens=given.tokens, ignore_eos=True)
    room, rows = Room(engine), [0]
    forward = engine.decoder.target.forward

    def counted(passes: Any, *layers: Any) -> Any:
        rows[0] += sum(map(len, passes))
        return forward(passes, *layers)

    engine.decoder.target.forward = counted  # type: ignore[method-assign]
    try:
        streams = []
        for number, tokens in enumerate(prompts):
            draw = random.Random(number)
            pieces = arrivals(draw, tokens, given.pieces, given.seconds)
            asked = pieces[-1].at + draw.random() * 0.05
            streams.append(Stream(Prompter(room, params, way), pieces, asked))
        told = play(streams, WallClock())
    finally:
        engine.decoder.target.forward = forward  # type: ignore[method-assign]
    alone = [engine.generate(tokens, params).token_ids for tokens in prompts]
    answers = [each.answer for each in told]
    return {
        "way": way,
        "clients": len(prompts),
        "delays": [each.began - each.asked for each in told],
        "cached": [each.cached_tokens for each in answers],
        "rows": rows[0],
        "equal": sum(a.token_ids == b for a, b in zip(answers, alone, strict=True)),
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Let the ways take turns, round by round.

    Raises:
        InvalidOption: the number of clients is no list of numbers, or nothing would come.
        PacelineError: the model cannot be loaded.
    """
    try:
        clients = [int(part) for part in given.clients.split(",")]
    except ValueError:
        clients = []
    if not clients or min(clients) < 1:
        raise InvalidOption(f"--clients {given.clients} must be numbers of 1 or more")
    if not given.pieces <= given.prompt_tokens or min(given.pieces, given.rounds) < 1:
        raise InvalidOption("--pieces and --rounds must be 1 or more, and pieces not empty")
    engine = load(given.model, threads=given.threads, drafter=given.drafter, max_batch=max(clients))
    text = engine.tokenizer.encode("\n\n".join(t for each in BUILT_IN for t in each.turns))
    found: list[Row] = []
    number = 0
    for turn in range(given.rounds):
        for count in clients:
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                prompts = [prompt(text, number + i, given.prompt_tokens) for i in range(count)]
                number += count
                found.append(run(engine, way, prompts, given))
                delay = statistics.median(found[-1]["delays"])
                told = f"round {turn + 1}, {count} clients, {way}: {delay:.2f} s"
                print(told, file=sys.stderr, flush=True)
    settings = {
        key: getattr(given, key)
        for key in ("prompt_tokens", "pieces", "seconds", "tokens", "rounds", "drafter")
    }
    return {
        "model": engine.config["model"],
        "settings": settings,
        "machine": machine(),
        "runs": found,
        "rows": [summary(found, count, way) for count in clients for way in WAYS],
    }


def summary(found: Sequence[Row], clients: int, way: Way) -> Row:
    """All rounds of a way with so many clients."""
    mine = [each for each in found if (each["clients"], each["way"]) == (clients, way)]
    delays = [delay for each in mine for delay in each["delays"]]
    return {
        "clients": clients,
        "way": way,
        "median": statistics.median(delays),
        "longest": max(delays),
        "cached": statistics.mean([tokens for each in mine for tokens in each["cached"]]),
        "rows": statistics.mean([each["rows"] for each in mine]) / clients,
        "equal": f"{sum(each['equal'] for each in mine)} of {len(delays)}",
    }


def cells(found: dict[str, Any]) -> list[list[Any]]:
    """Rows of a results table; "read before" is a share of the prompt."""
    return [
        [
            row["clients"],
            row["way"],
            round(row["median"], 2),
            round(row["longest"], 2),
            f"{row['cached'] / found['settings']['prompt_tokens']:.0%}",
            round(row["rows"]),
            row["equal"],
        ]
        for row in found["rows"]
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    found = measure(given)
    return Findings(
        title=f"{found['model']}: prompts that come in pieces",
        topic="batching",
        command=f"python -m benchmarks.streams --model {Path(given.model).name} "
        f"--clients {given.clients} --prompt-tokens {given.prompt_tokens} "
        f"--pieces {given.pieces} --seconds {given.seconds:g} --rounds {given.rounds}",
        columns=COLUMNS,
        rows=cells(found),
        note=note(found),
        figures={
            f"first token after, s, {row['way']}, clients {row['clients']}": round(row["median"], 2)
            for row in found["rows"]
            if row["way"] != "caching"
        },
        data=found,
        timed=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--prompt-tokens", type=int, default=2048, help="of each client")
    parser.add_argument("--pieces", type=int, default=8, help="in which a prompt comes")
    parser.add_argument("--seconds", type=float, default=10.0, help="from the first to the last")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafter", default="none")
    add_output(parser)
    return run_script(parser, findings, argv)


def note(found: dict[str, Any]) -> str:
    """What a table says below itself."""
    asked = found["settings"]
    return (
        f"A prompt of {asked['prompt_tokens']} tokens comes in {asked['pieces']} pieces within "
        f"{asked['seconds']:g} s; {asked['tokens']} tokens are answered. *Writing* is read while "
        "it comes, *caching* asks for one token at every piece and throws it away, *waiting* sends "
        "it whole. The time is that from its end to the first token, its median over "
        f"{asked['rounds']} rounds; *forwards' tokens* are those that the model computed for a "
        "client."
    )


if __name__ == "__main__":
    sys.exit(main())

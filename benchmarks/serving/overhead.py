"""What the server adds to its engine: tokens per second of both, by turns, from 1 to 64 clients.

    python -m benchmarks.serving.overhead --clients 1,8,16,64

The engine decodes the same prompts as a batch of 8 in this process, without drafts, while the
server rests; the server is one of its own, without drafts, too. Clients are a closed loop over
streams, and share the machine's cores with the server. Ratios are of neighbouring turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence

import httpx
from benchmarks.script import run_script
from benchmarks.serving.speed import serving, turn

import paceline
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.prompts import BUILT_IN, spread

BATCH = 8


def engine_turn(engine: paceline.Engine, prompts: Sequence[str], tokens: int) -> float:
    """Tokens per second of all prompts, `BATCH` at a time, a place taken as soon as it is free."""
    begin = time.perf_counter()
    done = 0
    for prompt in prompts:
        engine.add(prompt, max_new_tokens=tokens, ignore_eos=True)
    while engine.pending:
        for event in engine.step():
            done += len(event.token_ids)
    return done / (time.perf_counter() - begin)


def measure(given: argparse.Namespace) -> None:
    """Print a row per number of clients."""
    prompts = [each.turns[0] for each in spread(BUILT_IN, None)]
    prompts = [f"{number}. {prompts[number % len(prompts)]}" for number in range(given.prompts)]
    body = {
        "max_tokens": given.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = f"http://127.0.0.1:{given.port}"
    sizes = [int(each) for each in given.clients.split(",")]
    ratios: dict[int, list[float]] = {size: [] for size in sizes}
    speeds: dict[int, list[float]] = {size: [] for size in sizes}
    own: list[float] = []
    flags = ["--drafter", "none", "--max-waiting", "128"]
    with serving(given.model, given.port, flags):
        engine = paceline.load(given.model, drafter="none", max_batch=BATCH, max_waiting=1000)
        engine_turn(engine, prompts[:BATCH], 8)
        for number in range(given.rounds):
            for size in sizes:
                # Prompts that neither has read before, and the same for both.
                mine = [f"{number}.{size}.{each}" for each in prompts]
                few = mine[: max(8, given.prompts // 8)] if size == 1 else mine
                mine_speed = engine_turn(engine, few, given.tokens)
                found = asyncio.run(turn("paceline", url, size, few, body))
                speed = found.tokens / found.seconds
                own.append(mine_speed)
                speeds[size].append(speed)
                ratios[size].append(speed / mine_speed)
                print(f"{number} {size} {speed:.0f} {mine_speed:.0f}", file=sys.stderr, flush=True)
    rows = [
        {
            "clients": size,
            "tokens_per_second": statistics.median(speeds[size]),
            "to_engine_at_8": statistics.median(ratios[size]),
            "least": min(ratios[size]),
            "most": max(ratios[size]),
        }
        for size in sizes
    ]
    print(dumps({"machine": machine(), "engine": statistics.median(own), "rows": rows}, indent=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="overhead", description="The server beside its engine.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", default="1,8,16,64", help="by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=64, help="of a turn")
    parser.add_argument("--port", type=int, default=8392)
    return run_script(parser, measure, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

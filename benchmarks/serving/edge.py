"""Devices that draft for a server (examples/edge.py), beside streams of the server alone.

    python -m benchmarks.serving.edge --model LARGE.gguf --draft-model SMALL.gguf --clients 1,4

Starts `paceline serve` without drafts of its own. Devices are threads of this process, each with
the small model in an engine of its own; with everything on one machine, devices and server take
each other's cores, so tokens per second are those of a crowded machine. Rounds per token, and
texts, which must be the streams', are not. A simulated link adds its latency to every round, both
ways.
"""

from __future__ import annotations

import argparse
import asyncio
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from benchmarks.script import run_script
from benchmarks.serving.speed import serving

import paceline
from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps, machine
from paceline.lab.measure.prompts import BUILT_IN, spread

Json = dict[str, Any]
EDGE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "edge.py"))


def delayed(link: Callable[[Json], Json], seconds: float) -> Callable[[Json], Json]:
    """A link that is slow, one way and the other."""

    def ask(body: Json) -> Json:
        time.sleep(seconds)
        answer = link(body)
        time.sleep(seconds)
        return answer

    return ask


async def streams(url: str, prompts: Sequence[list[int]], body: Json) -> tuple[float, list[Any]]:
    """Seconds of all answers together, and their tokens."""
    begin = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        found = await asyncio.gather(
            *(http.post("/v1/completions", json=body | {"prompt": each}) for each in prompts)
        )
    seconds = time.perf_counter() - begin
    return seconds, [each.json()["choices"][0]["token_ids"] for each in found]


def record(given: argparse.Namespace, rows: Sequence[Json]) -> None:
    """Write what does not depend on who else uses the machine."""
    names = {"devices": 0, "rounds_per_token": 2, "rows_per_round": 1, "drafted_share": 2}
    columns = [*(name.replace("_", " ") for name in names), "same texts"]
    quick = [each for each in rows if each["latency"] == rows[0]["latency"]]
    table = [[*(round(r[k], n) for k, n in names.items()), f"{r['identical']:.0%}"] for r in quick]
    model, draft = Path(given.model).name, Path(given.draft_model).name
    results.record(
        given.record / "serving-edge.json",
        f"Devices that draft for a server: {model}, drafted by {draft}",
        "batching",
        f"python -m benchmarks.serving.edge --model {model} --draft-model {draft} "
        f"--clients {given.clients} --tokens {given.tokens}",
        columns,
        table,
        "A round is one forward of the server, shared by all devices whose drafts are there: *rows "
        "per round* of each. *Drafted share*: of the tokens, those that the device had foreseen. "
        "A server of tokens alone takes a forward for every one.",
        {"rounds per token": table[0][1], f"with {table[-1][0]} devices": table[-1][1]},
    )


def measure(given: argparse.Namespace) -> None:
    """Print a row per number of devices and latency."""
    url = f"http://127.0.0.1:{given.port}"
    sizes = [int(each) for each in given.clients.split(",")]
    rows = []
    flags = ["--drafter", "none", "--threads", str(given.threads)]
    with serving(given.model, given.port, flags):
        engines = [
            paceline.load(given.draft_model, drafter="none", threads=given.threads, max_batch=1)
            for _ in range(max(sizes))
        ]
        chosen = spread(BUILT_IN, max(sizes))
        every = [engines[0].tokenizer.prompt(each.turns[0]) for each in chosen]
        params = paceline.SamplingParams(
            max_new_tokens=given.tokens, temperature=given.temperature, seed=1
        )
        body = {
            "max_tokens": given.tokens,
            "temperature": given.temperature,
            "seed": 1,
            "return_token_ids": True,
        }
        for size in sizes:
            prompts = every[:size]
            alone, texts = asyncio.run(streams(url, prompts, body))
            tokens = sum(map(len, texts))
            for latency in map(float, given.latencies.split(",")):
                devices = [EDGE["Edge"](engine) for engine in engines[:size]]
                link = delayed(EDGE["over_http"](url, 600), latency)
                begin = time.perf_counter()
                with ThreadPoolExecutor(size) as pool:
                    found = list(
                        pool.map(
                            lambda each, link=link: list(each[0].answer(link, each[1], params)),
                            zip(devices, prompts, strict=True),
                        )
                    )
                seconds = time.perf_counter() - begin
                rounds = sum(each.rounds for each in devices)
                rows.append(
                    {
                        "devices": size,
                        "latency": latency,
                        "rounds_per_token": rounds / tokens,
                        "rows_per_round": 1 + sum(each.drafted for each in devices) / rounds,
                        "drafted_share": sum(each.accepted for each in devices) / tokens,
                        "tokens_per_second": tokens / seconds,
                        "streams_tokens_per_second": tokens / alone,
                        "identical": sum(a == b for a, b in zip(found, texts, strict=True)) / size,
                    }
                )
    print(dumps({"machine": machine(), "rows": rows}, indent=1))
    if given.record:
        record(given, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print JSON, and write --record."""
    parser = argparse.ArgumentParser(prog="edge", description="Devices that draft for a server.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--clients", default="1,4", help="numbers of devices, by commas")
    parser.add_argument("--latencies", default="0,0.02,0.1", help="seconds one way, by commas")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1, help="of the server, and of a device")
    parser.add_argument("--port", type=int, default=8391)
    parser.add_argument("--record", type=Path, help="folder of results: adds the table there")
    return run_script(parser, measure, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

"""Tokens per second and time to the first token over HTTP, by number of clients and by turns.

    python -m benchmarks.serving.speed --model FILE.gguf --peer llama=http://127.0.0.1:8081 \\
        --prompts FILE --clients 1,4,8

Starts `paceline serve` on the model twice, as it is and with `--drafter none`; peers are servers
that run already, on the same file with the same threads. A turn is a number of clients in a closed
loop that share prompts out among them: streamed, greedy, past end tokens. The servers take turns
with the same prompts, and no prompt comes twice, so neither cached prefixes nor drafts from earlier
answers help. Speed counts tokens by `usage`. Ctrl-C keeps the turns that are done.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from benchmarks.script import Findings, add_output, run_script

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.measure.prompts import BUILT_IN, read_prompts, spread

PLAIN = "paceline, drafts off"
AUTO = "paceline, auto"


class Turn(NamedTuple):
    """What one server did for so many clients."""

    server: str
    clients: int
    seconds: float
    tokens: int
    first: tuple[float, ...]
    """Seconds to the first token of each answer."""


async def ask(http: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> tuple[float, int]:
    """Stream one answer; return seconds to its first text and its number of tokens."""
    begin, first, tokens = time.perf_counter(), 0.0, 0
    async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise EngineFailed(f"{url} answers {response.status_code}: {await response.aread()!r}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if not first and any(each["delta"].get("content") for each in chunk["choices"]):
                first = time.perf_counter() - begin
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return first, tokens


async def turn(
    server: str, url: str, clients: int, prompts: Sequence[str], body: Mapping[str, Any]
) -> Turn:
    """Let the clients share the prompts out among them."""
    left = list(reversed(prompts))
    found: list[tuple[float, int]] = []

    async def client(http: httpx.AsyncClient) -> None:
        while left:
            messages = [{"role": "user", "content": left.pop()}]
            found.append(await ask(http, url, {**body, "messages": messages}))

    begin = time.perf_counter()
    fresh = httpx.Limits(max_keepalive_connections=0)  # some servers close them at any time
    async with httpx.AsyncClient(timeout=600, limits=fresh) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    seconds = time.perf_counter() - begin
    return Turn(server, clients, seconds, sum(n for _, n in found), tuple(f for f, _ in found))


def ready(process: subprocess.Popen[bytes], port: int, name: str = "the server") -> float:
    """Wait until a server answers; return the seconds. EngineFailed: it has ended."""
    begin = time.perf_counter()
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200:
                return time.perf_counter() - begin
        time.sleep(0.02)
    raise EngineFailed(f"{name} ended with {process.returncode}")


@contextlib.contextmanager
def serving(model: str, port: int, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `paceline serve`, wait until it is ready, and end it at the end."""
    command = [sys.executable, "-m", "paceline", "serve", "--model", model, "--port", str(port)]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
    try:
        ready(process, port, f"paceline serve --model {model}")
        yield process
    finally:
        process.terminate()
        process.wait()


def rows(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Medians by server and clients, and ratios to the same round's other servers."""
    out = []
    for clients in dict.fromkeys(each.clients for each in turns):
        mine = [each for each in turns if each.clients == clients]
        speeds: dict[str, list[float]] = {}
        for each in mine:
            speeds.setdefault(each.server, []).append(each.tokens / each.seconds)
        for server, values in speeds.items():
            first = sorted(f for each in mine if each.server == server for f in each.first)
            plain = [a / b for a, b in zip(values, speeds[PLAIN], strict=False)]
            out.append(
                {
                    "server": server,
                    "clients": clients,
                    "tokens_per_second": statistics.median(values),
                    "to_plain": statistics.median(plain),
                    "to_plain_range": (min(plain), max(plain)),
                    "first_seconds": statistics.median(first),
                    "first_seconds_90": first[int(0.9 * (len(first) - 1))],
                }
            )
    return out


def findings(given: argparse.Namespace) -> Findings:
    """Let the servers take turns, and put it as a table; Ctrl-C keeps the turns that are done."""
    chosen = spread(read_prompts(given.prompts) if given.prompts else BUILT_IN, None)
    counts = [int(each) for each in given.clients.split(",")]
    texts = iter([each.turns[0] for each in chosen])
    own = {PLAIN: ("--drafter", "none"), AUTO: ()}
    servers = {name: f"http://127.0.0.1:{given.port + place}" for place, name in enumerate(own)}
    servers |= dict(each.split("=", 1) for each in given.peer)
    body = {"max_tokens": given.tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    body |= {"stream_options": {"include_usage": True}}
    turns: list[Turn] = []
    try:
        with contextlib.ExitStack() as stack:
            for place, flags in enumerate(own.values()):
                server = serving(given.model, given.port + place, (*flags, *given.flags))
                stack.enter_context(server)
            for place, clients in ((place, n) for place in range(given.rounds) for n in counts):
                prompts = list(itertools.islice(texts, given.limit))
                if len(prompts) < given.limit:
                    raise InvalidOption("there are too few prompts for these turns: give more")
                shift = place % len(servers)
                for name in (*list(servers)[shift:], *list(servers)[:shift]):
                    turns.append(asyncio.run(turn(name, servers[name], clients, prompts, body)))
                    speed = turns[-1].tokens / turns[-1].seconds
                    print(f"{clients} clients, {name}: {speed:.1f} tokens/s", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    found = rows(turns)
    return Findings(
        title=f"{Path(given.model).stem} over HTTP",
        topic="batching",
        command=f"python -m benchmarks.serving.speed --model FILE --clients {given.clients} "
        f"--rounds {given.rounds} --limit {given.limit} --tokens {given.tokens}",
        columns=(
            *("server", "clients", "tokens/s", "to drafts off", "range"),
            *("first token, s", "90%"),
        ),
        rows=[
            [
                row["server"],
                row["clients"],
                round(row["tokens_per_second"], 1),
                round(row["to_plain"], 2),
                "{:.2f} to {:.2f}".format(*row["to_plain_range"]),
                round(row["first_seconds"], 3),
                round(row["first_seconds_90"], 3),
            ]
            for row in found
        ],
        note="Streamed chats by turns, greedy, past end tokens; the same prompts for all.",
        data={"rows": found, "turns": [each._asdict() for each in turns]},
        shown="\n".join(
            f"{row['clients']:>3} clients  {row['server']:<22} {row['tokens_per_second']:7.1f} "
            f"tokens/s  {row['to_plain']:.2f} of drafts off  first {row['first_seconds']:.2f} s"
            for row in found
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file, or its short name")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--prompts", type=Path, help="JSONL file; a built-in mix by default")
    parser.add_argument("--limit", type=int, default=16, help="prompts of a turn")
    parser.add_argument("--clients", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--port", type=int, default=8097)
    add_output(parser)
    parser.add_argument("flags", nargs="*", help="of paceline serve, behind --")
    return run_script(parser, findings, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

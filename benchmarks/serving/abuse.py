"""Clients that behave badly, against a server of their own: what is left of it for the others?

    python -m benchmarks.serving.abuse --seconds 60 --bodies 20000

Four parts. Clients that hang up at any moment: afterwards nothing runs or waits, and an answer is
what it was before. Slow readers: 16 clients read long answers at 10 bytes a second, by turns with
16 that read the same at once, while 8 ask as usual. Slow writers: 200 connections send headers or
bodies at a byte a second, and some send far too much. Bodies: valid requests, mutated in their JSON
and in their bytes. No status may be 5xx, no text a traceback, nothing may hang. Ctrl-C keeps the
parts that are done. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from benchmarks.script import Findings, add_output, run_script
from benchmarks.serving.speed import serving

Json = dict[str, Any]
HOST = "127.0.0.1"
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ASK: Json = {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 24}
ASK |= {"seed": 1, "temperature": 1.0}
HANGING = 60.0
"""Seconds after which a request counts as hanging; the machine may be busy."""


class Part(NamedTuple):
    """What one part saw; `good` is what it must be."""

    name: str
    asked: int
    seen: str
    good: bool


class Server(NamedTuple):
    """The address of a server, and its process."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def memory(self) -> float:
        """Return MiB that are the process's own, swapped ones included."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return sum(int(each) for each in re.findall(r"(?:RssAnon|VmSwap):\s+(\d+)", text)) / 1024


def head(path: str, body: bytes, *extra: str) -> bytes:
    """Return a request's head."""
    lines = [f"POST {path} HTTP/1.1", f"host: {HOST}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", *extra]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def gauges(http: httpx.AsyncClient) -> dict[str, float]:
    text = (await http.get("/metrics")).text
    rows = re.findall(r"^paceline:(num_requests_\w+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in rows}


# Clients that hang up.


async def hang_up(server: Server, count: int, draw: random.Random) -> Part:
    """Ask `count` times, 16 at a time, and close each connection within 0.3 s."""
    async with httpx.AsyncClient(base_url=server.url, timeout=HANGING) as http:
        before = (await http.post(CHAT, json=ASK)).json()["choices"]
        place = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            body = ASK | {"stream": number % 2 == 0, "max_tokens": 200, "ignore_eos": True}
            data = json.dumps(body).encode()
            whole = head(CHAT, data) + data
            async with place:
                _, writer = await asyncio.open_connection(HOST, server.port)
                writer.write(whole[: draw.choice([len(whole), len(whole), draw.randrange(400)])])
                await asyncio.sleep(draw.uniform(0, 0.3))
                writer.transport.abort()

        await asyncio.gather(*map(one, range(count)))
        left: dict[str, float] = {}
        begin = time.monotonic()
        while time.monotonic() - begin < HANGING:
            left = await gauges(http)
            if not any(left.values()):
                break
            await asyncio.sleep(0.05)
        seconds = time.monotonic() - begin
        after = (await http.post(CHAT, json=ASK)).json()["choices"]
    good = not any(left.values()) and after == before
    held = ", ".join(f"{name} {value:g}" for name, value in left.items() if value)
    seen = f"all given back after {seconds:.1f} s, the same answer as before" if good else held
    return Part("hang up within 0.3 s", count, seen or "another answer", good)


# Slow readers.


async def read_slowly(server: Server, seconds: float, rounds: int = 3) -> Part:
    """Compare 8 others beside 16 slow readers, by turns, with 16 that read the same at once."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    most = {False: 0.0, True: 0.0}
    ended = Counter[str]()
    for _ in range(rounds):
        for slow in (False, True):
            stop = time.monotonic() + seconds / (2 * rounds)
            work = [_long_reader(server, stop, ended, slow) for _ in range(16)]
            readers = [asyncio.ensure_future(each) for each in work]
            found = await asyncio.gather(*(_reader(server, stop) for _ in range(8)))
            most[slow] = max(most[slow], server.memory())
            speeds[slow].append(sum(found) / (seconds / (2 * rounds)))
            await asyncio.gather(*readers)
    ratio = statistics.median(speeds[True]) / max(1e-9, statistics.median(speeds[False]))
    more = most[True] - most[False]
    said = ", ".join(f"{count} {what}" for what, count in ended.items())
    seen = f"the 8 others: {ratio:.2f} of their tokens/s beside quick readers; slow: {said}"
    good = ratio >= 0.9 and more <= 20
    return Part("read 10 bytes/s", 16 * rounds, f"{seen}; memory {more:+.0f} MiB", good)


async def _reader(server: Server, stop: float) -> int:
    tokens = 0
    async with httpx.AsyncClient(base_url=server.url, timeout=HANGING) as http:
        while time.monotonic() < stop:
            body = ASK | {"max_tokens": 32, "ignore_eos": True}
            response = await http.post(CHAT, json=body)
            if response.status_code == 200:
                tokens += response.json()["usage"]["completion_tokens"]
            else:
                await asyncio.sleep(0.1)
    return tokens


async def _long_reader(server: Server, stop: float, ended: Counter[str], slow: bool) -> None:
    # Asks for one long answer, and stays to the end.
    body = json.dumps(ASK | {"stream": True, "max_tokens": 1500, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(HOST, server.port, limit=64)
    writer.write(head(CHAT, body) + body)
    state = "still read"
    while time.monotonic() < stop:
        try:
            data = await asyncio.wait_for(reader.read(10 if slow else 1 << 16), 1)
        except TimeoutError:
            continue
        except OSError:
            data = b""
        if not data:
            state = "ended by the server"
            break
        if slow:
            await asyncio.sleep(1)
    if slow:
        ended[state] += 1
    writer.transport.abort()


# Slow writers, and those that write too much.


async def write_slowly(server: Server, seconds: float) -> Part:
    """Hold 200 connections open by a byte a second, and measure /health meanwhile."""
    body = json.dumps(ASK).encode()
    whole = head(CHAT, body)
    closed: list[float] = []
    begin = time.monotonic()

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        data = whole if number % 2 else whole + body[:1]
        at = 0 if number % 2 else len(whole)
        writer.write(data[:at])
        left = asyncio.ensure_future(reader.read())
        while time.monotonic() - begin < seconds and not left.done():
            writer.write(data[at : at + 1])  # a body's second byte never comes
            at += 1
            await asyncio.wait([left], timeout=1)
        if left.done():
            closed.append(time.monotonic() - begin)
        left.cancel()
        writer.transport.abort()

    memory = server.memory()
    writers = [asyncio.ensure_future(one(number)) for number in range(200)]
    times: list[float] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=HANGING) as http:
        while any(not each.done() for each in writers):
            at = time.monotonic()
            await http.get("/health")
            times.append(time.monotonic() - at)
            await asyncio.sleep(0.05)
        more = server.memory() - memory
        await asyncio.gather(*writers, return_exceptions=True)
        large = await _status(server, head(CHAT, b" " * 100_000_000))
        many = "\r\n".join(f"x-{number}: {number}" for number in range(10_000))
        wide = await _status(server, head(CHAT, body, many) + body)
        alive = (await http.post(CHAT, json=ASK)).status_code
    p99 = sorted(times)[int(0.99 * (len(times) - 1))]
    seen = f"{len(closed)} closed, the last after {max(closed, default=0):.0f} s; /health in "
    seen += f"{1000 * p99:.0f} ms (99%); 100 MB: {large}, 10,000 headers: {wide}; "
    seen += f"memory +{more:.0f} MiB"
    good = len(closed) == 200 and alive == 200 and large == "413" and wide[:1] in "4c"
    return Part("write a byte/s", 200, seen, good)


async def _status(server: Server, data: bytes) -> str:
    # The status of a request that is sent as it is, or "closed".
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), HANGING)
    except OSError:
        line = b""
    except TimeoutError:
        return "hanging"
    finally:
        writer.transport.abort()
    return line.split(b" ")[1].decode() if line.count(b" ") > 1 else "closed"


# Bodies.

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**70),
    0.5,
    -0.5,
    1e308,
)
ODD += (-1e308, float("nan"), float("inf"), "", "\x00", "\ud800", "a" * 5000, [], {}, [[]], [None])
ODD += ({"": ""}, "<|im_start|>", "\N{RIGHT-TO-LEFT OVERRIDE}", [1, "a"], {"type": "object"})
SAMPLES: dict[str, Json] = {
    CHAT: ASK
    | {"max_tokens": 3, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop": ["a"], "n": 1}
    | {"logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1.0}, "stream": False}
    | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}}
    | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    | {"metadata": {"speculation": "{}"}, "chat_template_kwargs": {"a": 1}, "min_tokens": 1},
    TEXT: {"prompt": "The sea", "max_tokens": 3, "logprobs": 1, "echo": True, "seed": 3}
    | {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.1, "suffix": ""}
    | {"resume_token_ids": [5], "stop_token_ids": [7], "allowed_token_ids": [5, 6, 8]},
    RESPONSES: {"input": "Hi", "max_output_tokens": 3, "instructions": "Be brief.", "seed": 1}
    | {"text": {"format": {"type": "text"}}, "tools": [{"type": "function", "name": "g"}]},
    "/tokenize": {"prompt": "a", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def mutated(body: Json, draw: random.Random) -> bytes:
    """Return a body with a few changes of values, of places, or of bytes."""
    value = json.loads(json.dumps(body))
    for _ in range(draw.randint(1, 3)):
        _change(value, draw)
    if isinstance(value.get("n"), int):
        value["n"] = min(value["n"], 3)
    for name in CAPS:  # or much of the time is decoding
        if isinstance(value.get(name), int) and value[name] > 8:
            value[name] = 8
    cap = "max_output_tokens" if "input" in value else "max_tokens"
    if value.get(cap) is None:
        value[cap] = 4
    data = json.dumps(value, ensure_ascii=draw.random() < 0.9).encode("utf-8", "surrogatepass")
    kind = draw.random()
    if kind < 0.05:
        data = data[: draw.randrange(len(data))]
    elif kind < 0.1:
        at = draw.randrange(len(data))
        data = data[:at] + draw.randbytes(draw.randint(1, 4)) + data[at + 1 :]
    elif kind < 0.11:
        deep = b"[" * 10_000 + b"]" * 10_000
        data = b'{"prompt":' + deep + b',"messages":' + deep + b"}"
    return data


def _change(value: Any, draw: random.Random) -> None:
    # Replaces, adds or takes away one thing at a random place.
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.6:
            value = inner
            continue
        kind = draw.random()
        if kind < 0.7:
            value[key] = copy.deepcopy(draw.choice(ODD))
        elif kind < 0.85:
            del value[key]
        elif isinstance(value, dict):
            name = draw.choice(["", "x", "\ud800", "suffix", "grammar", "ebnf"])
            value[name] = copy.deepcopy(draw.choice(ODD))
        return


async def send_bodies(server: Server, count: int, draw: random.Random) -> Part:
    """Send mutated bodies, 8 at a time."""
    statuses = Counter[str]()
    bad: list[str] = []
    longest, slowest = 0.0, ""
    memory = 0.0
    routes = list(SAMPLES)
    left = iter(range(count))
    done = 0

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal longest, slowest, memory, done
        for number in left:
            path = routes[number % len(routes)]
            data = mutated(SAMPLES[path], draw)
            begin = time.monotonic()
            try:
                response = await http.post(
                    path, content=data, headers={"content-type": "application/json"}
                )
                status, text = str(response.status_code), response.text
            except httpx.TransportError as error:
                status, text = type(error).__name__, ""
            taken = time.monotonic() - begin
            if taken > longest:
                longest, slowest = taken, f"{path} {status} {data[:2000]!r}"
            statuses[status] += 1
            if status[0] not in "24" or "Traceback" in text:
                bad.append(f"{path} {status} {text[:200]} {data[:2000]!r}")
            done += 1
            if done == count // 4:
                memory = server.memory()

    async with httpx.AsyncClient(base_url=server.url, timeout=HANGING) as http:
        await asyncio.gather(*(client(http) for _ in range(8)))
        alive = (await http.post(CHAT, json=ASK)).status_code == 200
    print(f"the slowest, {longest:.1f} s: {slowest}", file=sys.stderr)
    print(*bad[:20], sep="\n", file=sys.stderr)
    said = ", ".join(f"{status}: {number:,}" for status, number in sorted(statuses.items()))
    seen = f"{said}; the longest {longest:.1f} s; memory over the last three quarters "
    seen += f"{server.memory() - memory:+.0f} MiB"
    return Part("mutated bodies", count, seen, not bad and alive)


def of_parts(
    works: Iterable[Part], prints: bool, title: str, command: str, columns: tuple[str, str]
) -> Findings:
    """Run parts one by one, and put them as a table; Ctrl-C keeps those that are done.

    Args:
        works: each runs a part when it is asked for the next.
        prints: whether each is printed as it ends.
        title, command: of the record.
        columns: headings of what a part is and of how much it asked.
    """
    parts: list[Part] = []
    try:
        for part in works:
            parts.append(part)
            if prints:
                name, asked, seen, good = part
                print(f"{'good' if good else 'BAD'}  {name}, {asked:,}: {seen}", flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return Findings(
        title=title,
        topic="batching",
        command=command,
        columns=(*columns, "seen", "as it must be"),
        rows=[[part.name, part.asked, part.seen, "yes" if part.good else "NO"] for part in parts],
        data=[part._asdict() for part in parts],
        shown="",
        code=int(not all(part.good for part in parts)),
    )


def findings(given: argparse.Namespace) -> Findings:
    """Run the parts against a server."""
    draw = random.Random(given.seed)
    with serving(given.model, given.port, ["--body-timeout", "20"]) as process:
        server = Server(given.port, process.pid)
        works: list[Callable[[], Coroutine[Any, Any, Part]]] = [
            lambda: hang_up(server, given.closed, draw),
            lambda: read_slowly(server, given.seconds),
            lambda: write_slowly(server, given.seconds),
            lambda: send_bodies(server, given.bodies, draw),
        ]
        return of_parts(
            (asyncio.run(work()) for work in works),
            not given.json,
            "Clients that behave badly",
            f"python -m benchmarks.serving.abuse --seconds {given.seconds:.0f} "
            f"--bodies {given.bodies} --closed {given.closed}",
            ("clients", "requests"),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, print, and write --record."""
    parser = argparse.ArgumentParser(prog="abuse", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--port", type=int, default=8098)
    parser.add_argument("--seconds", type=float, default=60, help="of slow readers, and of writers")
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--closed", type=int, default=1000, help="requests that are hung up")
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    return run_script(parser, findings, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

"""A server that is asked for too much at once, very often, and killed at any moment.

    python -m benchmarks.serving.endurance --answers 100000 --kills 50

Three parts. Too many: 1,000 requests at once where 8 run and 16 wait; half of them never send their
body, so who refuses them has not read it. Many: requests of one token, with samples of memory,
open files and threads. Both ask a table in place of a model (`tests.helpers.serve_tables`), of
which the server is all that costs. Killed: `paceline serve` gets SIGKILL while it starts or in the
middle of a stream, with a cache folder of its own whose small files lose their ends now and then;
started again, it is asked the same, and the text must be the same. Ctrl-C keeps the parts that are
done. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from benchmarks.script import Findings, add_output, run_script
from benchmarks.serving.abuse import ASK, CHAT, HOST, TEXT, Part, Server, head, of_parts
from benchmarks.serving.soak import Sample, Soak, sample
from benchmarks.serving.speed import ready

ROOT = Path(__file__).parents[2]
MOST_KIB = 0.2
"""Of memory that an answer of one token may leave behind, at the upper end of its interval."""
RUNNING, WAITING = 8, 16
LONG = ASK | {"max_tokens": 60, "ignore_eos": True}


@contextlib.contextmanager
def started(command: Sequence[str], cache: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, perhaps with a cache directory of its own, and kill it at the end."""
    own = {"PACELINE_CACHE": str(cache)} if cache else {}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stderr=subprocess.DEVNULL, env=os.environ | own
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tables(port: int, step: float, waiting: int = 64) -> list[str]:
    """Return the command of a server whose forwards take `step` seconds."""
    settings = {"port": port, "max_waiting": waiting}
    return ["tests.helpers.serve_tables", json.dumps({"step": step, "settings": settings})]


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Read one answer of known length: status, headers, body."""
    headers = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", headers)
    body = await reader.readexactly(int(length[1]) if length else 0)
    return int(headers.split(b" ")[1]), headers, body


# Too many at once.


async def too_many(server: Server, count: int) -> Part:
    """Ask all at once; the first half sends its bodies."""
    memory = server.memory()
    most = memory
    data = json.dumps(LONG).encode()
    streams = [await asyncio.open_connection(HOST, server.port) for _ in range(count)]
    statuses, refused, bare = Counter[int](), list[float](), 0

    async def one(number: int) -> None:
        nonlocal bare
        reader, writer = streams[number]
        writer.write(head(CHAT, data) + (data if number < count // 2 else b""))
        begin = time.monotonic()
        status, headers, _ = await asyncio.wait_for(answer(reader), 300)
        statuses[status] += 1
        if status == 429:
            refused.append(time.monotonic() - begin)
            bare += b"retry-after" not in headers

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, server.memory())
            await asyncio.sleep(0.02)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*map(one, range(count)))
    watching.cancel()
    for _, writer in streams:
        writer.transport.abort()
    refused.sort()
    said = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
    late = refused[int(0.99 * (len(refused) - 1))] if refused else 0.0
    seen = f"{said}; refused within {1000 * late:.0f} ms (99%), {bare} without Retry-After; "
    seen += f"memory {most - memory:+.1f} MiB, with {count} open connections"
    rest = count - RUNNING - WAITING
    good = statuses == {200: RUNNING + WAITING, 429: rest} and not bare
    return Part(f"at once, {RUNNING} run and {WAITING} wait", count, seen, good)


# Very many.


async def very_many(server: Server, count: int, clients: int = 8) -> Part:
    """Ask for one token, again and again, over connections that stay."""
    body = {"prompt": "the quick", "max_tokens": 1, "ignore_eos": True}
    asked = [body | {"seed": seed, "temperature": seed % 2} for seed in range(16)]
    known: dict[int, bytes] = {}
    left = iter(range(count))
    done = wrong = 0
    begin = time.perf_counter()
    found, names = Soak(), list[set[str]]()

    async def client() -> None:
        nonlocal done, wrong
        reader, writer = await asyncio.open_connection(HOST, server.port)
        for number in left:
            seed = number % len(asked)
            data = json.dumps(asked[seed]).encode()
            writer.write(head(TEXT, data) + data)
            status, _, text = await answer(reader)
            said = json.dumps(json.loads(text).get("choices")).encode()
            wrong += status != 200 or known.setdefault(seed, said) != said
            done += 1
        writer.transport.abort()

    async def watch() -> None:
        while True:
            now: Sample = await asyncio.to_thread(sample, server.pid, server.url, begin, done)
            found.samples.append(now)
            if len(names) < 2 and done > count // 50:
                names.append(series(server))
            await asyncio.sleep(1)

    watching = asyncio.ensure_future(watch())
    await asyncio.gather(*(client() for _ in range(clients)))
    watching.cancel()
    same = bool(names) and names[0] == series(server)
    seconds = time.perf_counter() - begin
    slope, half = found.growth()
    warm = found.warm
    held = {
        name: (getattr(warm[0], name), getattr(warm[-1], name)) for name in ("files", "threads")
    }
    seen = f"{wrong} wrong; {count / seconds:.0f} a second; memory {slope:+.3f} ± {half:.3f} KiB "
    seen += "an answer; " + ", ".join(f"{name} {a} to {b}" for name, (a, b) in held.items())
    seen += f"; names of metrics {'the same' if same else 'NOT the same'}"
    good = not wrong and same and slope + half <= MOST_KIB
    good = good and all(b - a <= 2 for a, b in held.values())
    return Part("of one token", count, seen, good)


def series(server: Server) -> set[str]:
    """Return the names of all metrics, with their labels."""
    page = httpx.get(f"{server.url}/metrics", timeout=30).text
    return set(re.findall(r"^([^#\s]\S*) ", page, re.MULTILINE))


# Killed.


def killed(model: str, port: int, count: int, draw: random.Random) -> Part:
    """Kill a server again and again, and ask what was interrupted."""
    command = ["paceline", "serve", "--model", model, "--port", str(port)]
    bodies = [LONG | {"seed": seed, "temperature": seed % 2} for seed in range(6)]
    expected: dict[int, str] = {}
    waited: list[float] = []
    wrong, streams, cut = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        _link_models(cache)
        with started(command, cache) as process:
            ready(process, port)
            for number, body in enumerate(bodies):
                expected[number] = "".join(_pieces(port, body))
        asked = 0
        for number in range(count):
            if number % 5 == 4:
                cut += _cut_ends(cache, draw)
            with started(command, cache) as process:
                if number % 2:  # while it starts
                    time.sleep(draw.uniform(0, 1.2 * max(waited, default=2.0)))
                    continue
                waited.append(ready(process, port))
                wrong += "".join(_pieces(port, bodies[asked])) != expected[asked]
                asked = draw.randrange(len(bodies))
                pieces = _pieces(port, bodies[asked])
                for _ in range(draw.randrange(40)):
                    next(pieces, None)
                time.sleep(draw.uniform(0, 0.02))
                process.send_signal(signal.SIGKILL)
                streams += 1
        with started(command, cache) as process:
            waited.append(ready(process, port))
            wrong += any(
                "".join(_pieces(port, body)) != expected[place] for place, body in enumerate(bodies)
            )
        left = [path for path in cache.rglob("*") if re.search(r"\.(part|tmp|lock)|tmp", path.name)]
    seen = f"{streams} in a stream, {count - streams} while it started; {wrong} other texts; "
    seen += f"ready after {max(waited):.1f} s at most, {cut} small files of the cache cut off, "
    seen += f"{len(left)} parts of files left in it"
    return Part("killed", count, seen, not wrong)


def _link_models(cache: Path) -> None:
    # Large files and compiled kernels are those of the usual cache.
    usual = os.environ.get("PACELINE_CACHE")
    for name in ("models", "native"):
        if usual and (Path(usual) / name).is_dir():
            (cache / name).symlink_to(Path(usual) / name)


def _cut_ends(cache: Path, draw: random.Random) -> int:
    found = [path for path in cache.rglob("*.json") if path.is_file()]
    for path in found:
        os.truncate(path, 4096 * draw.randrange(1 + path.stat().st_size // 4096))
    return len(found)


def _pieces(port: int, body: dict[str, Any]) -> Iterator[str]:
    # The text of a stream; it ends early if the server does.
    url = f"http://{HOST}:{port}{CHAT}"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    yield choice["delta"].get("content") or ""


def findings(given: argparse.Namespace) -> Findings:
    """Run the parts that are asked for."""
    port = given.port

    def flood() -> Part:
        with started(tables(port, 0.1, WAITING)) as process:
            ready(process, port)
            return asyncio.run(too_many(Server(port, process.pid), given.at_once))

    def many() -> Part:
        with started(tables(port, 0.0)) as process:
            ready(process, port)
            return asyncio.run(very_many(Server(port, process.pid), given.answers))

    works: list[tuple[int, Callable[[], Part]]] = [
        (given.at_once, flood),
        (given.answers, many),
        (given.kills, lambda: killed(given.model, port, given.kills, random.Random(given.seed))),
    ]
    return of_parts(
        (work() for count, work in works if count),
        not given.json,
        "A server that is asked for too much, very often, and killed",
        f"python -m benchmarks.serving.endurance --answers {given.answers} --kills {given.kills}",
        ("requests", "number"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, print, and write --record."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="endurance", description=about)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=100_000, help="of one token")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    return run_script(parser, findings, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

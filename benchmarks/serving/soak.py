"""Memory, files, threads and cache of a server under mixed traffic for a long time.

    python -m benchmarks.serving.soak --seconds 600

Starts `paceline serve` and a process of clients: chats and completions, streamed and whole, several
answers, log-probabilities, one in ten hung up. Every second the server's memory, open files,
threads and cache are read. In the middle the clients are killed (SIGKILL), and the server must be
empty soon; at the end it drains with requests under way. What grows after warm-up, is left over, or
differs between two answers to the same request is an error. Ctrl-C keeps what was sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from benchmarks.serving.speed import serving

from paceline.errors import EngineFailed, PacelineError
from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.prompts import BUILT_IN

Json = dict[str, Any]
WARM_UP = 0.3  # of the samples
MOST_KIB = 1.0  # of memory that one answer may leave behind
EMPTY_SECONDS = 15.0
DRAIN_SECONDS = 40.0


# The clients' process.


def request(draw: random.Random) -> tuple[str, Json]:
    """Return a path and a body at random, out of a few hundred."""
    prompt = draw.choice(BUILT_IN).turns[0][: draw.choice([40, 200, 400])]
    body: Json = {"max_tokens": draw.choice([1, 8, 32]), "seed": draw.randrange(3)}
    body |= {"temperature": draw.choice([0, 0.8]), "stream": draw.random() < 0.5}
    if draw.random() < 0.2:
        body["n"] = 2
    if draw.random() < 0.5:
        return "/v1/completions", body | {"prompt": prompt, "logprobs": draw.choice([None, 3])}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}


def said(body: Mapping[str, Any], text: str) -> list[str]:
    """Return the texts of an answer."""
    chunks = [text]
    if body["stream"]:
        chunks = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    out = [""] * body.get("n", 1)
    for chunk in map(json.loads, chunks):
        if "error" in chunk:
            raise EngineFailed(chunk["error"]["message"])
        for choice in chunk["choices"]:
            inner = choice.get("message") or choice.get("delta") or choice
            out[choice["index"]] += inner.get("content") or inner.get("text") or ""
    return out


async def ask_for_ever(url: str, clients: int, seed: int) -> None:
    """Ask until killed; print counts as JSON every half second."""
    counts = {"answers": 0, "hung_up": 0, "differences": 0, "errors": 0}
    known: dict[str, list[str]] = {}
    draw = random.Random(seed)

    async def client(http: httpx.AsyncClient) -> None:
        while True:
            path, body = request(draw)
            patience = draw.uniform(0, 0.5) if draw.random() < 0.1 else None
            try:
                response = await asyncio.wait_for(http.post(path, json=body), patience)
                response.raise_for_status()
                found = said(body, response.text)
            except TimeoutError:
                counts["hung_up"] += 1
                continue
            except (httpx.HTTPError, PacelineError) as error:
                counts["errors"] += 1
                if counts["errors"] < 4:
                    print(f"{type(error).__name__}: {error}", file=sys.stderr)
                await asyncio.sleep(0.5)
                continue
            counts["answers"] += 1
            asked = path + json.dumps({k: v for k, v in body.items() if k != "stream"})
            counts["differences"] += known.setdefault(asked, found) != found

    async def tell() -> None:
        while True:
            print(json.dumps(counts), flush=True)
            await asyncio.sleep(0.5)

    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        await asyncio.gather(tell(), *(client(http) for _ in range(clients)))


class Clients:
    """The clients' process, and the counts it told last."""

    def __init__(self, url: str, clients: int, seed: int, folder: Path) -> None:
        self._told = folder / f"clients-{seed}.jsonl"
        command = [sys.executable, "-m", "benchmarks.serving.soak", "--clients-of", url]
        with self._told.open("w") as out:
            self._process = subprocess.Popen(
                [*command, "--clients", str(clients), "--seed", str(seed)], stdout=out
            )

    def counts(self) -> dict[str, int]:
        lines = [line for line in self._told.read_text().splitlines() if line.endswith("}")]
        found: dict[str, int] = json.loads(lines[-1]) if lines else {}
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


# The server, from outside.


class Sample(NamedTuple):
    """The server at a time."""

    seconds: float
    answers: int
    memory: int
    """KiB of anonymous memory, swapped included."""
    files: int
    threads: int
    tokens: float
    accepted: float
    cache: float
    """Share of the cache in use."""


def sample(pid: int, url: str, begin: float, answers: int) -> Sample:
    """Read what the process holds; EngineFailed if there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(os.listdir(f"/proc/{pid}/fd"))
        page = httpx.get(f"{url}/metrics", timeout=30).text
    except (OSError, httpx.TransportError) as error:
        raise EngineFailed(f"the server has ended ({error})") from error
    inside = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", status, re.M)}
    gauges = {
        name: float(value) for name, value in re.findall(r"^paceline:(\w+) (\S+)$", page, re.M)
    }
    return Sample(
        time.perf_counter() - begin,
        answers,
        inside["RssAnon"] + inside["VmSwap"],
        files,
        inside["Threads"],
        gauges["generation_tokens_total"],
        gauges["num_requests_accepted"],
        gauges["kv_cache_usage_perc"],
    )


@dataclass
class Soak:
    """What a run found."""

    samples: list[Sample] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    empty_seconds: float | None = None
    """Until nothing was left of the clients that were killed."""
    drain_seconds: float | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        for name, number in counts.items():
            self.counts[name] = self.counts.get(name, 0) + number

    @property
    def warm(self) -> list[Sample]:
        return self.samples[int(WARM_UP * len(self.samples)) :]

    def growth(self) -> tuple[float, float]:
        """Return KiB of memory per answer after warm-up, and half the width of its 95% interval.

        Samples of neighbouring seconds are alike, so each twentieth of the run counts once.
        """
        warm = self.warm
        size = max(1, len(warm) // 20)
        groups = [warm[at : at + size] for at in range(0, len(warm) - size + 1, size)]
        xs = [statistics.fmean(each.answers for each in group) for group in groups]
        ys = [statistics.fmean(each.memory for each in group) for group in groups]
        if len(groups) < 4 or xs[0] == xs[-1]:
            return 0.0, float("inf")
        slope, base = statistics.linear_regression(xs, ys)
        spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
        rest = sum((y - base - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
        return slope, 2.1 * (rest / (len(xs) - 2) / spread) ** 0.5

    def judge(self, clients: int) -> None:
        """Name what has grown, or was left over."""
        slope, half = self.growth()
        if slope - half > MOST_KIB:
            self.wrong.append(f"memory grows by {slope:.1f} KiB with each answer")
        for name, most in (("threads", 2), ("files", clients + 4)):
            values = [getattr(each, name) for each in self.warm]
            third = max(1, len(values) // 3)
            grown = statistics.fmean(values[-third:]) - statistics.fmean(values[:third])
            if grown > most:
                self.wrong.append(f"{name} grow by {grown:.0f}")
        self.wrong += [
            f"{self.counts[name]} {name}" for name in ("differences", "errors") if self.counts[name]
        ]


def watch(
    found: Soak,
    server: subprocess.Popen[bytes],
    url: str,
    clients: Clients,
    until: float,
    begin: float,
) -> None:
    """Take a sample every second."""
    before = found.counts.get("answers", 0)
    while (now := time.perf_counter()) < until:
        answers = before + clients.counts().get("answers", 0)
        found.samples.append(sample(server.pid, url, begin, answers))
        time.sleep(max(0.0, min(1.0, until - now)))


def left_over(found: Soak, pid: int, url: str) -> None:
    """Wait until a server without clients is empty."""
    begin = time.perf_counter()
    while (now := sample(pid, url, begin, 0)).seconds < EMPTY_SECONDS:
        if now.accepted == 0 and now.cache == 0:
            found.empty_seconds = round(now.seconds, 2)
            return
        time.sleep(0.05)
    found.wrong.append(f"{now.accepted:g} requests and {now.cache:.0%} of the cache are left over")


def soak(
    found: Soak,
    server: subprocess.Popen[bytes],
    url: str,
    seconds: float,
    clients: int,
    folder: Path,
) -> None:
    """Put a server under load, kill the clients in the middle, and drain it; fills `found`."""
    begin = time.perf_counter()
    for half in (1, 2):
        asking = Clients(url, clients, half, folder)
        try:
            watch(found, server, url, asking, begin + half * seconds / 2, begin)
            if half == 1:
                asking.kill()
                left_over(found, server.pid, url)
            else:
                told = time.perf_counter()
                found.add(asking.counts())  # later ones are refused
                server.send_signal(signal.SIGTERM)
                try:
                    code = server.wait(DRAIN_SECONDS)
                except subprocess.TimeoutExpired:
                    found.wrong.append(f"the server goes on {DRAIN_SECONDS:g} s after SIGTERM")
                    server.kill()
                    break
                found.drain_seconds = round(time.perf_counter() - told, 2)
                if code != 0:
                    found.wrong.append(f"the server ended with {code}")
        finally:
            asking.kill()
            if half == 1:
                found.add(asking.counts())
    found.judge(clients)


def record(found: Soak, name: str, model: str, command: str) -> None:
    """Write the run by fifths."""
    rows: list[list[Any]] = []
    for place in range(5):
        size = len(found.samples) // 5
        part = found.samples[place * size : (place + 1) * size]
        seconds = part[-1].seconds - part[0].seconds
        rows.append(
            [
                f"{part[0].seconds:.0f} to {part[-1].seconds:.0f} s",
                part[-1].answers,
                round((part[-1].tokens - part[0].tokens) / seconds),
                round(statistics.fmean(each.memory for each in part) / 1024, 1),
                max(each.files for each in part),
                max(each.threads for each in part),
                round(max(each.cache for each in part), 2),
            ]
        )
    slope, half = found.growth()
    results.record(
        Path("docs/results/data") / f"{name}.json",
        "A server under mixed traffic for a long time",
        "exactness-fidelity",
        command,
        ("time", "answers", "tokens/s", "memory, MiB", "files", "threads", "cache, most"),
        rows,
        f"{model}, {found.counts}. Clients were killed in the middle: empty after "
        f"{found.empty_seconds} s. Drained with requests under way in {found.drain_seconds} s. "
        f"After warm-up memory changed by {slope:.2f} ± {half:.2f} KiB per answer. Wrong: "
        f"{'; '.join(found.wrong) or 'nothing'}.",
        {"KiB per answer": round(slope, 2), "wrong": len(found.wrong)},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file, or its short name")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--kv-tokens", type=int, default=2048, help="small, so that it is full soon"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8093)
    parser.add_argument("--folder", type=Path, default=Path("."), help="for what the clients tell")
    parser.add_argument("--record", metavar="NAME", help="also write docs/results/data/NAME.json")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    parser.add_argument("--clients-of", metavar="URL", help="be the clients' process")
    parser.add_argument("flags", nargs="*", help="of paceline serve, behind --")
    given = parser.parse_args(argv)
    if given.clients_of:
        asyncio.run(ask_for_ever(given.clients_of, given.clients, given.seed))
    found, status = Soak(), 0
    try:
        flags = ["--kv-tokens", str(given.kv_tokens), *given.flags]
        with serving(given.model, given.port, flags) as server:
            url = f"http://127.0.0.1:{given.port}"
            soak(found, server, url, given.seconds, given.clients, given.folder)
        if given.record:
            command = f"python -m benchmarks.serving.soak --seconds {given.seconds:g}"
            record(found, given.record, Path(given.model).stem, command)
    except PacelineError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        status = 130
    told: Json = vars(found) | {"growth": found.growth() if found.samples else None}
    if given.json:
        print(dumps(told | {"samples": [each._asdict() for each in found.samples]}, indent=1))
    else:
        for name, value in told.items():
            print(f"{name}: {value if name != 'samples' else len(found.samples)}")
    return status or int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())

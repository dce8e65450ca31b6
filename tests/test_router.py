"""Two replicas behind sglang-router: one dies in the middle of streams, and every text is whole.

The router is found by PACELINE_ROUTER_PYTHON, a Python that has it, or in this environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import table_engines as engines

EXAMPLE = Path(__file__).parents[1] / "examples" / "deploy" / "router" / "resume.py"
ROOT = Path(__file__).parents[1]
BODY = {"model": "tables", "max_tokens": 100, "ignore_eos": True, "temperature": 1.0}
STEP = 0.02  # an answer takes two seconds


def resume() -> Any:
    spec = importlib.util.spec_from_file_location("resume", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


@contextmanager
def replica(port: int) -> Iterator[subprocess.Popen[bytes]]:
    options = {"step": STEP, "settings": {"port": port}}
    command = [sys.executable, "-m", "tests.helpers.serve_tables", json.dumps(options)]
    with ended(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)) as process:
        yield process


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_health(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"nothing healthy on port {port}")


def params(seed: int) -> dict[str, Any]:
    return {"seed": seed, "max_new_tokens": 100, "ignore_eos": True, "temperature": 1.0}


def running(port: int) -> float:
    page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    rows = [line for line in page.splitlines() if line.startswith("paceline:num_requests_running")]
    return float(rows[0].split()[-1])


def test_a_stream_is_continued_where_it_was_restarted() -> None:
    port = free_port()
    pieces = []
    with ExitStack() as stack:
        first = stack.enter_context(replica(port))
        await_health(port)
        stream = resume().stream(
            f"http://127.0.0.1:{port}", BODY | {"prompt": "dog", "seed": 3}, pause=0.1
        )
        pieces = [next(stream) for _ in range(20)]
        first.kill()
        first.wait()
        stack.enter_context(replica(port))
        pieces += stream
    assert "".join(pieces) == engines.make().generate("dog", raw=True, **params(3)).text


def test_refusals_and_silence_end_a_stream() -> None:
    port = free_port()
    with replica(port):
        await_health(port)
        stream = resume().stream
        with pytest.raises(ValueError, match="top_p"):
            list(stream(f"http://127.0.0.1:{port}", BODY | {"prompt": "dog", "top_p": 3}))
    with pytest.raises(ConnectionError, match="are there servers"):
        list(stream(f"http://127.0.0.1:{port}", BODY | {"prompt": "dog"}, pause=0))


def test_a_replica_dies_and_every_stream_goes_on_at_the_other() -> None:
    python = os.environ.get("PACELINE_ROUTER_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import sglang_router"], capture_output=True)
    if found.returncode:
        pytest.skip("sglang-router is not installed: name a Python that has it")
    router, *ports = (free_port() for _ in range(3))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    command = [python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(router), "--worker-urls", *urls, "--policy", "round_robin"]
    command += ["--prometheus-port", str(free_port()), "--log-level", "error"]
    with ExitStack() as stack:
        victim, _ = (stack.enter_context(replica(port)) for port in ports)
        for port in ports:
            await_health(port)
        log = subprocess.DEVNULL
        stack.enter_context(ended(subprocess.Popen(command, stdout=log, stderr=log)))
        await_health(router)
        stream = resume().stream
        cuts = []

        def ask(seed: int) -> str:
            turns = [{"role": "user", "content": "the quick"}]
            asked = {"messages": turns} if seed % 2 else {"prompt": "the quick"}
            body = BODY | asked | {"seed": seed}
            pieces = list(stream(f"http://127.0.0.1:{router}", body, pause=0.1))
            return "".join(pieces)

        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(ask, seed) for seed in range(8)]
            end = time.monotonic() + 10
            while min(map(running, ports)) < 3:
                assert time.monotonic() < end, "the router sent nothing to a replica"
                time.sleep(0.01)
            time.sleep(10 * STEP)  # some tokens are out
            cuts.append(running(ports[0]))
            victim.kill()
            texts = [each.result(60) for each in work]
    assert cuts[0] >= 3
    plain = engines.make()
    for seed, text in enumerate(texts):
        assert text == plain.generate("the quick", raw=seed % 2 == 0, **params(seed)).text

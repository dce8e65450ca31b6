"""The server as a process: sockets, signals, disconnects, slow clients."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serve_tables import Slow
from tests.helpers.serving import TEXT, Json, events, served

from paceline.errors import InvalidOption, ModelError
from paceline.serving.app import Service
from paceline.serving.logs import JsonLines, request_id, set_up
from paceline.serving.model import ServedModel
from paceline.serving.plan import Plan, plan_completion
from paceline.serving.server import bind, run, serve
from paceline.serving.settings import Settings
from paceline.serving.worker import ENDED

ROOT = Path(__file__).parents[2]
TEXTS = "/v1/completions"
LONG = TEXT | {"max_tokens": 60, "ignore_eos": True, "temperature": 0}
# The tokens of LONG take about half a second.
STEP = 0.008


class Process:
    """A server process, and its lines on standard error."""

    def __init__(self, options: Json) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.serve_tables", json.dumps(options)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.port = int(re.findall(r":(\d+)", self.await_line("listening"))[-1])
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)

    def await_line(self, part: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(f"the server ended: {''.join(self.lines)}")

    def ended(self, seconds: float) -> int:
        """Return the exit code; fails if it takes longer."""
        return self.process.wait(seconds)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(self, **fields: Any) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{self.port}{TEXTS}", json=LONG | fields, timeout=30)


@contextmanager
def server(ready: bool = True, **options: Any) -> Iterator[Process]:
    process = Process(options)
    try:
        if ready:
            process.await_line('"ready"')
        yield process
    finally:
        process.process.kill()
        process.process.communicate()
        process.http.close()


def alone(body: Json) -> str:
    params = {"max_new_tokens": body["max_tokens"], "ignore_eos": True}
    return engines.make().generate(body["prompt"], raw=True, **params).text


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def accepted(process: Process) -> float:
    return gauge(process, "num_requests_accepted")


def gauge(process: Process, name: str) -> float:
    page = process.http.get("/metrics").text
    [value] = re.findall(rf"^paceline:{name} (\S+)$", page, re.MULTILINE)
    return float(value)


def test_health_is_503_until_the_model_is_there(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    with server(ready=False, load=str(gate)) as process:
        assert process.http.get("/health").status_code == 503
        assert process.ask().status_code == 503
        assert process.http.get("/v1/models").status_code == 503
        gate.write_text("on")
        process.await_line('"ready"')
        assert process.http.get("/health").status_code == 200
        assert process.ask().json()["choices"][0]["text"] == alone(LONG)


def test_a_model_that_does_not_load_ends_the_server(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    gate.write_text("fail")
    with server(ready=False, load=str(gate)) as process:
        process.await_line("the model is broken: take another")
        assert process.ended(5) == 2


def test_a_signal_while_loading_ends_the_server(tmp_path: Path) -> None:
    with server(ready=False, load=str(tmp_path / "never")) as process:
        assert process.http.get("/health").status_code == 503
        process.process.send_signal(signal.SIGTERM)
        assert process.ended(5) == 0


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidOption, match=f":{port} .*in use"):
            serve(Settings(port=port), (), lambda: served())


def test_a_signal_lets_accepted_requests_end() -> None:
    with server(step=STEP, settings={"max_batch": 2}) as process, ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(process.ask, stream=bool(i % 2)) for i in range(8)]
        until(lambda: accepted(process) == 8)
        process.process.send_signal(signal.SIGTERM)
        until(lambda: process.http.get("/health").status_code == 503)
        assert process.ask().status_code == 503
        for i, work in enumerate(asked):
            response = work.result()
            found = events(response.text) if i % 2 else [response.json()]
            text = "".join(choice["text"] for each in found for choice in each["choices"])
            assert text == alone(LONG)
        assert process.ended(3) == 0


def test_a_second_signal_ends_streams_with_an_error() -> None:
    with server(step=0.05) as process, ThreadPoolExecutor(1) as pool:
        work = pool.submit(process.ask, stream=True)
        until(lambda: accepted(process) == 1)
        process.process.send_signal(signal.SIGTERM)
        process.await_line("draining")
        process.process.send_signal(signal.SIGTERM)
        assert process.ended(2) == 0
        text = work.result().text
        assert "shutting down" in events(text)[-1]["error"]["message"]
        assert text.endswith("data: [DONE]\n\n")


def test_without_time_to_drain_answers_end_with_an_error() -> None:
    settings = {"shutdown_timeout": 0}
    with server(step=0.05, settings=settings) as process, ThreadPoolExecutor(2) as pool:
        stream, plain = pool.submit(process.ask, stream=True), pool.submit(process.ask)
        until(lambda: accepted(process) == 2)
        process.process.send_signal(signal.SIGTERM)
        assert process.ended(3) == 0
        assert "error" in events(stream.result().text)[-1]
        assert plain.result().status_code == 503


def test_answers_of_a_killed_server_are_resumed_on_another() -> None:
    sampled = {"temperature": 1.0, "seed": 4, "presence_penalty": 1.0, "stop": ["zz"]}
    body = LONG | sampled | {"stream": True, "return_token_ids": True}
    said: list[str] = ["", "", ""]
    tokens: list[list[int]] = [[], [], []]
    prompts = ["dog", "the quick", "lazy lazy"]

    def read(process: Process, place: int, resume: list[int]) -> bool:
        fields = body | {"prompt": prompts[place], "resume_token_ids": resume}
        url = f"http://127.0.0.1:{process.port}{TEXTS}"
        try:
            with httpx.stream("POST", url, json=fields, timeout=30) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        [choice] = json.loads(line[6:])["choices"]
                        said[place] += choice["text"]
                        tokens[place] += choice["token_ids"]
                    elif line == "data: [DONE]":
                        return True
        except httpx.TransportError:
            pass
        return False

    with server(step=STEP) as process, ThreadPoolExecutor(3) as pool:
        work = [pool.submit(read, process, place, []) for place in range(3)]
        until(lambda: all(len(each) > 5 for each in tokens))
        process.process.kill()
        assert [each.result() for each in work] == [False] * 3
        assert all(len(each) < body["max_tokens"] for each in tokens)
    with server() as process:
        for place in range(3):
            assert read(process, place, list(tokens[place]))
    alone = engines.make()
    params = {"max_new_tokens": 60, "ignore_eos": True, **sampled}
    for place in range(3):
        expected = alone.generate(prompts[place], raw=True, **params)
        assert said[place] == expected.text
        assert tokens[place] == list(expected.token_ids)


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    with server(settings={"max_waiting": 400, "body_timeout": 0.3}) as process:
        yield process


def posted(body: Json) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (
        TEXTS.encode(),
        len(data),
        data,
    )


def test_clients_that_leave_leave_nothing_behind(shared: Process) -> None:
    for number in range(100):
        whole = posted(LONG | {"stream": number % 2 == 0})
        with shared.connect() as connection:
            connection.sendall(whole[: 10 + 2 * number] if number % 5 == 0 else whole)
            if number % 4 == 2:
                connection.recv(100)
    until(lambda: accepted(shared) == 0)
    until(lambda: gauge(shared, "num_requests_running") == 0)
    assert gauge(shared, "num_requests_waiting") == 0
    assert shared.ask().json()["choices"][0]["text"] == alone(LONG)


def test_a_slow_reader_is_cut_off_and_holds_up_nobody(shared: Process) -> None:
    # More than the buffers of the kernel take, of 4 MiB each.
    fields = {"prompt": "dog", "max_tokens": 390, "n": 48, "logprobs": 20, "stream": True}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", shared.port))
        connection.sendall(posted(LONG | fields))
        until(lambda: accepted(shared) == 48)
        assert shared.ask().json()["choices"][0]["text"] == alone(LONG)
        until(lambda: gauge(shared, "num_requests_running") == 0, 30)
        answer = b""
        while b"[DONE]" not in answer[-100:]:
            part = connection.recv(1 << 20)
            assert part
            answer += part
        assert b"reads too slowly" in answer[-1000:]


@pytest.mark.parametrize("sent", ["", "POST / HTTP/1.1\r\nx: "])
def test_a_head_that_does_not_come_closes_the_connection(shared: Process, sent: str) -> None:
    with shared.connect() as connection:
        connection.sendall(sent.encode())
        assert connection.recv(100) == b""


def test_a_body_that_does_not_come_is_refused(shared: Process) -> None:
    with shared.connect() as connection:
        connection.sendall(posted(LONG)[:-5])
        answer = b""
        while b"408" not in answer:
            part = connection.recv(1000)
            assert part
            answer += part


def test_garbage_is_answered_or_closed(shared: Process) -> None:
    for garbage in [b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"{}" * 9]:
        with shared.connect() as connection:
            connection.sendall(garbage)
            assert connection.recv(1000)[:12] in (b"HTTP/1.1 400", b"")
    assert shared.ask().status_code == 200


def test_logs_hold_no_prompts() -> None:
    with server() as process:
        process.ask(prompt="lazy lazy secret")
        process.http.post(TEXTS, json={"prompt": 3, "x": "secret"}, headers={"x-request-id": "me"})
        process.http.get("/secret%0d%0aset-cookie:%20x")
        process.process.send_signal(signal.SIGTERM)
        process.await_line("Finished")
        lines = [json.loads(line) for line in process.lines]
        assert "secret" not in "".join(process.lines)
        [answered] = [line for line in lines if line["message"] == "answered"]
        assert answered["completion_tokens"] == 60
        assert any(line.get("request_id") == "me" for line in lines)


# In this process, where a test sees what is inside:


async def living(
    settings: Settings,
    load: Callable[[], ServedModel],
    act: Callable[[Service, httpx.AsyncClient], Awaitable[None]],
) -> None:
    """Run a server in this process while `act` asks it, until `act` has ended it by a signal."""
    listener = bind(settings)
    service = Service(settings)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=url) as http:
            running = asyncio.ensure_future(run(service, load, listener))
            await act(service, http)
            await running
    finally:
        listener.close()


def test_the_life_of_a_server() -> None:
    go = threading.Event()

    def load() -> ServedModel:
        go.wait(30)
        return served()

    async def act(service: Service, http: httpx.AsyncClient) -> None:
        assert (await http.get("/health")).status_code == 503
        go.set()
        while (await http.get("/health")).status_code == 503:
            await asyncio.sleep(0.001)
        answer = await http.post(TEXTS, json=LONG)
        assert answer.json()["choices"][0]["text"] == alone(LONG)
        worker = service.hosting.models[0].worker
        assert worker is not None
        worker.core.engine.step = list  # type: ignore[method-assign,assignment]  # without an end
        stream = asyncio.ensure_future(http.post(TEXTS, json=LONG | {"stream": True}))
        while service.idle:
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        while service.gate.closed is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert "error" in events((await stream).text)[-1]

    asyncio.run(living(Settings(port=0, body_timeout=5), load, act))


def test_an_engine_whose_thread_ends_is_told_to_all() -> None:
    async def act(service: Service, http: httpx.AsyncClient) -> None:
        while service.gate.closed is not None:
            await asyncio.sleep(0.001)
        core = service.hosting.models[0].worker.core  # type: ignore[union-attr]  # it is open
        core.engine.step = list  # type: ignore[method-assign,assignment]  # without an end
        bodies = [LONG, LONG | {"stream": True}]
        asked = [asyncio.ensure_future(http.post(TEXTS, json=body)) for body in bodies]
        while core.load.waiting + core.load.running < 2 and core.jobs < 2:
            await asyncio.sleep(0.001)
        core.turn = None  # type: ignore[method-assign,assignment]  # cannot be called
        plain, stream = await asyncio.gather(*asked)
        assert plain.status_code == 500
        assert "restart the server" in plain.json()["error"]["message"]
        assert "restart the server" in events(stream.text)[-1]["error"]["message"]
        health = await http.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": ENDED})
        assert (await http.post(TEXTS, json=LONG)).status_code == 503
        assert service.idle
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(living(Settings(port=0), served, act))


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_before_they_are_tokenised_hold_nothing(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    go, begun = threading.Event(), []

    def plan(*arguments: Any) -> Plan:
        begun.append(arguments)
        go.wait(30)
        return plan_completion(*arguments)

    monkeypatch.setattr("paceline.serving.fill.plan_completion", plan)

    async def act(service: Service, http: httpx.AsyncClient) -> None:
        while service.gate.closed is not None:
            await asyncio.sleep(0.001)
        count = 64  # more than there are threads
        bodies = [LONG | {"stream": stream}] * count
        asked = [asyncio.ensure_future(http.post(TEXTS, json=body)) for body in bodies]
        while service.gate.sequences < count:
            await asyncio.sleep(0.001)
        for each in asked:
            each.cancel()
        while not service.idle:
            await asyncio.sleep(0.001)
        held = len(begun)
        go.set()
        assert (await http.post(TEXTS, json=LONG)).json()["choices"][0]["text"] == alone(LONG)
        assert len(begun) == held + 1 < count
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(living(Settings(port=0), served, act))


def test_the_error_of_loading_ends_the_server() -> None:
    def load() -> ServedModel:
        raise ModelError("broken: take another")

    async def act(service: Service, http: httpx.AsyncClient) -> None: ...

    with pytest.raises(ModelError, match="broken"):
        asyncio.run(living(Settings(port=0), load, act))


def test_a_connection_without_a_head_is_closed() -> None:
    async def act(service: Service, http: httpx.AsyncClient) -> None:
        while service.gate.closed is not None:
            await asyncio.sleep(0.001)
        port = http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        assert (await http.post(TEXTS, json=LONG)).status_code == 200
        os.kill(os.getpid(), signal.SIGINT)

    asyncio.run(living(Settings(port=0, body_timeout=0.1), served, act))


def test_a_server_serves_until_it_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> ServedModel:
        os.kill(os.getpid(), signal.SIGTERM)
        return served()

    with caplog.at_level("INFO", "paceline.serving"):
        serve(Settings(port=0), (), load)
    assert "listening on http://127.0.0.1:" in caplog.text


def test_a_model_that_comes_after_the_end_is_not_opened() -> None:
    go, loader = threading.Event(), list[threading.Thread]()

    def load() -> ServedModel:
        loader.append(threading.current_thread())
        go.wait(30)
        return served()

    async def act(service: Service, http: httpx.AsyncClient) -> None:
        async def emptied() -> None:
            go.set()
            await asyncio.to_thread(loader[0].join)
            await asyncio.sleep(0.01)  # for what the thread has told the loop

        service.emptied = emptied  # type: ignore[method-assign]
        assert (await http.get("/health")).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # before the first has begun to drain: they are one

    async def whole() -> None:
        await living(Settings(port=0), load, act)

    asyncio.run(whole())


def test_a_signal_does_not_wait_for_a_model_that_loads() -> None:
    go = threading.Event()

    def load() -> ServedModel:
        go.wait(30)
        return served()

    async def act(service: Service, http: httpx.AsyncClient) -> None:
        assert (await http.get("/health")).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        asyncio.run(living(Settings(port=0), load, act))
    finally:
        go.set()


def test_an_answer_may_take_longer_than_a_head() -> None:
    async def act(service: Service, http: httpx.AsyncClient) -> None:
        while service.gate.closed is not None:
            await asyncio.sleep(0.001)
        answer = await http.post(TEXTS, json=LONG)
        assert answer.json()["choices"][0]["text"] == alone(LONG)
        os.kill(os.getpid(), signal.SIGTERM)

    def load() -> ServedModel:
        return served(engines.make(Slow(0.005)))

    asyncio.run(living(Settings(port=0, body_timeout=0.2), load, act))


def test_lines_of_the_log_are_json() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "a\nb %d", (3,), None)
    vars(record)["path"] = "/v1"
    request_id.set("me")
    try:
        raise ValueError("what")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["message"], found["request_id"], found["path"]) == ("a\nb 3", "me", "/v1")
    assert "ValueError: what" in found["error"]
    plain = logging.LogRecord("x", logging.INFO, "", 0, "ready", None, None)
    found = json.loads(contextvars.Context().run(JsonLines().format, plain))
    assert found.keys() == {"time", "level", "message"}


@pytest.mark.parametrize("text", [True, False])
def test_logs_go_to_standard_error(text: bool) -> None:
    names = ("paceline", "uvicorn")
    before = [
        (vars(logging.getLogger(name)), dict(vars(logging.getLogger(name)))) for name in names
    ]
    try:
        set_up(text)
        [handler] = logging.getLogger("paceline").handlers
        assert isinstance(handler.formatter, JsonLines) != text
    finally:
        for now, then in before:
            now.update(then)

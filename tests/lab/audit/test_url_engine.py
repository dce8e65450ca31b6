"""An OpenAI-compatible endpoint, real HTTP over the loopback interface."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.engine import SeededRequest
from paceline.lab.audit.outside import run
from paceline.lab.audit.remote import UrlEngine

Body = dict[str, Any]


@contextmanager
def server(answer: Callable[[Body], tuple[int, Any]]) -> Iterator[str]:
    """Answers POST /v1/completions by `answer`; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, content = answer(body) if self.path == "/v1/completions" else (404, {})
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/v1"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def coin(body: Body) -> tuple[int, Any]:
    """Two tokens by the seed's parity; a biased coin where the request says so."""
    seed = body["seed"] * 2654435761 % 2**32 >> 8
    heads = seed % 10 < (8 if body.get("biased") else 5)
    tokens = [" heads" if heads and body["temperature"] else " tails"] * body["max_tokens"]
    logprobs: Body = {"tokens": tokens}
    if body["max_tokens"] == 1:
        logprobs["top_logprobs"] = [{" heads": math.log(0.5), " tails": math.log(0.5)}]
    return 200, {"choices": [{"text": "".join(tokens), "logprobs": logprobs}]}


PLAN = AuditExtent(
    greedy_prompts=1, greedy_tokens=2, check_prompts=("Toss",), samples=150, tokens=2
)


def test_a_fair_server_passes() -> None:
    with server(coin) as url:
        report = run(UrlEngine(url, model="coin", on_fields={"speculative": True}), PLAN)
    assert report.passed
    assert report.about["model"] == "coin"
    assert [each.test for each in report.distributions] == ["first token", "sequences"]
    assert report.distributions[0].distance < 0.15


def test_a_server_that_is_biased_with_speculation_is_caught() -> None:
    with server(coin) as url:
        report = run(UrlEngine(url, on_fields={"biased": True}), PLAN)
    assert len(report.rejected) == 2


def test_requests_hold_what_the_audit_means() -> None:
    seen: list[Body] = []

    def answer(body: Body) -> tuple[int, Any]:
        seen.append(body)
        return coin(body)

    with server(answer) as url:
        engine = UrlEngine(url + "/", model="m", off_fields={"speculation": False})
        ask = SeededRequest((1, 2), False, 0.5, 3, (4, 5))
        assert [len(tokens) for tokens in engine.continuations(ask)] == [3, 3]
    assert [body["seed"] for body in seen] == [4, 5]
    assert seen[0] == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "temperature": 0.5,
        "seed": 4,
        "logprobs": 1,
        "speculation": False,
    }


def test_text_without_tokens_is_compared_by_characters() -> None:
    with server(lambda body: (200, {"choices": [{"text": "abc"}]})) as url:
        engine = UrlEngine(url, on_fields={"x": 1})
        assert engine.continuations(SeededRequest("a", True, 1.0, 3, (0,))) == [("a", "b", "c")]
        assert engine.distribution("a", 1.0) is None


def test_a_partial_law_is_not_tempered() -> None:
    with server(coin) as url:
        engine = UrlEngine(url, on_fields={"x": 1})
        assert engine.distribution("a", 1.0) == pytest.approx({" heads": 0.5, " tails": 0.5})
        assert engine.distribution("a", 0.7) is None


def test_a_server_that_refuses_logprobs_has_no_law() -> None:
    with server(lambda body: (400, {})) as url:
        assert UrlEngine(url, on_fields={"x": 1}).distribution("a", 1.0) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((500, {}), "refuses the request .500"),
        ((200, b"<html>"), "not JSON"),
        ((200, []), "no choices"),
        ((200, {"choices": []}), "no choices"),
        ((200, {"choices": [{"text": None}]}), "no text"),
    ],
)
def test_wrong_answers(content: tuple[int, Any], message: str) -> None:
    with server(lambda body: content) as url:
        engine = UrlEngine(url, on_fields={"x": 1})
        with pytest.raises(EngineFailed, match=message) as raised:
            engine.continuations(SeededRequest("a", True, 1.0, 3, (0,)))
    assert "\n" not in str(raised.value)


def test_a_server_that_is_not_there() -> None:
    with server(coin) as url:
        pass
    with pytest.raises(EngineFailed, match=r"cannot reach .*: start the server"):
        UrlEngine(url, on_fields={"x": 1}).continuations(SeededRequest("a", True, 1.0, 3, (0,)))


def test_on_and_off_must_be_told_apart() -> None:
    with pytest.raises(InvalidOption, match="same endpoint"):
        UrlEngine("http://127.0.0.1:1/v1")
    with pytest.raises(InvalidOption, match="is no URL"):
        UrlEngine("http://127.0.0.1:1/v1", "localhost:2")

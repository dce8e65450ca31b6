"""How long does a server give no answer while it reads one large body?

    python -m benchmarks.serving.stalls --model smollm2-135m

A thread asks /health every 5 ms while bodies that are hard to read come by turns: large texts, many
messages, deep nesting, lists of tools, stops, biases, schemas, images, packed zeros. For each the
status, the seconds until its answer, and the longest time of /health are written. The exit code is
1 if one of these is over --most.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.serving.speed import start

Json = dict[str, Any]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SIZE, PORT = 7_900_000, 8791
SAY: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def nested(depth: int) -> Any:
    out: Any = 1
    for _ in range(depth):
        out = [out]
    return out


def tool(name: str, properties: int = 2) -> Json:
    fields = {f"field_{i}": {"type": "string", "description": "text"} for i in range(properties)}
    function = {"name": name, "parameters": {"type": "object", "properties": fields}}
    return {"type": "function", "function": function}


def bodies() -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Yield name, path, body and headers."""

    def chat(content: Any, **more: Any) -> Json:
        return SAY | {"messages": [{"role": "user", "content": content}]} | more

    def schema(properties: Json) -> Json:
        made = {"name": "s", "schema": {"type": "object", "properties": properties}}
        return {"response_format": {"type": "json_schema", "json_schema": made}}

    words, url = (
        "the quick brown fox " * (SIZE // 20),
        "data:image/png;base64," + "iVBORw0K" * 900_000,
    )
    image = [{"type": "image_url", "image_url": {"url": url}}]
    wide = {f"p{i}": {"type": "string", "enum": [f"a{j}" for j in range(50)]} for i in range(900)}
    deep: Json = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    texts: list[tuple[str, str, Json]] = [
        ("text of 7.9 MB", CHAT, chat(words)),
        ("text without spaces", CHAT, chat("x" * SIZE)),
        ("text of spaces", CHAT, chat(" " * SIZE)),
        ("text of line breaks", TEXT, {"prompt": "\n" * (SIZE // 2)}),
        ("text of special tokens", CHAT, chat("<|im_end|>" * (SIZE // 10))),
        ("text of one emoji", TEXT, {"prompt": "\U0001f600" * (SIZE // 12)}),
        ("text below the limit", CHAT, chat(words[:60_000])),
        ("input of 7.9 MB", RESPONSES, {"input": words}),
        ("tokenize 7.9 MB", "/tokenize", {"prompt": words}),
        ("20,000 messages", CHAT, SAY | {"messages": SAY["messages"] * 20_000}),
        ("200,000 messages", CHAT, SAY | {"messages": SAY["messages"] * 200_000}),
        ("20,000 parts", CHAT, chat([{"type": "text", "text": "a"}] * 20_000)),
        ("20,000 items", RESPONSES, {"input": [{"role": "user", "content": "a"}] * 20_000}),
        ("prompts", TEXT, {"prompt": ["a"] * 500_000}),
        ("a million ids", TEXT, {"prompt": [5] * 1_000_000}),
        ("two million ids", TEXT, {"prompt": [5] * 2_000_000}),
        ("nested 900", CHAT, chat(nested(900))),
        ("5,000 tools", CHAT, SAY | {"tools": [tool(f"t{i}") for i in range(5_000)]}),
        ("a tool of 5,000 fields", CHAT, SAY | {"tools": [tool("t", 5_000)]}),
        ("64 long stops", CHAT, SAY | {"stop": ["s" * 1000] * 64}),
        ("100,000 stops", CHAT, SAY | {"stop": ["s"] * 100_000}),
        ("a million stop ids", CHAT, SAY | {"stop_token_ids": [5] * 900_000}),
        ("a million allowed ids", CHAT, SAY | {"allowed_token_ids": [5] * 900_000}),
        ("100,000 biases", CHAT, SAY | {"logit_bias": {str(i): 1 for i in range(100_000)}}),
        ("image of 7 MB", CHAT, chat(image)),
        ("schema of 45,000 values", CHAT, SAY | schema(wide)),
        ("schema of 300 levels", CHAT, SAY | schema({"a": deep})),
        ("schema of 7 MB", CHAT, SAY | schema({"a": {"description": words}})),
        ("choices", CHAT, SAY | {"guided_choice": [f"c{i}" for i in range(200_000)]}),
        ("regex of 1 MB", CHAT, SAY | {"regex": "(a|b)?" * 170_000}),
        ("regex of counts", CHAT, SAY | {"regex": "((a{1,500}){1,500}){1,500}"}),
        ("grammar of 1 MB", CHAT, SAY | {"grammar": 'root ::= "a"\n' + 'x ::= "b"\n' * 100_000}),
        ("metadata of 7 MB", CHAT, SAY | {"metadata": {"resume_token_ids": words}}),
        ("unknown fields", CHAT, SAY | {f"field{i}": 1 for i in range(200_000)}),
    ]
    for name, path, body in texts:
        yield name, path, json.dumps(body, ensure_ascii=False).encode(), {}
    yield "lists of 8 MB", CHAT, b'{"x": [' + b"[]," * 2_600_000 + b"0]}", {}
    yield "1,000 levels of lists", CHAT, b'{"x":' + b"[" * 40_000 + b"]" * 40_000 + b"}", {}
    yield "packed zeros", CHAT, gzip.compress(b" " * 10**9, 1), {"content-encoding": "gzip"}


class Prober(threading.Thread):
    """Asks /health until it is stopped, and keeps the longest time."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.longest, self.stopped = port, 0.0, False

    def run(self) -> None:
        line = http.client.HTTPConnection("127.0.0.1", self.port)
        while not self.stopped:
            began = time.perf_counter()
            line.request("GET", "/health")
            line.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - began)
            time.sleep(0.005)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--most", type=float, default=0.1, help="seconds of /health")
    parser.add_argument("--only", default="", help="pattern of the names")
    asked = parser.parse_args()
    process = start(asked.model, PORT, ["--log-text"])
    try:
        worst = measured(asked.only)
    finally:
        process.terminate()
        process.wait()
    return int(worst > asked.most)


def measured(only: str) -> float:
    """Send all bodies and return the longest time of /health."""
    prober, worst = Prober(PORT), 0.0
    prober.start()
    time.sleep(2)
    print(f"{prober.longest:8.3f} s of /health without a body", flush=True)
    for name, path, data, headers in bodies():
        if not re.search(only, name):
            continue
        prober.longest, began = 0.0, time.perf_counter()
        line = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
        line.request("POST", path, data, {"content-type": "application/json", **headers})
        answer = line.getresponse()
        said = answer.read(100_000_000).decode("utf-8", "replace")
        seconds = time.perf_counter() - began
        time.sleep(0.1)
        worst = max(worst, prober.longest)
        told = json.loads(said)["error"]["message"] if answer.status >= 400 else "answered"
        print(
            f"{prober.longest:8.3f} s of /health, {answer.status} after {seconds:6.2f} s: "
            f"{name} ({len(data):,} bytes): {told[:90]}",
            flush=True,
        )
    prober.stopped = True
    return worst


if __name__ == "__main__":
    sys.exit(main())

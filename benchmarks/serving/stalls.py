"""How long does a server give no answer while it reads one large body?

    python -m benchmarks.serving.stalls --model smollm2-135m

A thread asks /health every 5 ms while bodies that are hard to read, and requests whose answers are
large, come by turns: large texts, many messages, deep nesting, lists of tools, stops, biases,
schemas, images, packed zeros, files, batches, embeddings, log-probabilities, long streams. For each
the status, the seconds until its answer, and the longest time of /health are written. Then bodies
whose grammars compile at once are answered as each alone. The exit code is 1 if a text differs, or
if a time of /health is over --most.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.serving.speed import serving

Json = dict[str, Any]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
SIZE, PORT = 7_900_000, 8791
USAGE = {"include_usage": True, "continuous_usage_stats": True}
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
        ("200,000 messages", CHAT, SAY | {"messages": SAY["messages"] * 200_000}),
        ("19,000 parts", CHAT, chat([{"type": "text", "text": "a"}] * 19_000)),
        ("19,000 items", RESPONSES, {"input": [{"role": "user", "content": "a"}] * 19_000}),
        ("prompts", TEXT, {"prompt": ["a"] * 240_000}),
        ("240,000 ids", TEXT, {"prompt": [5] * 240_000}),
        ("a million ids", TEXT, {"prompt": [5] * 1_000_000}),
        ("nested 900", CHAT, chat(nested(900))),
        ("4,000 tools", CHAT, SAY | {"tools": [tool(f"t{i}") for i in range(4_000)]}),
        ("a tool of 5,000 fields", CHAT, SAY | {"tools": [tool("t", 5_000)]}),
        ("64 long stops", CHAT, SAY | {"stop": ["s" * 1000] * 64}),
        ("100,000 stops", CHAT, SAY | {"stop": ["s"] * 100_000}),
        ("240,000 stop ids", CHAT, SAY | {"stop_token_ids": [5] * 240_000}),
        ("240,000 allowed ids", CHAT, SAY | {"allowed_token_ids": [5] * 240_000}),
        ("100,000 biases", CHAT, SAY | {"logit_bias": {str(i): 1 for i in range(100_000)}}),
        ("image of 7 MB", CHAT, chat(image)),
        ("schema of 45,000 values", CHAT, SAY | schema(wide)),
        ("schema of 300 levels", CHAT, SAY | schema({"a": deep})),
        ("schema of 7 MB", CHAT, SAY | schema({"a": {"description": words}})),
        ("choices", CHAT, SAY | {"guided_choice": [f"c{i}" for i in range(200_000)]}),
        ("regex of 1 MB", CHAT, SAY | {"regex": "(a|b)?" * 170_000}),
        ("regex of 290 KB", CHAT, SAY | {"regex": "(a|b)?" * 48_000}),
        ("regex of 95 KB", CHAT, SAY | {"regex": "(a|b)?" * 16_000}),
        ("regex of counts", CHAT, SAY | {"regex": "((a{1,500}){1,500}){1,500}"}),
        ("grammar of 1 MB", CHAT, SAY | {"grammar": 'root ::= "a"\n' + 'x ::= "b"\n' * 100_000}),
        ("metadata of 7 MB", CHAT, SAY | {"metadata": {"resume_token_ids": words}}),
        ("unknown fields", CHAT, SAY | {f"field{i}": 1 for i in range(200_000)}),
    ]
    # Bodies of other routes and fields, and requests whose answers are large.
    user, silent = SAY["messages"][0], {"type": "web_search_call", "id": "w", "status": "done"}
    some, said = {"max_tokens": 8, "logprobs": True, "top_logprobs": 20}, words[:20_000]
    called = {"function": {"name": "f", "arguments": json.dumps({"a": [1.5] * 900_000})}}
    past = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", **called}]}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1.5] * 240_000}}
    tops = {"prompt_logprobs": 20, "max_tokens": 1}
    long = {"max_tokens": 1_000, "ignore_eos": True, "temperature": 0}
    texts += [
        ("19,000 messages", CHAT, SAY | {"messages": [user] * 19_000}),
        ("a million characters", CHAT, chat(words[:1_000_000])),
        ("arguments of 240,000 values", CHAT, SAY | {"messages": [user, past]}),
        ("documents", CHAT, SAY | {"documents": [{"text": words}]}),
        ("arguments of the template", CHAT, SAY | {"chat_template_kwargs": {"a": [5] * 240_000}}),
        ("prediction of 7.9 MB", CHAT, SAY | {"prediction": {"type": "content", "content": words}}),
        ("breakers", CHAT, SAY | {"dry_multiplier": 1, "dry_sequence_breakers": ["b" * 100_000]}),
        ("silent items", RESPONSES, {"input": [silent] * 19_000 + [user], "max_output_tokens": 4}),
        ("metadata in a response", RESPONSES, {"input": "Hi", "metadata": {"a": words}}),
        ("blocks", MESSAGES, SAY | {"system": [{"type": "text", "text": "a"}] * 19_000}),
        ("input of a past call", MESSAGES, SAY | {"messages": [{**past, "content": [use]}]}),
        ("embedding of 7.9 MB", EMBEDDINGS, {"input": words}),
        ("2,000 embeddings", EMBEDDINGS, {"input": ["a b c"] * 2_000}),
        ("infill of 7.9 MB", "/infill", {"input_prefix": words, "input_suffix": "a"}),
        ("infill of 19,000 files", "/infill", {"input_extra": [{"text": "a"}] * 19_000}),
        ("suffix", TEXT, {"prompt": ["a"] * 500, "suffix": "b" * 10_000}),
        ("ids as texts", "/tokenize", {"prompt": words[:500_000], "return_token_strs": True}),
        ("ids to text", "/detokenize", {"tokens": [5] * 240_000}),
        ("log-probabilities of a prompt", CHAT, chat(said, **tops)),
        ("the same as a stream", CHAT, chat(said, stream=True, **tops)),
        ("echo", TEXT, {"prompt": said, "echo": True, "logprobs": 20, "max_tokens": 1}),
        ("128 answers", CHAT, SAY | some | {"n": 128}),
        ("128 streams", CHAT, SAY | some | {"n": 128, "stream": True}),
        ("a long stream", CHAT, SAY | long | {"stream": True}),
        ("a long stream with usage", CHAT, SAY | long | {"stream": True, "stream_options": USAGE}),
        ("a long response", RESPONSES, {"input": "Hi", "stream": True, "max_output_tokens": 1_000}),
    ]
    for name, path, body in texts:
        yield name, path, json.dumps(body, ensure_ascii=False).encode(), {}
    yield "lists of 8 MB", CHAT, b'{"x": [' + b"[]," * 2_600_000 + b"0]}", {}
    yield "1,000 levels of lists", CHAT, b'{"x":' + b"[" * 19_000 + b"]" * 19_000 + b"}", {}
    yield "packed zeros", CHAT, gzip.compress(b" " * 10**9, 1), {"content-encoding": "gzip"}
    yield "body of 10 MB", CHAT, json.dumps(chat("x" * 10**7)).encode(), {}
    line = json.dumps({"custom_id": "i", "method": "POST", "url": CHAT, "body": SAY}) + "\n"
    for name, text in (
        ("file of short lines", "{}\n" * 33_000_000),
        ("file of one line", "x" * 99_000_000),
        ("file of requests", "".join(line.replace('"i"', f'"{i}"') for i in range(700_000))),
    ):
        yield name, "/v1/files", FORM % text.encode(), {"content-type": FORM_TYPE}
        yield f"batch of the {name}", "/v1/batches", b"", {}


FORM_TYPE = "multipart/form-data; boundary=ends-here"
FORM = b"""--ends-here\r
content-disposition: form-data; name="purpose"\r
\r
batch\r
--ends-here\r
content-disposition: form-data; name="file"; filename="lines.jsonl"\r
\r
%s\r
--ends-here--\r
"""


def probe(port: int, longest: Any) -> None:
    """Ask /health for ever, and note the longest time: in a process of its own."""
    line = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        began = time.perf_counter()
        line.request("GET", "/health")
        line.getresponse().read()
        longest.value = max(longest.value, time.perf_counter() - began)
        time.sleep(0.005)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--most", type=float, default=0.1, help="seconds of /health")
    parser.add_argument("--only", default="", help="pattern of the names")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as files,
        serving(asked.model, PORT, ["--log-text", "--files", files]),
    ):
        longest = multiprocessing.Value("d", 0.0)
        prober = multiprocessing.Process(target=probe, args=(PORT, longest), daemon=True)
        prober.start()
        try:
            time.sleep(10)  # what the first grammar needs is made once the server is ready
            worst, same = measured(asked.only, longest), together()
        finally:
            prober.terminate()
    return int(worst > asked.most or not same)


def ask(path: str, data: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """Post a body; return status and answer."""
    line = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    line.request("POST", path, data, {"content-type": "application/json", **headers})
    answer = line.getresponse()
    return answer.status, answer.read()


def measured(only: str, longest: Any) -> float:
    """Send all bodies and return the longest time of /health."""
    worst, file = 0.0, ""
    longest.value = 0.0
    time.sleep(2)
    print(f"{longest.value:8.3f} s of /health without a body", flush=True)
    for name, path, data, headers in bodies():
        if not re.search(only, name):
            continue
        if path == "/v1/batches":
            lines = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
            data = json.dumps(lines).encode()
        time.sleep(0.1)
        longest.value, began = 0.0, time.perf_counter()
        status, said = ask(path, data, headers)
        seconds = time.perf_counter() - began
        time.sleep(20 if path == "/v1/batches" else 0.1)  # it goes on behind its answer
        found = longest.value
        worst = max(worst, found)
        told = json.loads(said)["error"]["message"] if status >= 400 else f"{len(said):,} bytes"
        if path == "/v1/files" and status == 200:
            file = json.loads(said)["id"]
        if path == "/v1/batches" and status == 200:
            ask(f"{path}/{json.loads(said)['id']}/cancel", b"", {})
        print(
            f"{found:8.3f} s of /health, {status} after {seconds:6.2f} s: "
            f"{name} ({len(data):,} bytes): {told[:90]}",
            flush=True,
        )
    return worst


def together() -> bool:
    """Return whether texts whose grammars compile at once are those of each alone."""

    def text(number: int) -> str:
        fields = {f"f{number}_{k}": {"type": "string", "maxLength": 9} for k in range(60)}
        schema = {"type": "object", "properties": fields, "required": list(fields)[: number % 8]}
        format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        said = [{"role": "user", "content": f"Fill in {number}."}]
        asked = SAY | {"messages": said, "max_tokens": 48, "temperature": 0}
        _, answer = ask(CHAT, json.dumps(asked | {"response_format": format}).encode(), {})
        return str(json.loads(answer)["choices"][0]["message"]["content"])

    alone = [text(number) for number in range(16)]
    for number in range(100, 170):  # after which the server keeps none of these grammars
        text(number)
    with ThreadPoolExecutor(16) as pool:
        same = list(pool.map(text, range(16))) == alone
    print(f"texts of grammars that compile at once are {'' if same else 'NOT '}those alone")
    return same


if __name__ == "__main__":
    sys.exit(main())

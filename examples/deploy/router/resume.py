"""A stream that outlives its server: `python resume.py http://127.0.0.1:8000 MODEL PROMPT`.

Works with one server that is started again, and with replicas behind a router. What was lost is
asked for again with the tokens that came; a server with the same `system_fingerprint` sends exactly
the rest. With `messages` in place of `prompt` it is a chat.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

TRIES = 20
"""Most attempts in a row without a single new token."""


def stream(url: str, body: dict[str, Any], pause: float = 0.5) -> Iterator[str]:
    """Yield the text of an answer, in as many streams as it takes.

    Raises:
        ConnectionError: no token came in TRIES attempts, `pause` seconds apart.
        ValueError: the request was refused, or a server answers that gives other texts.
    """
    # With a seed of its own a request is the same one wherever it is repeated.
    body = {"seed": secrets.randbits(53)} | body | {"stream": True}
    tokens: list[int] = []
    fingerprint = None
    tries = 0
    while tries < TRIES:
        tries += 1
        try:
            # In metadata, since sglang-router takes fields that it does not know out of chats.
            text, held = "", {"return_token_ids": "true", "resume_token_ids": json.dumps(tokens)}
            for chunk in _chunks(url, body | {"metadata": {**body.get("metadata", {}), **held}}):
                mine = chunk["system_fingerprint"]
                fingerprint = fingerprint or mine
                if mine != fingerprint:
                    raise ValueError(f"{mine} does not continue texts of {fingerprint}")
                [choice] = chunk["choices"]
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                if "token_ids" not in choice:  # the last chunk of a step has those of all of it
                    continue
                tokens += choice["token_ids"]
                tries = 0
                yield text
                text = ""
                if choice["finish_reason"] is not None:
                    return
        except (httpx.TransportError, ConnectionError):
            time.sleep(pause)
    raise ConnectionError(f"no answer from {url}: are there servers?")


def _chunks(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    route = "chat/completions" if "messages" in body else "completions"
    with httpx.stream("POST", f"{url}/v1/{route}", json=body, timeout=60) as response:
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise ConnectionError(response.status_code)
        if response.status_code != 200:
            raise ValueError(response.read().decode())
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:  # such as a server that shuts down
                    raise ConnectionError(chunk["error"]["message"])
                yield chunk


if __name__ == "__main__":
    url, model, prompt = sys.argv[1:]
    for piece in stream(url, {"model": model, "prompt": prompt, "max_tokens": 200}):
        print(piece, end="", flush=True)
    print()

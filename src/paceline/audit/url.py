"""Adapter of an OpenAI-compatible completions endpoint for audits."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from paceline.audit.engine import Ask, Prompt, Token
from paceline.errors import EngineFailed, InvalidOption

# Number of top logprobs requested; servers may give fewer.
_TOP = 20


class UrlEngine:
    """Endpoint with speculation switched by URL or by request fields.

    Tokens are the texts in the server's logprobs. Without logprobs, characters are compared.
    """

    def __init__(
        self,
        on: str,
        off: str | None = None,
        *,
        model: str = "default",
        on_fields: Mapping[str, Any] | None = None,
        off_fields: Mapping[str, Any] | None = None,
        seconds: float = 600,
    ) -> None:
        """Bind base URLs such as "http://127.0.0.1:8000/v1"; `off` None is the same URL.

        Raises InvalidOption if a URL is malformed, or speculation on and off are the same.
        """
        off = on if off is None else off
        for url in (on, off):
            if not url.startswith(("http://", "https://")):
                raise InvalidOption(f"'{url}' is no URL: give http://HOST:PORT/v1")
        self._fields = {True: dict(on_fields or {}), False: dict(off_fields or {})}
        if on == off and self._fields[True] == self._fields[False]:
            raise InvalidOption(
                "speculation on and off are the same endpoint: give a second URL, or fields of "
                "the request that turn it on or off"
            )
        self._urls = {True: on.rstrip("/"), False: off.rstrip("/")}
        self._model = model
        self._seconds = seconds

    def about(self) -> Mapping[str, str]:
        return {
            "engine": "OpenAI-compatible endpoint",
            "model": self._model,
            **{
                f"speculation {word}": f"{self._urls[on]} {json.dumps(self._fields[on])}"
                for word, on in (("on", True), ("off", False))
            },
        }

    def prompt(self, text: str, chat: bool) -> Prompt:
        return text

    def continuations(self, ask: Ask) -> list[tuple[Token, ...]]:
        out: list[tuple[Token, ...]] = []
        for seed in ask.seeds:
            choice = self._post(
                ask.speculation,
                {
                    "prompt": _plain(ask.prompt),
                    "max_tokens": ask.tokens,
                    "temperature": ask.temperature,
                    "seed": seed,
                    "logprobs": 1,
                },
            )
            text, logprobs = choice.get("text"), choice.get("logprobs")
            tokens = logprobs.get("tokens") if isinstance(logprobs, dict) else None
            if not isinstance(text, str) or not isinstance(tokens, list | None):
                raise self._wrong(ask.speculation, "a choice has no text")
            out.append(tuple(list(text) if tokens is None else map(str, tokens)))
        return out

    def law(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        # Only at temperature 1: other temperatures need the tokens that the server leaves out.
        if temperature != 1:
            return None
        request = {"prompt": _plain(prompt), "max_tokens": 1, "temperature": 1.0, "seed": 0}
        try:
            choice = self._post(False, {**request, "logprobs": _TOP})
        except EngineFailed:  # servers differ in how many logprobs they allow
            return None
        try:
            top = choice["logprobs"]["top_logprobs"][0]
            law: dict[Token, float] = {str(token): math.exp(value) for token, value in top.items()}
        except (KeyError, TypeError, IndexError, AttributeError):
            return None
        return law if 0 < sum(law.values()) < 1 + 1e-3 else None

    def close(self) -> None: ...

    def _post(self, speculation: bool, content: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self._urls[speculation]}/completions"
        body = {"model": self._model, **content, **self._fields[speculation]}
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise EngineFailed(
                f"{url} refuses the request ({error.code} {error.reason}): check model and fields"
            ) from error
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or error
            raise EngineFailed(f"cannot reach {url} ({reason}): start the server") from error
        except ValueError:
            raise self._wrong(speculation, "not JSON") from None
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise self._wrong(speculation, "no choices")
        first: dict[str, Any] = choices[0]
        return first

    def _wrong(self, speculation: bool, what: str) -> EngineFailed:
        return EngineFailed(
            f"{self._urls[speculation]} answers wrongly ({what}): give the base URL of an "
            "OpenAI-compatible server, with /v1"
        )


def _plain(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)

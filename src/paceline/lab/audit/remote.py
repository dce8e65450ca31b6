"""Client of an engine process that speaks JSON lines on standard input and output.

The engine first writes `{"about": {...}}`, names and versions by string. Then it answers each line
by one line:

    {"continue": {"prompt": [1, 2] or "text", "speculation": true, "temperature": 1.0,
                  "tokens": 4, "seeds": [7, 8]}}      ->  {"tokens": [[5, 3, 2, 2], [5, 4, 1, 0]],
                                                           "accepted": 3}
    {"law": {"prompt": [1, 2], "temperature": 1.0}}   ->  {"law": [[5, 0.8], [4, 0.1]]}
    {"time": {"prompt": [1, 2], "speculation": true, "tokens": 2}}
        ->  {"tokens": [5, 3], "seconds": 0.2, "first_seconds": 0.1, "first_tokens": 1}
    {"batch": {"prompts": [[1, 2], [3]], "speculation": true, "tokens": 2}}
        ->  {"tokens": [[5, 3], [4, 4]], "seconds": 0.2, "first_seconds": 0.1, "first_tokens": 2}

"accepted" (drafted tokens among these) may be missing or null. "law" (next-token distribution) may
be null or partial. A timed answer is greedy and ignores end tokens; see `Timing` for its fields.
The first tokens of a batch are all that are out when its last text begins. Audits request neither.
`{"error": "one line"}` replaces an answer. The engine ends at the end of its input.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.engine import Prompt, SeededRequest, Tally, Timing, Token

_GRACE_SECONDS = 10


class JsonlEngine:
    """Drive a command that speaks JSON lines."""

    def __init__(
        self,
        command: Sequence[str],
        encode: Callable[[str, bool], Prompt] | None = None,
        *,
        name: str | None = None,
        seconds: float = 1800,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the engine and read its `about`; EngineFailed if it does not start.

        `encode` makes a prompt of a text, with or without chat template; None sends texts.
        `seconds` is the longest wait for one line; `environment` is added to this process's own.
        """
        self._name = name or Path(command[0]).name
        self._seconds = seconds
        self._encode = encode
        self._tally = Tally()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the engine)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                encoding="utf-8",
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise EngineFailed(
                f"cannot start '{self._name}' ({error.strerror}): check the command"
            ) from error
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            about = self._read().get("about")
            if not isinstance(about, dict):
                raise self._wrong("its first line is not its 'about'")
        except EngineFailed:
            self.close()
            raise
        self._about = {str(key): str(value) for key, value in about.items()}

    def about(self) -> Mapping[str, str]:
        return {**self._about, **self._tally.about()}

    def prompt(self, text: str, chat: bool) -> Prompt:
        return text if self._encode is None else self._encode(text, chat)

    def continuations(self, ask: SeededRequest) -> list[tuple[Token, ...]]:
        said = self.ask("continue", {n: getattr(ask, n) for n in ask.__slots__})
        answer, accepted = said.get("tokens"), said.get("accepted")
        if (
            not isinstance(answer, list)
            or len(answer) != len(ask.seeds)
            or not all(isinstance(row, list) and all(map(_is_token, row)) for row in answer)
        ):
            raise self._wrong(f"'tokens' is not a list of {len(ask.seeds)} lists of tokens")
        if not isinstance(accepted, int | None):
            raise self._wrong("'accepted' is not a number")
        rows = [tuple(row[: ask.tokens]) for row in answer]
        if ask.speculation:
            self._tally.add(sum(map(len, rows)), accepted)
        return rows

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        answer = self.ask("law", {"prompt": prompt, "temperature": temperature}).get("law")
        if answer is None:
            return None
        try:
            distribution = {token: float(mass) for token, mass in answer}
        except (TypeError, ValueError):
            raise self._wrong("'law' is not a list of pairs of token and probability") from None
        if not all(map(_is_token, distribution)) or not 0 < sum(distribution.values()) < 1 + 1e-3:
            raise self._wrong("'law' does not hold probabilities of tokens")
        return distribution

    @property
    def process(self) -> int:
        """Return the process id."""
        return self._process.pid

    def time(self, prompts: Sequence[tuple[int, ...]], speculation: bool, tokens: int) -> Timing:
        """Return greedy answers of `tokens` tokens each, and the times of all of them together.

        Their tokens stand one behind the other. EngineFailed as `continuations`.
        """
        asked = {"speculation": speculation, "tokens": tokens}
        try:
            if len(prompts) == 1:
                said = self.ask("time", {"prompt": prompts[0], **asked})
                rows = [said.pop("tokens")]
            else:
                said = self.ask("batch", {"prompts": prompts, **asked})
                rows = said.pop("tokens")
            timing = Timing(tuple(chain.from_iterable(rows)), **said)
            wrong = [len(row) for row in rows] != [tokens] * len(prompts) or not (
                timing.seconds > 0 and timing.first_seconds > 0
            )
        except (KeyError, TypeError):
            wrong = True
        if wrong:
            texts = f"{len(prompts)} texts of " if len(prompts) > 1 else ""
            raise self._wrong(f"it did not time {texts}{tokens} tokens")
        return timing

    def close(self) -> None:
        """End the engine's input, and kill it if it does not exit."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, what: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request of a kind; EngineFailed if there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({what: content}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._dead() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            self._process.kill()  # it would not notice that its input ends either
            raise self._wrong(f"it was silent for {self._seconds:g} seconds") from None
        if not line:
            raise self._dead()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._wrong(f"not JSON: {line.strip()[:60]!r}") from None
        if not isinstance(answer, dict):
            raise self._wrong("an answer is not an object")
        if "error" in answer:
            raise EngineFailed(
                f"engine '{self._name}' says: {' '.join(str(answer['error']).split())}"
            )
        return answer

    def _wrong(self, what: str) -> EngineFailed:
        return EngineFailed(
            f"engine '{self._name}' answers wrongly ({what}): see the protocol in docs/audit.md"
        )

    def _dead(self) -> EngineFailed:
        code = self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        last = f": {said[-1].strip()}" if said else ""
        return EngineFailed(f"engine '{self._name}' died with exit code {code}{last}")


def _is_token(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


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

    def continuations(self, ask: SeededRequest) -> list[tuple[Token, ...]]:
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

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
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
            distribution: dict[Token, float] = {
                str(token): math.exp(value) for token, value in top.items()
            }
        except (KeyError, TypeError, IndexError, AttributeError):
            return None
        return distribution if 0 < sum(distribution.values()) < 1 + 1e-3 else None

    def close(self) -> None: ...

    def _post(self, speculation: bool, content: Mapping[str, Any]) -> dict[str, Any]:
        url = f"{self._urls[speculation]}/completions"
        body = {"model": self._model, **content, **self._fields[speculation]}
        request = urllib.request.Request(
            url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
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

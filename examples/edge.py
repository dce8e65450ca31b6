"""A device that drafts with a small model of its own, for a server that verifies (after SLED).

    paceline serve --model LARGE.gguf &
    python edge.py http://127.0.0.1:8000 SMALL.gguf "Why is the sky blue?"

Every round sends what is known of the answer and a draft of what follows; the server verifies it in
one batch with those of other devices, and sends back the tokens that stand and one of its own. The
answer is that of the server alone for this prompt and seed, whatever is drafted. A round is a
function of what it says, so after a lost or late answer it is simply asked for again.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx

import paceline

Json = dict[str, Any]
Link = Callable[[Json], Json]
"""Sends a body of /v1/completions and returns the answer; TimeoutError or ConnectionError."""

TRIES = 20
"""Most attempts of a round."""


def over_http(url: str, seconds: float = 10.0) -> Link:
    """Return a link to a server."""
    http = httpx.Client(base_url=url, timeout=seconds)

    def ask(body: Json) -> Json:
        try:
            response = http.post("/v1/completions", json=body)
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from error
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise ConnectionError(f"the server answers {response.status_code}")
        if response.status_code != 200:
            raise ValueError(response.text)
        answer: Json = response.json()
        return answer

    return ask


class Edge:
    """A device: its engine drafts as many tokens as lately stood, and one more."""

    def __init__(self, engine: paceline.Engine, longest: int = 16) -> None:
        self.engine, self.longest = engine, longest
        self.rounds = self.repeated = self.drafted = self.accepted = 0

    def answer(
        self, link: Link, prompt: list[int], params: paceline.SamplingParams
    ) -> Iterator[int]:
        """Yield the tokens of an answer.

        Raises:
            ConnectionError: a round failed in TRIES attempts.
            ValueError: the server refused the request.
        """
        known: list[int] = []
        length = 4
        while len(known) < params.max_new_tokens:
            draft = self._draft(prompt, params, known, length)
            choice = self._round(link, prompt, params, known, draft)
            new = choice["token_ids"]
            stood = len(new) - (new != draft[: len(new)])  # the last is the server's own
            length = min(self.longest, stood + 1 if stood < len(draft) else length + 2)
            self.rounds += 1
            self.drafted += len(draft)
            self.accepted += stood
            known += new
            yield from new
            if choice["finish_reason"] == "stop":
                return

    def _draft(
        self, prompt: list[int], params: paceline.SamplingParams, known: list[int], length: int
    ) -> list[int]:
        room = params.max_new_tokens - len(known) - 1
        if room < 1:
            return []
        # With the seed and the position of the answer, so that draws are the server's own.
        mine = replace(params, max_new_tokens=len(known) + min(length, room))
        return list(self.engine.generate(prompt, mine, resume=known).token_ids[len(known) :])

    def _round(
        self,
        link: Link,
        prompt: list[int],
        params: paceline.SamplingParams,
        known: list[int],
        draft: list[int],
    ) -> Json:
        body = {
            "prompt": prompt,
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "resume_token_ids": known,
            "return_token_ids": True,
            "speculation": {"draft_token_ids": draft, "once": True},
        }
        for _ in range(TRIES):
            try:
                [choice] = link(body)["choices"]
            except (TimeoutError, ConnectionError):
                self.repeated += 1
            else:
                return choice
        raise ConnectionError(f"no answer in {TRIES} attempts: is the server there?")


if __name__ == "__main__":
    url, model, question = sys.argv[1:]
    engine = paceline.load(model, drafter="suffix-automaton")
    edge = Edge(engine)
    prompt = engine.tokenizer.prompt(question)
    params = paceline.SamplingParams(max_new_tokens=128, temperature=0.8, seed=secrets.randbits(53))
    tokens: list[int] = []
    for token in edge.answer(over_http(url), prompt, params):
        tokens.append(token)
        print(engine.tokenizer.decode(tokens), end="\r", flush=True)
    print(
        f"\n{len(tokens)} tokens in {edge.rounds} rounds; {edge.accepted} of {edge.drafted} stood"
    )

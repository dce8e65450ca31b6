"""Conversations about pictures with a server that drafts, beside the library's, which does not.

    python -m benchmarks.serving.pictures --model FOLDER --answers 2000 --record NAME

Conversations of two turns are drawn from a seed, each with up to `MOST` pictures or none, greedy
or sampled. The library answers them one by one, without drafts. Then so many clients have them with
`paceline serve`, streamed or whole, and tokens and texts are compared with ==. A second turn is to
find all rows of its pictures in the cache. The exit code is 1 if anything differs or is not found.
Any model that sees will do; `talking` of tests/helpers/tiny_vision.py makes one of random numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import numpy as np
from benchmarks.script import Findings, add_output, run_script
from benchmarks.serving.speed import serving

import paceline
from paceline.errors import EngineFailed
from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps
from paceline.models.pictures import Picture

Json = dict[str, Any]
MOST, PICTURES = 2, 12
SIDES = (24, 90)  # of pictures
TEXT = "what is the name of this thing here and where did you see it last time my friend"
FEWEST = 12  # words behind pictures, so that what the cache keeps in whole blocks covers them


class Turn(NamedTuple):
    """What is asked, the answer that it must have, and where the last picture ends, 0 without."""

    body: Json
    tokens: list[int]
    text: str
    pictures_end: int


Talk = tuple[Turn, Turn]


def png(seed: int) -> bytes:
    """Return a picture of random numbers."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (*rng.integers(*SIDES, 2), 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def talk(engine: paceline.Engine, files: Sequence[bytes], draw: random.Random) -> Talk:
    """Draw a conversation, and have it with the library; errors are those of `Engine.generate`."""
    shown = draw.sample(files, draw.randrange(MOST + 1))
    asked = {
        "type": "text",
        "text": " ".join(draw.choices(TEXT.split(), k=draw.randrange(FEWEST, 24))),
    }
    ours: list[Json] = [{"type": "image", "image": Picture.of(each)} for each in shown]
    coded = [b64encode(each).decode() for each in shown]
    theirs = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{each}"}}
        for each in coded
    ]
    both: list[list[Json]] = [
        [{"role": "user", "content": [*parts, asked]}] for parts in (ours, theirs)
    ]
    turns = []
    for _ in range(2):
        size = draw.randrange(8, 20)
        how = {"seed": draw.randrange(2**40), "temperature": draw.choice([0.0, 1.0])}
        how |= {"ignore_eos": True}
        done = engine.generate(both[0], max_new_tokens=size, **how)
        body = {"messages": both[1], "max_tokens": size, "return_token_ids": True, **how}
        end = pictures_end(engine, both[0]) if shown else 0
        turns.append(Turn(body, list(done.token_ids), done.text, end))
        more = " ".join(draw.choices(TEXT.split(), k=4))
        said = [{"role": "assistant", "content": done.text}, {"role": "user", "content": more}]
        both = [[*each, *said] for each in both]
    return turns[0], turns[1]


def pictures_end(engine: paceline.Engine, messages: list[Json]) -> int:
    """Return how many tokens of a prompt end with its last picture."""
    tokenizer = engine.tokenizer
    assert tokenizer.pictures is not None
    row, ids = tokenizer.special_ids[tokenizer.pictures.row], tokenizer.chat(messages)
    return len(ids) - ids[::-1].index(row)


async def ask(http: httpx.AsyncClient, body: Json) -> tuple[list[int], str, int]:
    """Return tokens and text of an answer, and how much of the prompt was cached.

    EngineFailed: the server refuses.
    """
    if not body.get("stream"):
        response = await http.post("/v1/chat/completions", json=body)
        chunks = [response.json()] if response.status_code == 200 else []
        fault = response.text
    else:
        sent = body | {"stream_options": {"include_usage": True}}
        async with http.stream("POST", "/v1/chat/completions", json=sent) as stream:
            lines = [line async for line in stream.aiter_lines()]
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        fault = " ".join(lines)
    if not chunks or any("error" in chunk for chunk in chunks):
        raise EngineFailed(f"the server answers {fault[:500]}")
    tokens, text, cached = list[int](), "", 0
    for chunk in chunks:
        for part in chunk["choices"]:
            said = part.get("message") or part.get("delta") or {}
            tokens += part.get("token_ids") or []
            text += said.get("content") or ""
        if usage := chunk.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return tokens, text, cached


@dataclass
class Found:
    """What clients found."""

    answers: int = 0
    streamed: int = 0
    with_pictures: int = 0
    second_turns: int = 0
    not_cached: int = 0
    differences: list[Json] = field(default_factory=list)


async def clients(
    http: httpx.AsyncClient, talks: Sequence[Talk], count: int, answers: int, draw: random.Random
) -> Found:
    """Have conversations by so many clients at once, until so many answers are there."""
    found = Found()

    async def client() -> None:
        while found.answers < answers:
            for number, turn in enumerate(draw.choice(talks)):
                body = turn.body | {"stream": draw.random() < 0.5}
                tokens, text, cached = await ask(http, body)
                found.answers += 1
                found.streamed += body["stream"]
                if (tokens, text) != (turn.tokens, turn.text):
                    different = {"body": str(body)[-400:], "said": text, "expected": turn.text}
                    found.differences.append(different)
                    print(f"different: {dumps(different)}", file=sys.stderr)
                if turn.pictures_end:
                    found.with_pictures += 1
                    found.second_turns += number
                    found.not_cached += number and cached < turn.pictures_end

    await asyncio.gather(*(client() for _ in range(count)))
    return found


async def visit(
    url: str, talks: Sequence[Talk], count: int, answers: int, draw: random.Random
) -> Found:
    """Have conversations with a server."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        return await clients(http, talks, count, answers, draw)


def findings(given: argparse.Namespace) -> Findings:
    """Compare a server with the library, and put it as a table."""
    draw = random.Random(given.seed)
    engine = paceline.load(given.model, drafter="none", threads=given.threads)
    files = [png(seed) for seed in range(PICTURES)]
    talks = [talk(engine, files, draw) for _ in range(given.talks)]
    flags = ["--drafter", given.drafter, "--threads", str(given.threads)]
    with serving(given.model, given.port, flags):
        url = f"http://127.0.0.1:{given.port}"
        found = asyncio.run(visit(url, talks, given.clients, given.answers, draw))
    columns = ["answers", "streamed", "about pictures", "differences", "second turns", "not cached"]
    row: list[results.Cell] = [found.answers, found.streamed, found.with_pictures]
    row += [len(found.differences), found.second_turns, found.not_cached]
    return Findings(
        title="Conversations about pictures: a server that drafts beside the library alone",
        topic="batching",
        command=f"python -m benchmarks.serving.pictures --model FOLDER --answers {given.answers}",
        columns=columns,
        rows=[row],
        note=f"{given.clients} clients, {given.talks} conversations of two turns with 0 to {MOST} "
        f"pictures, a small SmolVLM of random numbers, drafter {given.drafter}. *Second turns* are "
        "those about pictures; *not cached*, those that found a row of a picture missing.",
        figures={"differences": row[3], "second turns not cached": row[5]},
        data=vars(found),
        shown="\n".join(f"{name}: {each}" for name, each in zip(columns, row, strict=True)),
        code=int(bool(found.differences or found.not_cached)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and write --record."""
    parser = argparse.ArgumentParser(prog="pictures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--talks", type=int, default=60, help="different conversations")
    parser.add_argument("--answers", type=int, default=2000, help="of the server")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--drafter", default="suffix-automaton+recycling")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8094)
    add_output(parser)
    return run_script(parser, findings, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())

"""Answers of a server under load, compared with what the library alone says. Nothing may differ.

    python -m benchmarks.serving.oracle --model smollm2-135m --seconds 360

Cases are drawn from a seed: greedy and sampled texts and chats, penalties, biases, min-p, stops,
several answers, log-probabilities, JSON schemas, tools, resumed answers. The library answers each
without drafts. Then, for each drafter, `paceline serve` starts with a key-value cache so small that
requests are preempted, and 1 to 32 clients ask the cases at random, streamed or whole, with and
without drafts; a part hangs up. Tokens, text, calls, finish reason, usage and log-probabilities are
compared with ==. With --batches, beside that traffic 32 prompts are asked one by one and as one
request, again and again. Ctrl-C keeps what there is. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import httpx
from benchmarks.serving.speed import serving

import paceline
from paceline.errors import EngineFailed, PacelineError
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.prompts import BUILT_IN
from paceline.serving.answers.parser import AnswerParser
from paceline.serving.answers.style import find_style
from paceline.serving.messages import describe_tools

Json = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DRAFTERS = "auto,prompt-lookup,recycling,suffix-automaton+stand"
SAME: tuple[str, ...] = (
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "min_tokens",
    "ignore_eos",
)
SAME += ("presence_penalty", "frequency_penalty", "repetition_penalty")
TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind}},
                "required": [key],
                "additionalProperties": False,
            },
        },
    }
    for name, about, key, kind in (
        ("weather", "Weather of a city", "city", "string"),
        ("square", "Square of a number", "number", "integer"),
    )
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


class Case(NamedTuple):
    """A request, and the answer that it must have."""

    path: str
    body: Json
    expected: Json


# Cases, and the library's answers.


def draw_body(draw: random.Random) -> tuple[str, Json]:
    """Return a path and a body with a seed, mostly of few tokens."""
    words = draw.choice(BUILT_IN).turns[0].split()
    start = draw.randrange(max(1, len(words) - 40))
    text = " ".join(words[start : start + draw.randrange(4, 40)])
    body: Json = {"seed": draw.randrange(2**40), "max_tokens": draw.randrange(1, 49)}
    if draw.random() < 0.5:  # long enough to outgrow the room that was left for it
        body |= {"max_tokens": draw.randrange(100, 200), "ignore_eos": draw.random() < 0.7}
    body["temperature"] = draw.choice([0.0, 0.0, 0.7, 1.0, 1.5])
    body["return_token_ids"] = True
    options: list[Json] = [
        {"presence_penalty": 0.7, "frequency_penalty": 0.3},
        {"repetition_penalty": 1.2},
        {"logit_bias": {str(draw.randrange(300)): draw.uniform(-20, 6) for _ in range(4)}},
        {"min_p": 0.05},
        {"top_p": 0.9, "top_k": 40},
        {"stop": draw.sample([" the", ".", "\n", " and", "e "], 2)},
        {"stop": ["."], "include_stop_str_in_output": True},
        {"min_tokens": min(12, body["max_tokens"]), "stop_token_ids": [draw.randrange(300)]},
        {"ignore_eos": True},
        {"n": draw.randrange(2, 4)},
    ]
    for option in draw.sample(options, draw.randrange(4)):
        body |= option
    chat = draw.random() < 0.5
    if draw.random() < 0.4:
        tops = draw.randrange(6)
        body |= {"logprobs": True, "top_logprobs": tops} if chat else {"logprobs": tops}
    if draw.random() < 0.2:
        schema = {"name": "person", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        body.pop("min_tokens", None)  # which may be more than the schema allows
    if not chat:
        return TEXT, body | {"prompt": text}
    body["messages"] = [{"role": "user", "content": text}]
    if "response_format" not in body and draw.random() < 0.4:
        body |= {"tools": TOOLS, "tool_choice": draw.choice(["auto", "required", "required"])}
        body.pop("min_tokens", None)
    return CHAT, body


class Alone:
    """The library without drafts, asked one text at a time."""

    def __init__(self, engine: paceline.Engine) -> None:
        self.engine = engine

    def case(self, draw: random.Random) -> Case:
        """Draw a request and answer it; now and then a request goes on from its own answer."""
        path, body = draw_body(draw)
        kept = 0
        answers, prompt = self._answers(path, body)
        [(events, _), *more] = answers
        if not more and len(events) > 2 and draw.random() < 0.25:
            kept = draw.randrange(1, len(events) - 1)
            said = [token for event in events[:kept] for token in event.token_ids]
            body["resume_token_ids"] = said
        choices = [self._choice(path, body, events, kept) for events, _ in answers]
        tokens = sum(len(done.token_ids) for _, done in answers)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
        usage["total_tokens"] = prompt + tokens
        return Case(path, body, {"choices": choices, "usage": usage})

    def _answers(self, path: str, body: Json) -> tuple[list[tuple[list[Any], Any]], int]:
        engine, tokenizer = self.engine, self.engine.tokenizer
        style, extra = find_style(tokenizer.chat_template), dict[str, Any]()
        tops = body.get("logprobs")
        if path == TEXT:
            ids = tokenizer.prompt(body["prompt"], raw=True)
        else:
            messages, tools = body["messages"], body.get("tools", [])
            if tools and not tokenizer.reads("tools"):
                messages, tools = describe_tools(messages, tools), []
            ids = tokenizer.chat(messages, tools or None)
            extra["shown_tokens"] = style.shown_tokens(tokenizer)
            tops = body["top_logprobs"] if tops else None
        if "response_format" in body:
            extra["constraint"] = engine.grammar.json_schema(SCHEMA)
        mode = body.get("tool_choice")
        if mode == "required" or (mode == "auto" and style.before and not body.get("ignore_eos")):
            extra["constraint"] = engine.grammar.tool_calls(
                TOOLS, mode, begin=style.before, end=style.after, form=style.form
            )
        extra |= {name: body[name] for name in SAME if name in body}
        bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
        params = paceline.SamplingParams(
            max_new_tokens=body["max_tokens"],
            stop=tuple(body.get("stop", ())),
            stop_token_ids=tuple(body.get("stop_token_ids", ())),
            keep_stop=body.get("include_stop_str_in_output", False),
            logit_bias=bias,
            logprobs=tops,
        )
        answers = []
        for sample in range(body.get("n", 1)):
            events = list(engine.events(ids, params, sample=sample, **extra))
            answers.append((events, events[-1].completion))
        return answers, len(ids)

    def _choice(self, path: str, body: Json, events: list[Any], kept: int) -> Json:
        done, rest = events[-1].completion, events[kept:]
        text = "".join(event.text for event in rest)
        finish = "stop" if done.finish_reason == "loop" else done.finish_reason
        calls: list[Json] = []
        if body.get("tools"):
            style = find_style(self.engine.tokenizer.chat_template)
            parser = AnswerParser(style, [tool["function"]["name"] for tool in TOOLS])
            parser.feed("".join(event.text for event in events[:kept]))
            said, text = parser.feed(text) + parser.finish(), ""
            for delta in said:
                if delta.kind == "content":
                    text += delta.text
                else:
                    if delta.name or not calls:
                        calls.append({"name": delta.name, "arguments": ""})
                    calls[-1]["arguments"] += delta.text
            _hide_begun(calls, body)
            finish = "tool_calls" if parser.calls and finish == "stop" else finish
        found = [each for event in rest for each in event.logprobs]
        logprobs = None
        if done.logprobs or body.get("logprobs") not in (None, False):
            logprobs = [_numbers(path, each) for each in found]
        return {
            "text": text,
            "calls": calls,
            "token_ids": [token for event in rest for token in event.token_ids],
            "finish_reason": finish,
            "logprobs": logprobs,
        }


def _numbers(path: str, each: Any) -> list[Any]:
    # As a completion shows it, the token itself is always among the most probable.
    tops = [logprob for token, logprob in each.top if path == CHAT or token != each.token_id]
    return [each.logprob, sorted(tops + ([each.logprob] if path == TEXT else []))]


# Answers over HTTP.


async def ask(http: httpx.AsyncClient, case_path: str, body: Json) -> Json:
    """Return the answer in the shape of `Case.expected`, streams joined."""
    if not body.get("stream"):
        response = await http.post(case_path, json=body)
        _check(response.status_code, response.text)
        answer = response.json()
        return _joined([answer], body)
    chunks = []
    sent = body | {"stream_options": {"include_usage": True}}
    async with http.stream("POST", case_path, json=sent) as stream:
        if stream.status_code != 200:
            _check(stream.status_code, (await stream.aread()).decode())
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
    for chunk in chunks:
        if "error" in chunk:
            _check(500, json.dumps(chunk))
    return _joined(chunks, body)


def _check(status: int, text: str) -> None:
    if status != 200:
        raise EngineFailed(f"the server answers {status}: {text[:500]}")


def _joined(chunks: Sequence[Json], body: Json) -> Json:
    count = max((part["index"] for chunk in chunks for part in chunk["choices"]), default=-1) + 1
    choices: list[Json] = [
        {"text": "", "calls": [], "token_ids": [], "finish_reason": None, "logprobs": None}
        for _ in range(count)
    ]
    usage: Json = {}
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for part in chunk["choices"]:
            out = choices[part["index"]]
            said = part.get("message") or part.get("delta") or {}
            out["text"] += part.get("text") or said.get("content") or ""
            for call in said.get("tool_calls") or ():
                name = call["function"].get("name", "")
                if name or not out["calls"]:
                    out["calls"].append({"name": name, "arguments": ""})
                out["calls"][-1]["arguments"] += call["function"]["arguments"]
            out["token_ids"] += part.get("token_ids") or []
            out["finish_reason"] = part["finish_reason"] or out["finish_reason"]
            if part.get("logprobs"):
                out["logprobs"] = (out["logprobs"] or []) + _read_numbers(part["logprobs"])
    for choice in choices:
        _hide_begun(choice["calls"], body)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {"choices": choices, "usage": {name: usage.get(name) for name in counts}}


def _hide_begun(calls: list[Json], body: Json) -> None:
    # A stream does not repeat the name of a call that was begun in the resumed tokens.
    if "resume_token_ids" in body and calls:
        calls[0]["name"] = ""


def _read_numbers(found: Json) -> list[list[Any]]:
    if "content" in found:
        return [
            [each["logprob"], sorted(top["logprob"] for top in each["top_logprobs"])]
            for each in found["content"]
        ]
    pairs = zip(found["token_logprobs"], found["top_logprobs"], strict=True)
    return [[logprob, sorted(tops.values())] for logprob, tops in pairs]


# The load.


@dataclass
class Tally:
    """What a run found."""

    answers: int = 0
    streamed: int = 0
    cancelled: int = 0
    tokens: int = 0
    preemptions: int = 0
    batches: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    differences: list[Json] = field(default_factory=list)

    def compare(self, drafter: str, body: Json, said: Any, expected: Any) -> None:
        if said != expected:
            found = {"drafter": drafter, "body": body, "said": said, "expected": expected}
            self.differences.append(found)
            print(f"different, {drafter}: {dumps(found)}", file=sys.stderr)


async def traffic(
    http: httpx.AsyncClient,
    cases: Sequence[Case],
    seconds: float,
    draw: random.Random,
    drafter: str,
    tally: Tally,
) -> None:
    """Ask at random, by a number of clients that changes every few seconds."""
    end = monotonic() + seconds

    async def client(until: float) -> None:
        while monotonic() < until:
            case = draw.choice(cases)
            body = case.body | {"stream": draw.random() < 0.5}
            if draw.random() < 0.5:
                sizes = {"nodes": draw.randrange(1, 12), "depth": draw.randrange(1, 8)}
                body["speculation"] = draw.choice([{"enabled": False}, sizes])
            patience = draw.random() if draw.random() < 0.1 else None
            try:
                said = await asyncio.wait_for(ask(http, case.path, body), patience)
            except TimeoutError:
                tally.cancelled += 1
                continue
            tally.answers += 1
            tally.streamed += body["stream"]
            tally.tokens += case.expected["usage"]["completion_tokens"]
            tally.kinds.update(set(body) - {"seed", "max_tokens", "temperature", "stream"})
            tally.kinds.update(each["finish_reason"] for each in said["choices"])
            tally.compare(drafter, body, said, case.expected)

    while monotonic() < end:
        until = min(end, monotonic() + 5)
        number = draw.choice([1, 2, 4, 8, 16, 32])
        await asyncio.gather(*(client(until) for _ in range(number)))


async def batches(http: httpx.AsyncClient, times: int, drafter: str, tally: Tally) -> None:
    """Ask 32 prompts one by one and as one request; the answers must be the same."""
    prompts = [" ".join(each.turns[0].split()[: 4 + place]) for place, each in enumerate(BUILT_IN)]
    prompts = (prompts * 32)[:32]
    body: Json = {"temperature": 0.6, "seed": 42, "logprobs": 5, "max_tokens": 32}
    body["return_token_ids"] = True
    for _ in range(times):
        alone = []
        for prompt in prompts:
            alone += (await ask(http, TEXT, body | {"prompt": prompt}))["choices"]
        together = await ask(http, TEXT, body | {"prompt": prompts})
        tally.batches += 1
        tally.compare(drafter, body, together["choices"], alone)


async def load(
    url: str,
    cases: Sequence[Case],
    seconds: float,
    times: int,
    draw: random.Random,
    drafter: str,
    tally: Tally,
) -> None:
    """Put one server under load."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await asyncio.gather(
            traffic(http, cases, seconds, draw, drafter, tally),
            batches(http, times, drafter, tally),
        )
        page = (await http.get("/metrics")).text
    counted = re.search(r"^paceline:num_preemptions_total (\S+)", page, re.MULTILINE)
    tally.preemptions += int(float(counted[1])) if counted else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="oracle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file, or its short name")
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=360, help="of traffic, over all drafters")
    parser.add_argument("--drafters", default=DRAFTERS, help="each has its share of the time")
    parser.add_argument("--kv-tokens", type=int, default=512, help="small, for preemptions")
    parser.add_argument("--batches", type=int, default=0, help="32 prompts alone and as a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8095)
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    given = parser.parse_args(argv)
    draw, drafters = random.Random(given.seed), given.drafters.split(",")
    flags = ["--kv-tokens", str(given.kv_tokens), "--max-waiting", "256"]
    tallies: dict[str, Tally] = {}
    status = 0
    try:
        alone = Alone(paceline.load(given.model, drafter="none"))
        cases = [alone.case(draw) for _ in range(given.cases)]
        del alone
        for drafter in drafters:
            url, share = f"http://127.0.0.1:{given.port}", given.seconds / len(drafters)
            with serving(given.model, given.port, [*flags, "--drafter", drafter]):
                tally = tallies[drafter] = Tally()
                asyncio.run(load(url, cases, share, given.batches, draw, drafter, tally))
    except (PacelineError, httpx.TransportError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    if given.json:
        print(dumps({name: vars(tally) for name, tally in tallies.items()}, indent=1))
    for name, tally in tallies.items() if not given.json else ():
        print(
            f"{name}: {tally.answers} answers ({tally.streamed} streamed), {tally.tokens} tokens, "
            f"{tally.cancelled} cancelled, {tally.preemptions} preemptions, {tally.batches} "
            f"batches, {len(tally.differences)} differences"
        )
    wrong = not tallies or any(tally.differences for tally in tallies.values())
    return status or int(wrong)


if __name__ == "__main__":
    sys.exit(main())

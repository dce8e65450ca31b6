"""The server on a virtual clock: routes, admission, worker and engine, replayed by a seed.

    python -m tests.serving.simulate --seeds 20000

A seed is one life of a server over a table: clients that ask for all kinds of answers, write
prompts piece by piece, read slowly, hang up, resume, and ask for too much, while forwards,
drafters, steps and the engine's thread fail and a signal drains it. No threads, sockets or real
time: `Wrong` and `Stuck` come again with their seed. What is compared with is the library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from rich.progress import track
from tests.helpers import table_engines as engines
from tests.helpers.paged_table import PagedTable
from tests.helpers.serving import Json, events, served

from paceline.core.types import LogitArray, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion, Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.lab.measure import results
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.serving import app, server
from paceline.serving.app import Service
from paceline.serving.settings import Settings
from paceline.serving.worker import ENDED, Outbox, Worker
from paceline.trees.deterministic import SharedNoise
from paceline.verifiers.matching import Coupled

VOCABULARY, CONTEXT, POISON = engines.VOCABULARY, 400, 300
LONGEST = 1000.0  # seconds of a life
CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TABLE = TabularModel(VOCABULARY, 2, seed=7, sharpness=2.5)


class Wrong(AssertionError):
    """The server has broken a promise."""


class Stuck(Wrong):
    """Somebody waits for what never comes."""


def check(holds: bool, said: str) -> None:
    if not holds:
        raise Wrong(said)


def logits(context: tuple[int, ...]) -> LogitArray:
    """Depends on the last token, and on all of the context, so that a wrong cache shows."""
    row = TABLE.logits((hash(context[:-1]) % 13, context[-1]))
    row[POISON] = -30.0  # nobody says it unasked
    return row


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time jumps to the next timer; its threads are callbacks."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.now, self._draw = 0.0, draw
        self._selector = self
        self.wrong: BaseException | None = None
        self.closing = False

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> list[Any]:
        if self.closing:
            return []
        if self.wrong is not None:
            raise self.wrong
        if timeout is None or self.now > LONGEST:
            raise Stuck("nothing will happen any more, and somebody waits")
        self.now += timeout
        return []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.wrong = self.wrong or context.get("exception") or Wrong(context["message"])

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def run() -> None:
            try:
                result = work(*args)
            except Exception as error:
                future.cancelled() or future.set_exception(error)
            else:
                future.cancelled() or future.set_result(result)

        self.call_later(self._draw.uniform(0, 0.004), run)
        return future

    def _process_events(self, events: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps."""


# Requests, and what the library says alone.

HELD = [letter + "~~" for letter in "abcdefghijklmnopqrstuvwxyz0123456789 +*;"]
# As fields of the API, and as those of `SamplingParams`.
KINDS: list[tuple[Json, Json]] = [
    ({"temperature": 0}, {}),
    ({"temperature": 1.0, "seed": 5, "presence_penalty": -2.0},) * 2,
    (
        {"temperature": 0.8, "seed": 9, "top_k": 20, "stop": ["e", "th"]},
        {"temperature": 0.8, "seed": 9, "top_k": 20, "stop": ("e", "th")},
    ),
    (
        {"temperature": 1.2, "seed": 1, "stop": ["a"], "include_stop_str_in_output": True},
        {"temperature": 1.2, "seed": 1, "stop": ("a",), "keep_stop": True},
    ),
    (  # which are never whole, so that text is held back until its end
        {"temperature": 1.0, "seed": 2, "stop": HELD},
        {"temperature": 1.0, "seed": 2, "stop": tuple(HELD)},
    ),
    (
        {"temperature": 1.2, "seed": 1, "min_p": 0.01, "stop_token_ids": [7, 9, 40, 50]},
        {"temperature": 1.2, "seed": 1, "min_p": 0.01, "stop_token_ids": (7, 9, 40, 50)},
    ),
]
LONG = "lazy dog " * 6
PROMPTS = ["dog", "the quick", "12 34 567", LONG, LONG + "ran", LONG + "the quick"]
SIZES = [1, 2, 2, 7, 7, 20, 40, 75]
LIBRARY = engines.make(cast(Any, engines.Target(logits)))
ALONE: dict[tuple[Any, ...], tuple[Completion, list[str]]] = {}


@dataclass(eq=False)
class Asked:
    """A request and its expected answer; `refused` is its status where it is none."""

    path: str
    body: Json
    expected: list[Completion] = field(default_factory=list)
    n: int = 1
    prompts: int = 0
    refused: int | None = None
    poisoned: bool = False
    resumed: int = 0  # tokens that were said before, and their text
    said: str = ""
    written: bool = False  # piece by piece


def alone(prompt: Any, kind: int, size: int, sample: int) -> tuple[Completion, list[str]]:
    """Return what the library says, and the text that each token made final."""
    key = str(prompt), kind, size, sample
    if key not in ALONE:
        params = {"temperature": 0.0, "max_new_tokens": size, "logprobs": 1, **KINDS[kind][1]}
        said = LIBRARY.events(prompt, SamplingParams(**params), raw=True, sample=sample)
        found = list(said)
        assert found[-1].completion is not None
        ALONE[key] = found[-1].completion, [event.text for event in found]
    return ALONE[key]


def ask(draw: random.Random, most: int) -> Asked:
    """Return a request at random, to a server that takes `most` sequences."""
    kind, size = draw.randrange(len(KINDS)), draw.choice(SIZES)
    body: Json = {**KINDS[kind][0], "stream": draw.random() < 0.6, "return_token_ids": True}
    if draw.random() < 0.3:
        body["speculation"] = draw.choice([{"enabled": False}, {"nodes": 2, "depth": 2}])
    scored = draw.random() < 0.4
    path = draw.choice([CHATS, TEXTS, TEXTS, RESPONSES])
    texts = [draw.choice(PROMPTS) for _ in range(draw.choice([1, 1, 2]))]
    n = draw.choice([1, 1, 1, 3])
    if path == RESPONSES:
        body |= {"input": texts[0], "max_output_tokens": size}
        n = 1
    else:
        body |= {"max_tokens": size, "n": n}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
            body["stream_options"]["continuous_usage_stats"] = draw.random() < 0.3
            body["return_sources"] = draw.random() < 0.3
    if path == CHATS:
        body["messages"] = [{"role": "user", "content": texts[0]}]
        if scored:
            body |= {"logprobs": True, "top_logprobs": 1}
    if path == TEXTS:
        body |= {"prompt": texts, "logprobs": 1 if scored else None}
    spoiled = draw.random()
    asked = Asked(path, body, n=n)
    if spoiled < 0.05:
        body["temperature"] = 9
        asked.refused = 400
    elif spoiled < 0.08:
        body["model"] = "another"
        asked.refused = 404
    elif spoiled < 0.12 and path == TEXTS:
        body["n"] = draw.choice([most + 1, 90])
        asked.n, asked.refused = body["n"] * len(texts), 400
    elif spoiled < 0.18:  # the first token of each answer is one that forwards stumble over
        body["logit_bias"] = {str(POISON): 100}
        body |= {"temperature": 0, "presence_penalty": 0, "stop": [], "stop_token_ids": []}
        asked.poisoned = True
        if size < 20:  # it may be said whole by the first forward
            return ask(draw, most)
    if asked.refused is None:
        if path == TEXTS:
            given: list[Any] = list(texts)
        else:
            given = [engines.TOKENIZER.chat([{"role": "user", "content": texts[0]}])]
        asked.prompts, asked.n = len(given), len(given) * n
        if not asked.poisoned:
            asked.expected = [alone(p, kind, size, i)[0] for p in given for i in range(n)]
        if asked.n == 1 and path != RESPONSES and not asked.poisoned and draw.random() < 0.3:
            said = alone(given[0], kind, size, 0)[1]
            asked.resumed = cut = draw.randrange(len(said))
            asked.said = "".join(said[:cut])
            body["resume_token_ids"] = list(asked.expected[0].token_ids[:cut])
    return asked


def pieces(draw: random.Random, asked: Asked) -> list[bytes]:
    """Return the lines of a request that is written piece by piece, perhaps with a false start."""
    field = {CHATS: "messages", TEXTS: "prompt", RESPONSES: "input"}[asked.path]
    given = asked.body[field]
    text = given[0]["content"] if asked.path == CHATS else given if field == "input" else given[0]
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(draw.choice([0, 1, 3])))
    first, *rest = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def form(text: str) -> Any:
        return [{"role": "user", "content": text}] if asked.path == CHATS else text

    lines = [asked.body | {field: form(first)}]
    if draw.random() < 0.4:
        lines = [asked.body | {field: form(draw.choice(PROMPTS))}, {field: form(first)}]
    lines += [{"append": each} for each in rest]
    return [json.dumps(each).encode() + b"\n" for each in lines]


# The world around the server.


class Stepped(Worker):
    """The worker whose turns are timers of the loop."""

    world: World

    def start(self) -> None:
        self._due: asyncio.Handle | None = None

    def stop(self, timeout: float = 5.0) -> None:
        self._stopped = True

    def _notify(self) -> None:
        if self._due is None and not self._stopped and not self.ended:
            self._due = self.world.loop.call_later(self.world.draw.uniform(0, 0.002), self._tick)

    def _tick(self) -> None:
        self._due = None
        if not self.core.busy:
            return
        try:
            self.world.around(self.turn)
        except Wrong:
            raise
        except BaseException:
            self._fail()
            return
        self._notify()


def fickle(drafter: Drafter, draw: random.Random) -> None:
    """Make a drafter fail at random."""

    def failing(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if draw.random() < 0.05:
                raise RuntimeError("injected")
            return inner(*args)

        return call

    for name in ("propose", "observe", "open"):
        setattr(drafter, name, failing(getattr(drafter, name)))


class Exit:
    """Stands for the HTTP server, which ends once `should_exit` is set."""

    def __init__(self, seen: Callable[[], None]) -> None:
        self.happened, self._seen = asyncio.Event(), seen

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "should_exit":
            self.happened.set()
            self._seen()


@dataclass(eq=False)
class Client:
    """One request, as its client sees it."""

    asked: Asked
    begun: float
    inside: bool = True
    late: bool = False  # it asked while the server drained
    messages: list[Json] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    left: float | None = None  # when it hung up
    ended: float = 0.0

    async def wait(self, seconds: float) -> None:
        """Do nothing, for so long or until it hangs up."""
        gone = asyncio.ensure_future(self.gone.wait())
        try:  # not `wait_for`, which loses a cancellation that comes at the same time
            await asyncio.wait((gone,), timeout=seconds)
        finally:
            gone.cancel()

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"]) if self.messages else 0

    @property
    def data(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages)


class World:
    """A server, its clients and all that happens to them; `tally` counts it."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.loop = VirtualLoop(draw)
        self.clients: list[Client] = []
        self.tally: Counter[str] = Counter()
        blocks, batch = draw.choice([4, 4, 5, 60]), draw.choice([1, 2, 4, 4])
        self.target = PagedTable(
            logits, VOCABULARY, blocks, context=CONTEXT, keep=draw.choice([None, 0, 2])
        )
        self.engine = self._engine(batch)
        # Six are the most that one request asks for.
        self.settings = Settings(
            max_batch=batch,
            max_waiting=draw.choice([6, 8, 30]) - batch,
            max_prompt_tokens=draw.choice([None, None, 90]),
            body_timeout=1.0,
            shutdown_timeout=draw.choice([0.0, 0.02, 0.1, 30.0]),
        )
        self.most = self.settings.max_batch + self.settings.max_waiting
        self.limit = draw.choice([256 * 1024, 20_000, 2500])
        self.slow = draw.random() < 0.5
        self.breaks = {draw.randrange(60) for _ in range(draw.choice([0, 0, 0, 1]))}
        self.dies = draw.randrange(80) if draw.random() < 0.1 else -1
        self.turns = self.broken = 0
        self.dead = False
        self.since: dict[Any, float] = {}  # by job: when it was handed over
        self.left = 0.0  # when the last request was over
        self.signalled: float | None = None  # the first time, and the second
        self.hurried: float | None = None
        self.aborted: float | None = None

    def _engine(self, batch: int) -> Engine:
        draw, target = self.draw, self.target
        made: list[Callable[[], Drafter]] = [
            NoDrafter,
            PromptLookup,
            lambda: Recycling(VOCABULARY),
            lambda: DraftModel(TabularTarget(logits, VOCABULARY), VOCABULARY, SharedNoise([1])),
        ]
        drafter = draw.choice(made)()
        if draw.random() < 0.2:
            fickle(drafter, draw)
        stops = StopRules((engines.EOS,), CONTEXT)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(6, 4), stops)
        forward = target.forward

        def stumbling(passes: Any) -> Any:
            if any(POISON in each.tokens[: each.num_new] for each in passes):
                raise ValueError("poison")
            return forward(passes)

        target.forward = stumbling  # type: ignore[method-assign]
        engine = Engine(
            decoder,
            engines.TOKENIZER,
            max_batch=batch,
            step_tokens=draw.choice([None, 16]),
            pool=draw.choice([None, None, 2]),
        )
        step = engine.step

        def breaking() -> Any:
            self.turns += 1
            if self.turns in self.breaks:
                self.broken += 1
                raise RuntimeError("injected")
            return step()

        engine.step = breaking  # type: ignore[method-assign]
        return engine

    # A life.

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            with patch.object(app, "Outbox", partial(Outbox, self.limit)):
                self.loop.run_until_complete(self._life())
        finally:
            asyncio.set_event_loop(None)
            self._close()

    def _close(self) -> None:
        # A world that went wrong leaves tasks behind, which are to end without a word.
        self.loop.closing = self.worker._stopped = True
        for _ in range(9):
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()

    async def _life(self) -> None:
        draw = self.draw
        self.service = service = Service(self.settings)
        service.worker_type = type("Own", (Stepped,), {"world": self})
        service.open(served(self.engine))
        assert isinstance(service.hosting.models[0].worker, Stepped)
        self.worker, self.worker._clock = service.hosting.models[0].worker, self.loop.time
        for seen, name, sees in (
            (service, "abort", self._aborts),
            (service.hosting.models[0].worker, "submit", self._submits),
            (service, "leave", self._leaves),
        ):
            setattr(seen, name, self._seen(getattr(seen, name), sees))
        self.exit = Exit(self._exits)
        self.stopping = server.Stopping(service, cast(Any, self.exit))
        tasks = [
            asyncio.ensure_future(self._ask(draw.uniform(0, 0.1), ask(draw, self.most)))
            for _ in range(draw.randint(3, 7))
        ]
        if draw.random() < 0.5:
            tasks.append(asyncio.ensure_future(self._signal(draw.uniform(0, 0.15))))
        tasks.append(asyncio.ensure_future(self._look()))
        await asyncio.gather(*tasks)
        if self.signalled is None:
            await self._signal(0)
        await self.exit.happened.wait()
        await asyncio.sleep(1)
        assert self.stopping._task is not None
        await self.stopping._task
        self._end()

    async def _signal(self, delay: float) -> None:
        await asyncio.sleep(delay)
        self.signalled = self.loop.now
        self.stopping.asked()
        if self.draw.random() < 0.3:
            await asyncio.sleep(self.draw.uniform(0, 0.05))
            if not self.exit.happened.is_set():
                self.hurried = self.loop.now
                self.stopping.asked()

    def _seen(self, does: Callable[[Any], None], first: Callable[[Any], None]) -> Any:
        def both(what: Any) -> None:
            first(what)
            does(what)

        return both

    def _aborts(self, error: Any) -> None:
        assert self.signalled is not None
        self.aborted = now = self.loop.now
        in_time = now < self.signalled + self.settings.shutdown_timeout
        check(not in_time or self.hurried is not None, "answers are ended before the time is up")

    def _leaves(self, ticket: Any) -> None:
        self.left = self.loop.now

    def _submits(self, jobs: Any) -> None:
        self.since.update(dict.fromkeys(jobs, self.loop.now))

    def _exits(self) -> None:
        assert self.signalled is not None
        now, limit = self.loop.now, self.signalled + self.settings.shutdown_timeout
        if self.hurried is not None:
            limit = min(limit, self.hurried)
        check(now < limit + 0.6, "the time is up, and the server goes on")
        if self.service.idle and self.aborted is None:
            left = max(self.signalled, self.left)
            check(now < left + 0.01, "all have left, and the server goes on")
        if not self.service.idle:
            check(self.aborted is not None, "the server ends with answers left")

    async def _look(self) -> None:
        for _ in range(3):
            await asyncio.sleep(self.draw.uniform(0, 0.08))
            closed = self.dead or self.signalled is not None
            client = Client(Asked("/health", {}), self.loop.now)
            await self._call(client, "GET", [b""], 0, 0, None)
            check(client.status == (503 if closed else 200), f"health is {client.status}")

    async def _call(
        self,
        client: Client,
        method: str,
        parts: list[bytes],
        pause: float,
        reading: float,
        patience: float | None,
    ) -> None:
        begun = False

        async def receive() -> Json:
            nonlocal begun
            if parts:
                part = parts.pop(0)
                if pause and begun:
                    await client.wait(pause)
                begun = True
                if not client.gone.is_set():
                    return {"type": "http.request", "body": part, "more_body": bool(parts)}
            await client.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Json) -> None:
            if client.gone.is_set():  # as of a closed connection
                return
            client.messages.append(message)
            if reading:
                await client.wait(self.draw.uniform(0, reading))

        path = client.asked.path
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        lines = [(b"content-type", b"application/x-ndjson")] if client.asked.written else []
        scope |= {"headers": lines, "query_string": b"", "scheme": "http", "http_version": "1.1"}
        scope |= {"server": ("x", 80), "client": ("y", 1), "root_path": "", "asgi": {}}

        def hang_up() -> None:
            client.left = self.loop.now
            client.gone.set()

        if patience is not None:
            self.loop.call_later(patience, hang_up)
        await self.service.app(scope, receive, cast(Any, send))

    async def _ask(self, delay: float, asked: Asked) -> None:
        draw = self.draw
        await asyncio.sleep(delay)
        client = Client(asked, self.loop.now, late=self.signalled is not None)
        was_dead = self.dead
        self.clients.append(client)
        patience = draw.uniform(0, 0.12) if draw.random() < 0.35 else None
        pause = draw.choice([0.01, 0.02, 5.0]) if draw.random() < 0.1 else 0.0
        reading = draw.choice([0.01, 0.3, 2.0]) if self.slow and draw.random() < 0.4 else 0.0
        data = json.dumps(asked.body).encode()
        parts = [data[: len(data) // 2], data[len(data) // 2 :]] if pause else [data]
        if asked.prompts == 1 and draw.random() < 0.4:
            asked.written, parts = True, pieces(draw, asked)
            pause = pause or draw.choice([0.0, 0.005, 0.03])
            self.tally["written"] += 1
        await self._call(client, "POST", parts, pause, reading, patience)
        client.inside, client.ended = False, self.loop.now
        self._judge(client, pause, reading, was_dead)
        if client.gone.is_set():
            self.tally["hung up"] += 1
            if (again := self._rest(client)) is not None:
                await self._ask(draw.uniform(0, 0.02), again)

    def _held(self, besides: Client) -> int:
        # The most sequences that others may have held while a client was there.
        met = [each for each in self.clients if each.inside or each.ended > besides.begun]
        refused = (400, 404, 429)
        return sum(
            1
            if each.asked.refused
            else each.asked.body.get("n", 1)
            if each.status in refused
            else each.asked.n
            for each in met
            if each is not besides
        )

    def _rest(self, client: Client) -> Asked | None:
        # What a client asks that had begun to read an answer and lost its connection.
        asked = client.asked
        if client.status != 200 or asked.n > 1 or asked.path == RESPONSES or asked.resumed:
            return None
        if not asked.body["stream"] or asked.poisoned:
            return None
        said = Reader(asked, client.data)
        [tokens], [done] = said.tokens, said.finished
        if not tokens or done is not None or len(said.found) < 2:
            return None
        body = asked.body | {"resume_token_ids": tokens}
        body["return_sources"] = False
        before = {"resumed": len(tokens), "said": said.texts[0]}
        return Asked(asked.path, body, asked.expected, 1, 1, **before)

    # Promises.

    def around(self, turn: Callable[[], None]) -> None:
        """Take a turn of the worker, with what must hold before and after it."""
        core, engine = self.worker.core, self.engine
        waited = sum(each.asked.n for each in self.clients if each.inside)
        if self.turns == self.dies:
            self.dead = True
            raise MemoryError("injected")
        aborted = self.aborted or 0.0
        turn()
        for job in core._ids:
            check(self.since[job] >= aborted, "an answer goes on after the time is up")
        scheduler = engine.scheduler
        placed = [each.sequence.id for each in scheduler.placed]
        decode = len(scheduler.running)
        plain = [each for each, job in core._jobs.items() if not job.prepared.open]
        running = [each for each in placed if each in plain]
        order = [each.sequence.id for each in scheduler]
        waiting = [each for each in order if each not in placed and each in plain]
        check(core.jobs == len(scheduler), "the worker and the engine hold different jobs")
        check(core.jobs <= waited, "requests of clients that have left go on")
        check(core.jobs <= self.most, "more was accepted than the limits allow")
        check(self.service.gate.sequences <= self.most, "the gate holds more than its limit")
        check(decode <= self.settings.max_batch, "the batch is larger than max_batch")
        check(max(running, default=-1) < min(waiting, default=10**9), "a request is overtaken")
        check(waiting == sorted(waiting), "the queue has lost its order")
        check(core.load.running == len(placed), "the load that is told is not the engine's")
        for job in core._ids:
            most = max(self.limit, self.limit // 4 * len(job.outbox.jobs))
            fits = job.outbox.size <= most
            check(fits or job.outbox.full, "an outbox grows without a limit")
        for each in self.clients:
            seen = not each.inside or each.left is None or self.loop.now - each.left < 0.02
            check(seen, "a client has left, and nobody sees it")
        self.tally["turns"] += 1

    def _judge(self, client: Client, pause: float, reading: float, was_dead: bool) -> None:
        asked, gone, status = client.asked, client.gone.is_set(), client.status
        kinds = [each["type"] for each in client.messages]
        check(kinds.count("http.response.start") <= 1, "a request is answered twice")
        last = [m for m in client.messages[1:] if not m.get("more_body", False)]
        check(len(last) <= 1, "an answer ends twice")
        if not gone:
            check(len(last) == 1 and last[0] is client.messages[-1], "an answer has no end")
        elif status == 0 or (status != 200 and not last):
            return  # it has read nothing that could be judged
        self.tally[f"status {status}"] += 1
        said = Reader(asked, client.data) if status == 200 else None
        error = None if said is None else said.error
        message = error or ("" if status in (0, 200) else client.data.decode())
        if status == 200 and error is None:
            assert said is not None
            check(asked.refused is None, "a request that is wrong was answered")
            check(not asked.poisoned or gone, "an answer came from a forward that failed")
            said.compare(whole=not gone)
            check(not client.late, "a request was taken while the server drained")
            self.tally["answered"] += not gone
            self.tally["resumed"] += asked.resumed > 0 and not gone
            return
        if said is not None:
            said.compare(whole=False)
        if "too slowly" in message:
            slow = reading > 0 or self.limit < (10_000 if asked.n == 1 else 100_000)
            check(slow, "a reader was cut off that is not slow")
            self.tally["slow"] += 1
        elif "poison" in message:
            check(asked.poisoned, "the error of another request was told")
            self.tally["poisoned"] += 1
        elif ENDED in message:
            check(self.dead, "the engine lives, and was said to have ended")
            self.tally["lost"] += 1
        elif "the engine failed" in message:
            check(self.broken > 0, "no step failed, and one was said to have")
            self.tally["broken"] += 1
        elif "shutting down: ask again" in message:
            check(self.aborted is not None, "an answer was ended before its time")
            self.tally["shut down"] += 1
        elif "is shutting down" in message:
            check(client.late and status == 503, "a request was refused without a signal")
        elif status == 429:
            held = self._held(client)
            more = 1 if asked.refused else asked.n  # what is wrong is told once there is room
            tokens = self.settings.max_prompt_tokens is not None and held > 0
            check(tokens or held + more > self.most, f"429, though {held} + {more} fit {self.most}")
        elif status == 408:
            check(pause > self.settings.body_timeout, "a body came in time, and was refused")
        elif status == 499:
            check(gone, "the client was there")
        else:
            check(status == asked.refused, f"{status}: {message[:200]}")
        check(not (was_dead and status == 200), "a dead engine answers")

    def _end(self) -> None:
        service, core, engine = self.service, self.worker.core, self.engine
        gate, decoder, memory = service.gate, engine.decoder, self.target.memory
        check((gate.sequences, gate.tokens) == (0, 0), "the gate holds requests that have left")
        check(all(not each.inside for each in self.clients), "a request was not answered")
        counts = service.hosting.models[0].counts
        seen = sum(each.status == 429 for each in self.clients)
        unseen = sum(each.gone.is_set() for each in self.clients)
        check(seen <= gate.refused <= seen + unseen, "refusals are not counted")
        times = counts.times["e2e_request_latency_seconds"]
        done, whole = sum(times.counts), self.tally["answered"]
        check(whole <= done <= whole + unseen, "answers are not counted")
        check(done + service.metrics._not_answered <= len(self.clients), "counted twice")
        if self.dead:
            return
        check(not core.busy and engine.pending == 0, "the engine goes on")
        check(core._ids == {} and core._silent == set(), "the worker remembers jobs")
        check(self.worker._held == [], "events were not delivered")
        check(memory.free == memory.blocks, "blocks of the cache are not free")
        check(engine._mail == {} and decoder._watches == {}, "the engine remembers requests")
        check(decoder._prefiller._features == {}, "the prefill remembers features")
        check(decoder.speculator._off == set(), "a drafter is off for a request that has ended")
        drafter = decoder.drafter
        if isinstance(drafter, DraftModel):
            check(drafter._caches == {} and drafter._trunks == {}, "the drafter remembers")
        self.tally["preemptions"] += engine.scheduler.preemptions


# Answers.


class Reader:
    """What an answer says so far."""

    def __init__(self, asked: Asked, data: bytes) -> None:
        self.asked, choices = asked, range(asked.n)
        self.texts = ["" for _ in choices]
        self.tokens: list[list[int]] = [[] for _ in choices]
        self.logprobs: list[list[float]] = [[] for _ in choices]
        self.finished: list[str | None] = [None for _ in choices]
        self.usage: Json | None = None
        self.error: str | None = None
        self.found: list[Json] = []
        self.ended = False
        text = data.decode()
        if not asked.body["stream"]:
            self.found = [json.loads(text)] if text.endswith("}") else []
            self.ended = bool(self.found)
        else:
            whole = text[: text.rfind("\n\n") + 2]
            check(not text.count("[DONE]") > 1, "the mark of the end comes twice")
            self.ended = text.endswith("data: [DONE]\n\n") or asked.path == RESPONSES
            self.found = events(whole)
        read = self._response if asked.path == RESPONSES else self._chunk
        for each in self.found:
            read(each)

    def _chunk(self, chunk: Json) -> None:
        check(self.error is None, "something follows an error")
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        if chunk.get("usage") is not None:
            before, self.usage = self.usage, chunk["usage"]
            grown = before is None or (
                before["completion_tokens"] <= self.usage["completion_tokens"]
            )
            check(grown, "usage shrinks")
        for choice in chunk["choices"]:
            place = choice["index"]
            check(self.finished[place] is None, "something follows the end of a choice")
            said = choice.get("delta") or choice.get("message") or {}
            self.texts[place] += said.get("content") or choice.get("text", "")
            self.tokens[place] += choice.get("token_ids", [])
            logprobs = choice.get("logprobs") or {}
            self.logprobs[place] += [e["logprob"] for e in logprobs.get("content") or []]
            self.logprobs[place] += logprobs.get("token_logprobs") or []
            self.finished[place] = choice["finish_reason"]

    def _response(self, event: Json) -> None:
        if event.get("object") == "response":  # whole, at once
            self._responded(event)
            return
        check(event["sequence_number"] == self.found.index(event), "events are out of order")
        check(self.usage is None and self.error is None, "something follows the end")
        if event["type"] == "response.output_text.delta":
            self.texts[0] += event["delta"]
        elif event["type"] == "response.failed":
            self.error = event["response"]["error"]["message"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            streamed, self.texts[0] = self.texts[0], ""
            self._responded(event["response"])
            check(self.texts[0] == streamed, "the stream and its last event differ")

    def _responded(self, whole: Json) -> None:
        for item in whole["output"]:
            self.texts[0] += "".join(part["text"] for part in item["content"])
        usage = whole["usage"]
        self.usage = {"prompt_tokens": usage["input_tokens"], "total_tokens": usage["total_tokens"]}
        self.usage["completion_tokens"] = usage["output_tokens"]
        self.finished[0] = {"incomplete": "length", "completed": "stop"}[whole["status"]]

    def compare(self, *, whole: bool) -> None:
        """Compare with what the library says: all of it, or a beginning."""
        asked, expected = self.asked, self.asked.expected
        if asked.poisoned:
            return
        for place, alone in enumerate(expected):
            before = asked.resumed
            text = alone.text[len(asked.said) :]
            tokens, said = list(alone.token_ids[before:]), self.texts[place]
            probs = [each.logprob for each in alone.logprobs[before:]]
            if asked.path == RESPONSES:
                self.tokens[place] = tokens
            if not asked.body.get("logprobs"):
                self.logprobs[place] = probs
            if whole:
                check(said == text, f"text {said!r} is {text!r} alone")
                check(self.tokens[place] == tokens, "tokens differ")
                check(self.logprobs[place] == probs, "log-probabilities differ")
                check(self.finished[place] == alone.finish_reason, "finish reasons differ")
            else:
                size = len(self.tokens[place])
                check(text.startswith(said), f"text {said!r} does not begin {text!r}")
                check(self.tokens[place] == tokens[:size], "tokens differ")
                check(self.logprobs[place] == probs[: len(self.logprobs[place])], "logprobs differ")
                if self.finished[place] is not None and asked.path != RESPONSES:
                    check(said == text, "a choice that has ended lacks text")
        if whole:
            check(self.ended, "the mark of the end is missing")
            check(self.usage is not None, "usage is missing")
            assert self.usage is not None
            per_prompt = asked.n // asked.prompts
            prompt = sum(each.prompt_tokens for each in expected[::per_prompt])
            answer = sum(len(each.token_ids) for each in expected)
            check(self.usage["prompt_tokens"] == prompt, "usage of the prompt differs")
            check(self.usage["completion_tokens"] == answer, "usage of the answer differs")
            check(self.usage["total_tokens"] == prompt + answer, "usage does not add up")


def simulate(seed: int) -> Counter[str]:
    """Run one life; raises Wrong, with the seed, if a promise is broken."""
    world = World(seed)
    try:
        world.run()
    except Wrong as error:
        error.add_note(f"seed {seed}")
        raise
    return world.tally


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="simulate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="no further seeds after so long")
    parser.add_argument("--faults", action="store_true", help="plant each known fault before")
    parser.add_argument("--record", metavar="NAME", help="also write docs/results/data/NAME.json")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    given = parser.parse_args(argv)
    before = logging.root.manager.disable
    logging.disable()  # of the errors that are made
    total: Counter[str] = Counter()
    begin, done, rows = time.perf_counter(), 0, _planted() if given.faults else []
    try:
        for seed in track(range(given.first, given.first + given.seeds), disable=given.json):
            if given.seconds and time.perf_counter() - begin > given.seconds:
                break
            total += simulate(seed)
            done += 1
    except Wrong as error:
        print(f"seed {given.first + done}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        logging.disable(before)
    seconds = round(time.perf_counter() - begin)
    if given.record and done:
        results.record(
            Path("docs/results/data") / f"{given.record}.json",
            "The server simulated, as it is and with planted faults",
            "exactness-fidelity",
            f"python -m tests.serving.simulate --seeds {done} --faults",
            ("fault", "found at seed", "said"),
            [["none", f"not in {done}", "nothing"], *rows],
            f"{total['answered']} answers, {total['hung up']} clients that hung up, "
            f"{total['resumed']} answers resumed, {total['preemptions']} preemptions. A virtual "
            "clock, a table for a model; what the library says alone is compared with ==.",
            {"lives": done, "faults found": sum(isinstance(row[1], int) for row in rows)},
        )
    if given.json:
        print(json.dumps({"seeds": done, "seconds": seconds, **total, "faults": rows}, indent=1))
    else:
        for row in rows:
            print(f"{row[1]:>9} {row[0]}: {row[2]}")
        print(f"{done} seeds in {seconds} s, nothing wrong")
        for name, number in sorted(total.items()):
            print(f"{number:>9} {name}")
    return 0 if done == given.seeds or given.seconds else 130


def _planted() -> list[list[Any]]:
    # Each fault with the seed that finds it.
    from tests.serving.faults import FAULTS, WITHIN

    rows: list[list[Any]] = []
    for name, fault in FAULTS.items():
        row: list[Any] = [name, f"not in {WITHIN}", ""]
        with pytest.MonkeyPatch.context() as patched:
            fault.plant(patched)
            for seed in range(WITHIN):
                try:
                    simulate(seed)
                except Wrong as error:
                    row = [name, seed, str(error).partition(" '")[0].partition(":")[0][:60]]
                    break
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())

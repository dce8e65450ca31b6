"""Mistakes that somebody might make in the server and the engine, for the simulation to find."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.prefill import Prefiller
from paceline.engine.scheduler import Scheduler
from paceline.engine.stopping import Transcript
from paceline.runtimes.kv_cache import PagedCache
from paceline.serving import worker
from paceline.serving.admission import Gate
from paceline.serving.app import Exchange, Service
from paceline.serving.http import EventStream
from paceline.serving.objects import Answer
from paceline.serving.pieces import Pieces
from paceline.serving.plan import Plan
from paceline.serving.server import Stopping
from paceline.serving.worker import Outbox, ServingCore, Worker


@dataclass(frozen=True)
class Fault:
    """A mistake: `old` in the source of a function of `owner` becomes `new`."""

    owner: Any
    function: str
    old: str
    new: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        shipped = inspect.getattr_static(self.owner, self.function)
        function = shipped.fget if isinstance(shipped, property) else shipped
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, "the code has changed: mend this fault"
        made: dict[str, Any] = {}
        code = compile(
            source.replace(self.old, self.new),
            "<fault>",
            "exec",
            __future__.annotations.compiler_flag,
        )
        exec(code, function.__globals__, made)
        patch.setattr(self.owner, self.function, made[self.function])


FAULTS = {
    "a cache is never released": Fault(
        AutoregressiveDecoder, "_release", "self._prefiller.close(sequence)", "pass"
    ),
    "an event goes to another job": Fault(
        ServingCore,
        "_delivery",
        "self._jobs.get(event.request)",
        "self._jobs.get(min(self._jobs, default=0))",
    ),
    "the last text is kept back": Fault(Transcript, "take", "0 if self._stopped else ", ""),
    "cancelling forgets the engine": Fault(
        ServingCore, "_leave", "self.engine.cancel(request)", "None"
    ),
    "cancelling is not passed on": Fault(Worker, "cancel", "self.core.cancel(job)", "pass"),
    "deliveries come twice": Fault(
        Worker, "turn", "self._held, self._last = [], now", "self._last = now"
    ),
    "one waiting request too few": Fault(Gate, "take", "more > self.most", "more >= self.most"),
    "one waiting request too many": Fault(Gate, "take", "more > self.most", "more > self.most + 1"),
    "all answers to a prompt have one seed": Fault(Plan, "jobs", "sample=sample", "sample=0"),
    "the stop string stays in the text": Fault(
        Transcript, "_cut", "end if self._keep else begin", "end"
    ),
    "a preempted request keeps its cache": Fault(
        Engine, "_gives_way", "self.decoder.close(request.sequence)", "pass"
    ),
    "a preempted request goes to the end of the queue": Fault(
        Scheduler, "_back", "appendleft", "append"
    ),
    "the oldest request is preempted": Fault(Scheduler, "preempt", "[-1]", "[0]"),
    "a piece of a prompt is lost": Fault(Pieces, "_take", 'found["append"])', "())"),
    "what came first is read on": Fault(
        Prefiller, "rewrite", "min(before, shared", "max(1, shared"
    ),
    "a prompt is answered before its end": Fault(
        AutoregressiveDecoder, "begin", "or sequence.open", "or False"
    ),
    "what was read ahead is not cancelled": Fault(
        Exchange, "_written", "self.outbox.jobs = [job]", "self.outbox.jobs = []"
    ),
    "usage lacks what was resumed": Fault(Answer, "usage", "len(each.resume)", "0"),
    "usage counts a token too many": Fault(
        Answer, "usage", "len(choice.token_ids)", "len(choice.token_ids) + 1"
    ),
    "merged events lose text": Fault(worker, "_merged", "first.text + then.text", "then.text"),
    "an outbox never gets smaller": Fault(
        Outbox, "take", "self._events, self.size = [], 0", "self._events = []"
    ),
    "an outbox is never full": Fault(
        Outbox, "put", "self.size <= max(self.limit, self.limit // 4 * len(self.jobs))", "self.size"
    ),
    "a request that has left holds its place": Fault(Service, "leave", "ticket.leave()", "pass"),
    "nobody tells that the last has left": Fault(Service, "leave", "self._left.set()", "pass"),
    "time is up, and nothing is aborted": Fault(
        Stopping, "_stop", "if not service.idle:", "if False:"
    ),
    "an abort misses a job": Fault(
        ServingCore, "_abort", "jobs = list(self._ids)", "jobs = list(self._ids)[1:]"
    ),
    "a broken step is not told": Fault(ServingCore, "turn", "out += self._abort(", "self._abort("),
    "the end of the thread is not told": Fault(Worker, "_fail", "self._lost()", "pass"),
    "resumed text comes again": Fault(Engine, "_resume", "transcript.take()", "pass"),
    "resumed tokens have no penalty": Fault(
        AutoregressiveDecoder, "resume", "sequence.sampler.commit(tokens)", "pass"
    ),
    "a failed request stays": Fault(Engine, "_failed", "self._finish(request)", "pass"),
    "a job does not wake the worker": Fault(Worker, "submit", "self._notify()", "pass"),
    "log-probabilities of one token only": Fault(
        Engine, "_to_event", "known[len(known) - len(commit.tokens) :]", "known[-1:]"
    ),
    "a client that leaves is not seen": Fault(
        EventStream,
        "__call__",
        "await unless_gone(receive, self._send(send))",
        "await self._send(send)",
    ),
    "a drain takes new requests": Fault(Service, "drain", "self.gate.closed =", "_ ="),
    "an error leaves the request open": Fault(
        Exchange,
        "close",
        "self.service.leave(self.ticket)",
        "answered and self.service.leave(self.ticket)",
    ),
    "shared blocks are written to": Fault(
        PagedCache, "_to_copy", "self.pool.shared(self.blocks[i])", "False"
    ),
    "a fork holds no blocks": Fault(PagedCache, "fork", "self.pool.share(used)", "pass"),
}

WITHIN = 200
"""Seeds of the simulation by which each is found."""

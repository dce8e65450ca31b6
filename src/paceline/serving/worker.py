"""The engine's owner: jobs in, events out, by one thread or step by step in a simulation."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from time import perf_counter
from typing import NamedTuple

from paceline.engine.engine import Completion, Engine, Event, Prepared
from paceline.engine.memory import Memory
from paceline.errors import EngineFailed, PacelineError, RequestFailed

# Seconds between deliveries, for each running job: what is sent costs the engine's processor time,
# and sent more rarely it costs less. Of one job every step is sent at once.
_PACE = 0.0015

ENDED = "the engine has ended by an error: restart the server"

_log = logging.getLogger("paceline.serving")


class SlowReader(PacelineError):
    """The client reads so slowly that its answer no longer fits its buffer."""


class ShutDown(PacelineError):
    """The server ends before the answer did."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One sequence to decode, checked and tokenised. `place` is its choice in the answer."""

    prepared: Prepared
    outbox: Outbox
    place: int = 0
    progress: bool = False  # of reading the prompt, if it is to be told


class Delivery(NamedTuple):
    """An event for a job's outbox. A job's first and last are `urgent`."""

    job: Job
    event: Event
    urgent: bool = True


class Load(NamedTuple):
    """What the engine holds, after a turn."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free: int = 0
    preemptions: int = 0
    pictures: int = 0
    known_pictures: int = 0


class ServingCore:
    """Jobs and the engine, without threads, sockets or clocks.

    `submit`, `cancel` and `abort` may be called from any thread; all else by the engine's owner.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.load = Load()
        self._inbox: deque[tuple[Callable[..., list[Delivery]], object]] = deque()
        self._jobs: dict[int, Job] = {}
        self._ids: dict[Job, int] = {}
        self._silent: set[Job] = set()  # without an event so far
        self._curious: dict[int, Job] = {}  # of these, those that are told of progress

    def submit(self, job: Job) -> None:
        self._inbox.append((self._add, job))

    def replace(self, job: Job, prepared: Prepared) -> None:
        """Go on with another prompt of an open job. A job that has ended is left alone."""
        self._inbox.append((self._replace, (job, prepared)))

    def cancel(self, job: Job) -> None:
        """End a job without further events. A job that has ended is left alone."""
        self._inbox.append((self._cancel, job))

    def end(self, job: Job) -> None:
        """End a job with what it has. A job that has ended is left alone."""
        self._inbox.append((self._end, job))

    def abort(self, error: PacelineError) -> None:
        """End all jobs with an error."""
        self._inbox.append((self._abort, error))

    def give_up(self, error: PacelineError) -> list[Delivery]:
        """Return an error for every job that is left. Called after the owner's end, once."""
        left = dict.fromkeys(self._ids)
        for do, what in self._inbox:
            if isinstance(what, Job):
                if do == self._add:
                    left[what] = None
                elif do == self._cancel:
                    left.pop(what, None)
        self._inbox.clear()
        self._ids.clear()
        self._jobs.clear()
        return [Delivery(job, _failure(error)) for job in left]

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    @property
    def busy(self) -> bool:
        """Whether a turn has something to do."""
        return bool(self._inbox or (self._jobs and not self.engine.resting))

    def turn(self) -> list[Delivery]:
        """Carry out what was asked, then take one step of the engine."""
        out: list[Delivery] = []
        while self._inbox:
            do, what = self._inbox.popleft()
            out += do(what)
        if self._jobs:
            try:
                events = self.engine.step()
            except Exception:  # of no single request, so of all
                _log.exception("a step of the engine failed")
                out += self._abort(EngineFailed("the engine failed: ask again"))
                events = []
            out += [d for event in events if (d := self._delivery(event)) is not None]
            if self._curious:
                out += self._progress()
        self.load = self._load()
        return out

    def _add(self, job: Job) -> list[Delivery]:
        try:
            request = self.engine.add(job.prepared)
        except Exception as error:  # of this request alone
            return [Delivery(job, _failure(_told(error)))]
        self._jobs[request], self._ids[job] = job, request
        self._silent.add(job)
        if job.progress and not job.prepared.open:
            self._curious[request] = job
        return []

    def _replace(self, change: tuple[Job, Prepared]) -> list[Delivery]:
        job, prepared = change
        request = self._ids.get(job)
        if request is None:
            return []
        try:
            self.engine.replace(request, prepared)
        except Exception as error:  # of this request alone
            self._cancel(job)
            return [Delivery(job, _failure(_told(error)))]
        if job.progress and not prepared.open:
            self._curious[request] = job
        return []

    def _cancel(self, job: Job) -> list[Delivery]:
        self._leave(job)
        return []

    def _end(self, job: Job) -> list[Delivery]:
        request = self._ids.get(job)
        done = self._leave(job)
        if request is None:
            return []
        if done is None:
            return [Delivery(job, _failure(EngineFailed("the engine failed: ask again")))]
        return [Delivery(job, Event(request, "", (), (), done))]

    def _leave(self, job: Job) -> Completion | None:
        request = self._ids.pop(job, None)
        if request is None:
            return None
        del self._jobs[request]
        self._silent.discard(job)
        self._curious.pop(request, None)
        try:
            return self.engine.cancel(request)
        except Exception:
            _log.exception("request %d could not be cancelled", request)
            return None

    def _abort(self, error: PacelineError) -> list[Delivery]:
        jobs = list(self._ids)
        for job in jobs:
            self._cancel(job)
        return [Delivery(job, _failure(error)) for job in jobs]

    def _delivery(self, event: Event) -> Delivery | None:
        job = self._jobs.get(event.request)
        if job is None:
            return None
        urgent = job in self._silent
        self._silent.discard(job)
        self._curious.pop(event.request, None)
        if event.completion is not None or event.error is not None:
            del self._jobs[event.request], self._ids[job]
            urgent = True
        return Delivery(job, event, urgent)

    def _progress(self) -> list[Delivery]:
        return [
            Delivery(self._curious[request], Event(request, "", (), (), progress=each))
            for request, each in self.engine.progress().items()
            if request in self._curious
        ]

    def _load(self) -> Load:
        scheduler = self.engine.scheduler
        memory: Memory | None = self.engine.decoder.memory
        running = len(scheduler.placed)
        blocks = (memory.blocks, memory.free) if memory is not None else (0, 0)
        looking = self.engine.looking
        seen = (looking.read, looking.known) if looking is not None else (0, 0)
        return Load(running, len(scheduler) - running, *blocks, scheduler.preemptions, *seen)


class Worker:
    """The thread that owns the engine. Hands deliveries over in batches."""

    def __init__(
        self,
        core: ServingCore,
        deliver: Callable[[list[Delivery]], object],
        lost: Callable[[], object],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`deliver` and `lost` are called on the thread, and must not wait.

        `lost` says that the thread has ended by an error: what it calls, calls `give_up`.
        """
        self.core = core
        self.ended = False
        self._deliver, self._lost, self._clock = deliver, lost, clock
        self._held: list[Delivery] = []
        self._last = 0.0
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Hand jobs over; EngineFailed if the thread has ended."""
        if self.ended:
            raise EngineFailed(ENDED)
        for job in jobs:
            self.core.submit(job)
        self._notify()

    def replace(self, job: Job, prepared: Prepared) -> None:
        self.core.replace(job, prepared)
        self._notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.core.cancel(job)
        self._notify()

    def end(self, job: Job) -> None:
        self.core.end(job)
        self._notify()

    def abort(self, error: PacelineError) -> None:
        self.core.abort(error)
        self._notify()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after its current turn. Jobs get no more events: abort them first."""
        self._stopped = True
        self._notify()
        self._thread.join(timeout)

    def give_up(self) -> list[Delivery]:
        """Take no more jobs, and return the errors of those that are left, after `lost`."""
        self.ended = True
        return self.core.give_up(EngineFailed(ENDED))

    def turn(self) -> None:
        """Take a turn, and deliver what is due."""
        new = self.core.turn()
        self._held += new
        now = self._clock()
        due = now - self._last >= _PACE * self.core.jobs
        if self._held and (due or any(each.urgent for each in new)):
            self._deliver(self._held)
            self._held, self._last = [], now

    def _notify(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wake.wait()
                self._wake.clear()
                while self.core.busy and not self._stopped:
                    self.turn()
        except BaseException:
            self._fail()

    def _fail(self) -> None:
        _log.exception("the engine's thread has ended")
        with suppress(RuntimeError):  # the event loop has ended before
            self._lost()


@dataclass(eq=False)
class Outbox:
    """Events of one HTTP request that its reader has not taken yet. For the event loop.

    A reader that is slower than the engine finds several steps merged into one event. Beyond
    `limit` bytes, or a quarter of it for each job, they are thrown away, and the answer ends with
    SlowReader.
    """

    limit: int = 256 * 1024
    jobs: Sequence[Job] = ()
    accepted: dict[int, Counter[int]] = field(default_factory=dict)
    """By choice: accepted drafted tokens of a step, and in how many steps."""
    size: int = 0
    full: bool = False
    _events: list[tuple[int, Event]] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, place: int, event: Event) -> bool:
        """Add an event; False if the outbox is full and its jobs are to be cancelled."""
        if self.full:
            return True
        if event.token_ids:
            steps = self.accepted.setdefault(place, Counter())
            steps[sum(source is not None for source in event.sources)] += 1
        self.size += _size(event)
        self._events.append((place, event))
        self._arrived.set()
        # Steps of many jobs come at once: a reader that is not slow must have room for them.
        if self.size <= max(self.limit, self.limit // 4 * len(self.jobs)):
            return True
        self.full = True
        slow = SlowReader("the client reads too slowly for its buffer: read faster")
        self._events = [(place, _failure(slow))]
        return False

    def take(self) -> list[tuple[int, Event]]:
        """Return one merged event for every choice that has any."""
        by_place: dict[int, list[Event]] = {}
        for place, event in self._events:
            by_place.setdefault(place, []).append(event)
        self._events, self.size = [], 0
        self._arrived.clear()
        return [(place, reduce(_merged, events)) for place, events in by_place.items()]

    async def get(self, seconds: float) -> list[tuple[int, Event]]:
        """Wait for events and return them as `take`; nothing if none comes in `seconds`."""
        timer = asyncio.get_running_loop().call_later(seconds, self._arrived.set)
        await self._arrived.wait()
        timer.cancel()
        return self.take()


def _merged(first: Event, then: Event) -> Event:
    return then._replace(
        text=first.text + then.text,
        token_ids=first.token_ids + then.token_ids,
        sources=first.sources + then.sources,
        logprobs=first.logprobs + then.logprobs,
        fills=tuple((dict(first.fills) | dict(then.fills)).items()),
    )


def _told(error: Exception) -> PacelineError:
    if isinstance(error, PacelineError):
        return error
    _log.error("a request could not be added", exc_info=error)
    return RequestFailed(f"the request failed: {type(error).__name__}: {error}")


def _failure(error: PacelineError) -> Event:
    return Event(-1, "", (), (), error=error)


def _size(event: Event) -> int:
    # Bytes that an event takes in memory and on the wire, roughly.
    tops = sum(1 + len(each.top) for each in event.logprobs)
    return 200 + 4 * len(event.text) + 16 * (len(event.token_ids) + len(event.fills)) + 100 * tops

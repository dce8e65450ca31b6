"""Who runs, who waits, and who gives way when memory is short.

First come, first served: nobody overtakes the head of the queue, and whoever is preempted is the
newest and goes back to the head. So every running request is older than every waiting one, and the
oldest is never preempted while another runs: it ends, and the next is the oldest (no starvation).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from time import perf_counter

from paceline.controllers.cost import CostModel
from paceline.errors import OutOfMemory
from paceline.scheduling.chunks import Chunk, beside, shared_out
from paceline.scheduling.limits import Limits, QueueFull
from paceline.scheduling.memory import Memory, capacity, fits, plain_step_fits
from paceline.sequence import Sequence
from paceline.transcript import Transcript


@dataclass(eq=False, slots=True)
class Request:
    """A request in flight: its tokens, its text, and when it came (seconds, `perf_counter`)."""

    sequence: Sequence
    transcript: Transcript
    added: float = field(default_factory=perf_counter)


class Scheduler:
    """Decides about requests; the engine carries it out."""

    def __init__(self, limits: Limits, memory: Memory | None) -> None:
        """Have no requests.

        Args:
            limits: how many may run and wait.
            memory: of the target; None if it states none, and says OutOfMemory by itself.
        """
        self.limits = limits
        self.preemptions = 0
        """How often a running request had to give its memory back."""
        self._memory = memory
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._crowded = False  # somebody was preempted, and nobody has left since

    def __iter__(self) -> Iterator[Request]:
        """All requests, those that run first."""
        yield from self._running
        yield from self._waiting

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def placed(self) -> tuple[Request, ...]:
        """Requests that have a place, and memory."""
        return tuple(self._running)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that decode."""
        return tuple([each for each in self._running if not each.sequence.reading])

    @property
    def reading(self) -> tuple[Request, ...]:
        """Requests that have a place, and are still to be read."""
        return tuple([each for each in self._running if each.sequence.reading])

    def check(self, prompt: int) -> None:
        """Refuse what cannot be taken on: a prompt of `prompt` tokens, or one request more.

        Raises:
            OutOfMemory: the prompt does not fit into the memory, even alone.
            QueueFull: too many are waiting.
        """
        if self._memory is not None and prompt >= capacity(self._memory):
            raise OutOfMemory(
                f"the prompt has {prompt} tokens and the key-value cache holds "
                f"{capacity(self._memory)}: shorten the prompt, or load the model with a larger "
                "kv_tokens"
            )
        places = self.limits.running - len(self._running)
        if self.limits.waiting is not None and len(self._waiting) >= places + self.limits.waiting:
            raise QueueFull(
                f"{len(self)} requests are in flight, the most that max_batch "
                f"{self.limits.running} and max_waiting {self.limits.waiting} allow: try again "
                "later"
            )

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self._waiting.append(request)

    def candidate(self) -> Request | None:
        """The next in the queue, if there is a place for it."""
        full = self._crowded or len(self._running) >= self.limits.running
        return self._waiting[0] if self._waiting and not full else None

    def place(self, request: Request) -> bool:
        """Let the candidate, whose cache is open, run; False if it must wait for memory.

        Its memory for all that it has to read is taken now, so reading is not interrupted.
        """
        sequence = request.sequence
        if self._memory is not None:
            read = len(sequence.tokens) - 1
            running = len(self._running)
            if running and not fits(self._memory, sequence.cache, read, running):
                return False
            sequence.cache.reserve(read - sequence.cache.length)
        self._waiting.popleft()
        self._running.append(request)
        return True

    def chunks(self, costs: CostModel | None) -> list[Chunk]:
        """What to read in the next forward."""
        reading = [request.sequence for request in self.reading]
        if not reading:
            return []
        tokens = beside(len(self.running), costs, self.limits.step_tokens)
        return shared_out(reading, tokens, self._memory.block if self._memory else None)

    def short(self, running: List[Sequence]) -> bool:
        """Whether memory is too short for a step of these requests, even without drafts."""
        return self._memory is not None and not plain_step_fits(self._memory, running)

    def preempt(self) -> Request | None:
        """Send the newest running request back to the head of the queue; None if it is alone."""
        if len(self._running) < 2:
            return None
        newest = max(self._running, key=lambda request: request.sequence.id)
        self._running.remove(newest)
        self._waiting.appendleft(newest)
        self._crowded = True
        self.preemptions += 1
        return newest

    def remove(self, request: Request) -> None:
        """A request has ended, or was cancelled."""
        if request in self._running:
            self._running.remove(request)
            self._crowded = False
        else:
            self._waiting.remove(request)

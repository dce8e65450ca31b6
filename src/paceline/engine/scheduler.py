"""First-come, first-served scheduler that preempts the newest running request.

Running requests are older than waiting ones and the oldest always progresses: no starvation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from paceline.core.options import require
from paceline.engine.memory import Memory, capacity, fits, plain_step_fits
from paceline.engine.prefill import ALONE, BESIDE, PIECE_SECONDS, Chunk, beside, shared_out
from paceline.engine.stopping import Transcript
from paceline.errors import ContextExceeded, PacelineError
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation


class QueueFull(PacelineError):
    """The request queue is full: try again once some have ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most sequences decoded together, most queued requests, most rows of a forward that combines
    prefill and decoding. None sets no limit, or chooses rows by measured costs. `pool` is the
    fewest sequences of equal length that take a step without the others; None never parts them.
    """

    running: int = 8
    waiting: int | None = None
    step_tokens: int | None = None
    pool: int | None = None

    def __post_init__(self) -> None:
        require(self.running >= 1, "max_batch", self.running, "1 or more")
        require(self.waiting is None or self.waiting >= 0, "max_waiting", self.waiting, "0 or more")
        require(
            self.step_tokens is None or self.step_tokens >= 1,
            "step_tokens",
            self.step_tokens,
            "1 or more",
        )
        require(self.pool is None or self.pool >= 1, "pool", self.pool, "1 or more")


_PATIENCE = 4  # steps of pools in a row, then one of all: no request waits longer


@dataclass(eq=False, slots=True)
class Request:
    """A request in flight; `added` is its arrival in `perf_counter` seconds.

    `sample` numbers the answers to one prompt; those from 1 on share what the first has read.
    """

    sequence: Generation
    transcript: Transcript
    sample: int = 0
    added: float = field(default_factory=perf_counter)


class Scheduler:
    """Decide on admission, prefill and preemption; the engine executes."""

    def __init__(self, limits: Limits, memory: Memory | None) -> None:
        self.limits = limits
        self.preemptions = 0
        self._memory = memory
        most = None if memory is None else memory.sequences
        self._most = limits.running if most is None else min(limits.running, max(1, most))
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._crowded = False  # preempted, and no request has ended since
        self._pooled = 0
        self._piece = ALONE // 4  # tokens of a chunk while no sequence decodes

    def __iter__(self) -> Iterator[Request]:
        yield from self._running
        yield from self._waiting

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def placed(self) -> tuple[Request, ...]:
        """Admitted requests, in prefill or decoding."""
        return tuple(self._running)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that decode."""
        return tuple([each for each in self._running if not each.sequence.reading])

    @property
    def reading(self) -> tuple[Request, ...]:
        """Requests in prefill."""
        return tuple([each for each in self._running if each.sequence.reading])

    def check_prompt(self, prompt: int) -> None:
        """Raise ContextExceeded if a prompt of so many tokens exceeds the cache."""
        if self._memory is not None and prompt >= capacity(self._memory):
            raise ContextExceeded(
                f"the prompt has {prompt} tokens and the key-value cache holds "
                f"{capacity(self._memory)}: shorten the prompt, or load the model with a larger "
                "kv_tokens"
            )

    def check_queue(self) -> None:
        """Raise QueueFull if the queue is full."""
        places = self._most - len(self._running)
        if self.limits.waiting is not None and len(self._waiting) >= places + self.limits.waiting:
            raise QueueFull(
                f"{len(self)} requests are in flight, the most that max_batch "
                f"{self.limits.running} and max_waiting {self.limits.waiting} allow: try again "
                "later"
            )

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def candidate(self) -> Request | None:
        """Return the head of the queue, if it may be admitted.

        One whose prompt is being read for another sample waits.
        """
        full = self._crowded or len(self._running) >= self._most
        if full or not self._waiting:
            return None
        head = self._waiting[0]
        sibling = self.sibling(head)
        return None if sibling is not None and sibling.reading else head

    def sibling(self, request: Request) -> Generation | None:
        """Return an admitted sequence with the same prompt, if the request is not its first."""
        if not request.sample:
            return None
        for each in self._running:
            same = each.sequence.speech is request.sequence.speech
            if same and each.sequence.prompt == request.sequence.prompt:
                return each.sequence
        return None

    def place(self, request: Request) -> bool:
        """Admit the candidate and reserve memory for its prefill; False if it must wait."""
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
        """Return the prefill chunks of the next forward."""
        reading = [request.sequence for request in self.reading]
        if not reading:
            return []
        running = len(self.running)
        tokens = beside(running, costs, self.limits.step_tokens)
        if not running:
            tokens = min(tokens, self._piece)
        return shared_out(reading, tokens, self._memory.block if self._memory else None)

    def took(self, tokens: int, seconds: float) -> None:
        """Learn how long a chunk without decoding took, so that the next can soon be left."""
        if tokens >= BESIDE:
            self._piece = max(BESIDE, min(ALONE, int(tokens * PIECE_SECONDS / max(seconds, 1e-9))))

    def short(self, running: Sequence[Generation]) -> bool:
        """Return whether memory is too short for a step of these requests without drafts."""
        return self._memory is not None and not plain_step_fits(self._memory, running)

    def pooled(self, running: tuple[Request, ...]) -> tuple[Request, ...]:
        """Return those that take the next step: the largest group of equal length, or all.

        Of equal lengths nothing is padded (EXSPEC, arXiv:2510.22876). A group smaller than
        `Limits.pool` is none.
        """
        if self.limits.pool is None or len(running) < 2:
            return running
        lengths = Counter(len(request.sequence.tokens) for request in running)
        ((length, size),) = lengths.most_common(1)
        if size < self.limits.pool or self._pooled == _PATIENCE:
            self._pooled = 0
            return running
        if size < len(running):
            self._pooled += 1
        return tuple([each for each in running if len(each.sequence.tokens) == length])

    def preempt(self) -> Request | None:
        """Return the newest running request to the head of the queue; None if it is alone."""
        if len(self._running) < 2:
            return None
        newest = max(self._running, key=lambda request: request.sequence.id)
        self._running.remove(newest)
        self._waiting.appendleft(newest)
        self._crowded = True
        self.preemptions += 1
        return newest

    def remove(self, request: Request) -> None:
        if request in self._running:
            self._running.remove(request)
            self._crowded = False
        else:
            self._waiting.remove(request)

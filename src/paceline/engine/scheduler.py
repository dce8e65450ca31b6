"""First-come, first-served scheduler that preempts the newest running request.

Running requests are older than waiting ones and the oldest always progresses: no starvation.

Prompts that are still written (Stream2LLM, arXiv:2604.16395) come behind whole ones: they take
memory that nobody else wants, and no place among those that decode.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from paceline.core.options import require
from paceline.core.target import whole
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
    `prompt_policy` is one of `POLICIES`.
    """

    running: int = 8
    waiting: int | None = None
    step_tokens: int | None = None
    pool: int | None = None
    prompt_policy: str = "fcfs"

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
        require(
            self.prompt_policy in POLICIES,
            "prompt_policy",
            self.prompt_policy,
            f"one of {', '.join(POLICIES)}",
        )


_PATIENCE = 4  # steps of pools in a row, then one of all: no request waits longer


@dataclass(eq=False, slots=True)
class Request:
    """A request in flight; `added` is the arrival of its prompt in `perf_counter` seconds, of one
    that comes in pieces that of the last.

    `sample` numbers the answers to one prompt; those from 1 on share what the first has read.
    """

    sequence: Generation
    transcript: Transcript
    sample: int = 0
    added: float = field(default_factory=perf_counter)

    @property
    def computed(self) -> int:
        """Number of tokens that are cached."""
        return 0 if self.sequence.cache is None else int(self.sequence.cache.length)


POLICIES: dict[str, Callable[[Request], float]] = {
    "fcfs": lambda request: request.sequence.id,
    "lcas": lambda request: -request.added,
    "mcps": lambda request: -request.computed,
}
"""What is read first, the lowest: what came first, whose last piece came last, or of which most is
cached. Under all but the first a prompt may wait for as long as others come."""


def order(requests: Iterable[Request], policy: str) -> list[Request]:
    """Return requests by priority: the first is admitted and read first, the last gives way.

    Whole prompts stand before those that are still written. Under a policy that lets one overtake
    another, answers that have begun go on before all of them.
    """
    rank = POLICIES[policy]

    def place(request: Request) -> tuple[int, float, int]:
        sequence = request.sequence
        if policy != "fcfs" and sequence.generated:
            return -1, 0, sequence.id
        return sequence.open, rank(request), sequence.id

    return sorted(requests, key=place)


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
        self._stuck = False  # who comes next has found no room, and nothing has changed since
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
        """Requests in prefill, those first that are read first."""
        return tuple(self._ordered([each for each in self._running if each.sequence.reading]))

    @property
    def beginning(self) -> tuple[Request, ...]:
        """Requests in prefill that may decode once they are read, or go on to be written."""
        reading, places = self.reading, self._most - len(self.running)
        whole = [each for each in reading if not each.sequence.open]
        late = whole[places:] if len(whole) > places else ()
        return tuple([each for each in reading if each not in late])

    @property
    def resting(self) -> bool:
        """Whether nothing can be done until a prompt goes on or ends."""
        if any(not each.sequence.open for each in self):
            return False
        unread = any(each.sequence.unread for each in self._running)
        return not unread and (self._stuck or self.candidate() is None)

    def _ordered(self, requests: Sequence[Request]) -> list[Request]:
        return order(requests, self.limits.prompt_policy) if len(requests) > 1 else list(requests)

    @property
    def _whole(self) -> int:
        # Admitted requests whose prompts are whole: those that have a place.
        return sum(not each.sequence.open for each in self._running)

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
        if self.limits.waiting is not None and len(self) >= self._most + self.limits.waiting:
            raise QueueFull(
                f"{len(self)} requests are in flight, the most that max_batch "
                f"{self.limits.running} and max_waiting {self.limits.waiting} allow: try again "
                "later"
            )

    def add(self, request: Request) -> None:
        self._waiting.append(request)
        self._stuck = False

    def rewrite(self, request: Request, sequence: Generation, transcript: Transcript) -> None:
        """Note that the prompt of an open request has become that of `sequence`."""
        request.sequence, request.transcript = sequence, transcript
        request.added = perf_counter()
        self._crowded = self._crowded and bool(self._whole)
        self._stuck = False

    def candidate(self) -> Request | None:
        """Return who comes next of those that wait, if it may be admitted.

        One whose prompt is being read for another sample waits.
        """
        if not self._waiting or self._whole >= self._most:
            return None
        head = self._ordered(self._waiting)[0]
        if self._crowded and (head.sequence.open or self._whole):
            return None
        sibling = self.sibling(head)
        return None if sibling is not None and sibling.reading else head

    def sibling(self, request: Request) -> Generation | None:
        """Return an admitted sequence with the same prompt, if the request is not its first."""
        if not request.sample:
            return None
        for each in self._running:
            mine, other = request.sequence, each.sequence
            alike = other.speech is mine.speech and other.pictures == mine.pictures
            if alike and not other.open and other.prompt == mine.prompt:
                return other
        return None

    def place(self, request: Request) -> bool:
        """Admit the candidate and reserve memory for its prefill; False if it must wait."""
        sequence = request.sequence
        if self._memory is not None:
            read = len(sequence.tokens) - 1
            if sequence.window:  # no more is there at once
                read = max(sequence.cache.length, min(read, whole(sequence.window)))
            running = len(self._running)
            most = self._memory.sequences
            crammed = most is not None and running >= max(1, most)
            if running and (crammed or not fits(self._memory, sequence.cache, read, running)):
                return False
            sequence.cache.reserve(read - sequence.cache.length)
        self._waiting.remove(request)
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
        """Return the last running request to the queue, the newest; None if it is alone."""
        if len(self._running) < 2:
            return None
        self._crowded = True
        return self._back(self._ordered(self._running)[-1])

    def yielding(self, request: Request) -> Request | None:
        """Return to the queue the last open request behind one that finds no room, if any."""
        last = self._ordered([request, *self._running])[-1]
        self._stuck = last is request or not last.sequence.open
        return None if self._stuck else self._back(last)

    def _back(self, request: Request) -> Request:
        self._running.remove(request)
        self._waiting.appendleft(request)
        self.preemptions += 1
        return request

    def remove(self, request: Request) -> None:
        self._stuck = False
        if request in self._running:
            self._running.remove(request)
            self._crowded = False
        else:
            self._waiting.remove(request)

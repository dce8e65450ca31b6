"""The protocol of a bench: every drafter on everything in turn, over one loaded model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from paceline.core.metrics import GenerationStats
from paceline.core.types import SamplingParams
from paceline.engine.engine import Completion, Engine, Prepared, Prompt
from paceline.policy.cost import CostModel

_WARM_UP_TOKENS = 12

_SLICE = 8
"""Steps that one engine takes before the next one's turn: a shared machine's speed changes within
a second, and every engine shall see the same share of slow moments."""

T = TypeVar("T")
Playing = Generator[None, None, T]
"""One engine at work: pauses after every step, returns what it made."""


@dataclass(slots=True)
class Run:
    """One drafter on one prompt: tokens by turn, figures of all turns, turns ended as loops."""

    token_ids: list[list[int]] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    loops: int = 0

    def add(self, completion: Completion) -> None:
        self.token_ids.append(list(completion.token_ids))
        self.stats.add(completion.stats)
        self.loops += completion.finish_reason == "loop"


@dataclass(frozen=True, slots=True)
class Record:
    """Runs of all drafters on one prompt; `index` is its position in the bench."""

    index: int
    question_id: str
    category: str
    runs: Mapping[str, Run]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Record:
        """Raises KeyError, TypeError or ValueError if `entry` is not a record."""
        names = {each.name for each in fields(GenerationStats)}
        runs = {}
        for drafter, run in entry["runs"].items():
            if set(run["stats"]) != names:
                raise ValueError("figures of another version")
            runs[drafter] = Run(run["token_ids"], GenerationStats(**run["stats"]), run["loops"])
        return cls(int(entry["index"]), entry["question_id"], entry["category"], runs)


def read_alike(engines: Iterable[Engine], costs: CostModel) -> None:
    """Let all engines prefill in the same chunks beside a step.

    Chunks are as large as costs allow, and plain decoding knows none: with smaller chunks more of
    its steps would share their time with a prompt.
    """
    for engine in engines:
        controller = engine.loop.controller
        if controller.costs is None:
            controller.costs = costs


class Stopped(Exception):
    """The user asked for an end in the middle of a group."""


class Rotation:
    """Let all engines do the same work, a few steps each in rotation.

    So a machine that becomes slower or faster does so for all of them. `turn` says who begins.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        turn: int = 0,
        cold: bool = False,
        stop: Callable[[], object] = lambda: False,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._engines = engines
        self._turn = turn
        self._cold = cold
        self._stop = stop
        self._tick = tick

    def run(self, play: Callable[[Engine], Playing[T]]) -> dict[str, T]:
        """Return what `play` returns, by drafter; Stopped if `stop` became true."""
        if self._cold:
            for engine in self._engines.values():
                engine.decoder.reset()
        names = list(self._engines)
        shift = self._turn % len(names)
        self._turn += 1
        playing = {name: play(self._engines[name]) for name in names[shift:] + names[:shift]}
        done: dict[str, T] = {}
        try:
            while playing:
                for name in list(playing):
                    try:
                        for _ in range(_SLICE):
                            next(playing[name])
                    except StopIteration as end:
                        done[name] = end.value
                        del playing[name]
                        self._tick()
                    if self._stop():
                        raise Stopped
        finally:
            for left in playing.values():
                left.close()
        return {name: done[name] for name in names}


class Workload(ABC):
    """Prompts of a bench, numbered, in groups that are kept as a whole."""

    name: ClassVar[str]
    races: int = 1  # of a group
    max_new_tokens: ClassVar[int] = 128  # default
    stop_loops: ClassVar[bool] = False  # default

    @property
    @abstractmethod
    def groups(self) -> list[list[int]]:
        """Return the numbers of the prompts of every group."""

    @property
    @abstractmethod
    def opening(self) -> Prompt:
        """Return a prompt to warm up with."""

    @property
    @abstractmethod
    def content(self) -> str:
        """Return all that the prompts are made from, to tell workloads apart."""

    @abstractmethod
    def check(self, engine: Engine, params: SamplingParams) -> None:
        """Raise PromptError if a prompt is longer than the context."""

    @abstractmethod
    def play(self, group: Sequence[int], race: Rotation, params: SamplingParams) -> list[Record]:
        """Decode a group with all engines; return a record per number."""


def warm_up(engines: Mapping[str, Engine], prompt: Prompt) -> None:
    """Compile kernels before the measurement, and reset drafters."""
    for engine in engines.values():
        engine.decoder.target.warm_up()
        for _ in engine.events(prompt, max_new_tokens=_WARM_UP_TOKENS):
            pass
        engine.decoder.reset()


def run(
    engines: Mapping[str, Engine],
    workload: Workload,
    params: SamplingParams,
    *,
    cold: bool = False,
    done: frozenset[int] = frozenset(),
    stop: Callable[[], object] = lambda: False,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[list[Record]]:
    """Decode a workload with every engine, by drafter, and yield records group by group.

    Args:
        cold: reset drafters before every race.
        done: numbers of prompts of an earlier run.
        stop: once true, the current group is dropped and the run ends.
        tick: called when an engine has finished its part of a race.
    """
    for number, group in enumerate(workload.groups):
        if done.issuperset(group):
            continue
        race = Rotation(engines, turn=number, cold=cold, stop=stop, tick=tick)
        try:
            records = workload.play(group, race, params)
        except Stopped:
            return
        yield records


def together(engine: Engine, prompts: Sequence[Prompt | Prepared]) -> list[Completion]:
    """Decode prompts together, to the end, as `decode`."""
    playing = decode(engine, prompts)
    while True:
        try:
            next(playing)
        except StopIteration as end:
            done: list[Completion] = end.value
            return done


def decode(
    engine: Engine, prompts: Sequence[Prompt | Prepared], params: SamplingParams | None = None
) -> Playing[list[Completion]]:
    """Decode prompts together; whatever ends it, nothing is left in flight.

    Raises the error of a request that ended with one.
    """
    requests: list[int] = []
    done: dict[int, Completion] = {}
    try:
        for prompt in prompts:
            requests.append(engine.add(prompt, params))
        while len(done) < len(requests):
            for event in engine.checked_step():
                if event.completion is not None:
                    done[event.request] = event.completion
            yield
    finally:
        for request in requests:
            engine.cancel(request)
    return [done[request] for request in requests]

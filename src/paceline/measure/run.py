"""The protocol of a bench: every drafter on everything in turn, over one loaded model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from paceline.core.metrics import GenerationStats
from paceline.core.types import SamplingParams
from paceline.engine.engine import Completion, Engine, Prompt
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
    """One drafter on one prompt.

    Attributes:
        token_ids: generated tokens, turn by turn.
        stats: figures of all turns together.
        loops: turns that were ended because they repeated themselves.
    """

    token_ids: list[list[int]] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)
    loops: int = 0

    def add(self, completion: Completion) -> None:
        """Book one more turn."""
        self.token_ids.append(list(completion.token_ids))
        self.stats.add(completion.stats)
        self.loops += completion.finish_reason == "loop"


@dataclass(frozen=True, slots=True)
class Record:
    """What all drafters did with one prompt.

    Attributes:
        index: position of the prompt in the bench.
        question_id: of the prompt.
        category: of the prompt.
        runs: by drafter.
    """

    index: int
    question_id: str
    category: str
    runs: Mapping[str, Run]

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values; `from_dict` reads them back."""
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
    """Let all engines read prompts in the same portions beside a step.

    A portion is as large as costs allow, and plain decoding knows none: with smaller portions more
    of its steps would share their time with a prompt, and it would seem some percent faster.
    """
    for engine in engines:
        controller = engine.decoder.controller
        if controller.costs is None:
            controller.costs = costs


class Stopped(Exception):
    """The user asked for an end in the middle of a group."""


class Race:
    """Lets all engines do the same work at once, a few steps each in rotation.

    So a machine that becomes slower or faster does so for all of them.
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
        """Engines by drafter; the others as for `run`. `turn` says who begins."""
        self._engines = engines
        self._turn = turn
        self._cold = cold
        self._stop = stop
        self._tick = tick

    def run(self, play: Callable[[Engine], Playing[T]]) -> dict[str, T]:
        """What `play` returns for every engine, by drafter.

        Raises:
            Stopped: `stop` became true; nothing is left in flight.
        """
        if self._cold:
            for engine in self._engines.values():
                engine.decoder.drafter.reset()
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
    """What is decoded in a bench: prompts, numbered, in groups that are kept as a whole."""

    name: ClassVar[str]
    races: int = 1
    """Races that a group takes."""
    max_new_tokens: ClassVar[int] = 128
    """How long an answer may become if the user does not say."""
    stop_loops: ClassVar[bool] = False
    """Whether answers end where they repeat themselves, if the user does not say."""

    @property
    @abstractmethod
    def groups(self) -> list[list[int]]:
        """Numbers of the prompts of every group."""

    @property
    @abstractmethod
    def opening(self) -> Prompt:
        """A prompt to warm up with."""

    @property
    @abstractmethod
    def content(self) -> str:
        """Everything that the prompts are made from, to tell workloads apart."""

    @abstractmethod
    def check(self, engine: Engine, params: SamplingParams) -> None:
        """Find prompts that do not fit before hours are spent on the others.

        Raises:
            PromptError: a prompt is longer than the context.
        """

    @abstractmethod
    def play(self, group: Sequence[int], race: Race, params: SamplingParams) -> list[Record]:
        """Decode a group with all engines; a record per number, in order."""


def warm_up(engines: Mapping[str, Engine], prompt: Prompt) -> None:
    """Let kernels compile outside the measurement; drafters forget what they saw."""
    for engine in engines.values():
        engine.decoder.target.warm_up()
        for _ in engine.events(prompt, max_new_tokens=_WARM_UP_TOKENS):
            pass
        engine.decoder.drafter.reset()


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
    """Decode everything with every engine and yield records group by group.

    Args:
        engines: by drafter; they share a target.
        workload: what to decode.
        params: sampling parameters of every request.
        cold: make drafters forget before every race.
        done: numbers of prompts that were decoded in an earlier run.
        stop: asked between turns; once true, the current group is dropped and the run ends.
        tick: called when an engine has finished its part of a race.
    """
    for number, group in enumerate(workload.groups):
        if done.issuperset(group):
            continue
        race = Race(engines, turn=number, cold=cold, stop=stop, tick=tick)
        try:
            records = workload.play(group, race, params)
        except Stopped:
            return
        yield records


def decode(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams
) -> Playing[list[Completion]]:
    """Completions of prompts that are decoded together, as far as the engine's batch goes.

    Whatever ends it, nothing is left in flight.
    """
    requests: list[int] = []
    done: dict[int, Completion] = {}
    try:
        for prompt in prompts:
            requests.append(engine.add(prompt, params))
        while len(done) < len(requests):
            for event in engine.step():
                if event.completion is not None:
                    done[event.request] = event.completion
            yield
    finally:
        for request in requests:
            engine.cancel(request)
    return [done[request] for request in requests]

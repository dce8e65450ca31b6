"""A clock, and systems that answer while their input still comes: nothing sees the future.

The rule is StreamingBench's (arXiv:2411.03628): what is asked at a time is answered from what came
by then. Here no system has the source; `play` hands it every piece when its time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Literal, NamedTuple, Protocol

from paceline.core.types import SamplingParams
from paceline.engine.engine import Completion, Engine, Event, Prompt
from paceline.engine.writing import joined
from paceline.errors import InvalidOption


class StreamClock(Protocol):
    """Seconds since some moment."""

    def now(self) -> float: ...

    def wait(self, until: float) -> None:
        """Return once it is so late."""
        ...


class WallClock:
    """The time that really passes."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    def now(self) -> float:
        return perf_counter() - self._begin

    def wait(self, until: float) -> None:
        sleep(max(0.0, until - self.now()))


class VirtualClock:
    """A time that passes where it is spent or waited for, and nowhere else."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait(self, until: float) -> None:
        self._now = max(self._now, until)

    def spend(self, seconds: float) -> None:
        self._now += seconds

    def charge(self, target: Any, seconds: Callable[[int], float]) -> None:
        """Let every forward of a target take `seconds` of its number of rows from now on."""
        forward = target.forward

        def charged(rows: Sequence[Any], *layers: Any) -> Any:
            self.spend(seconds(sum(map(len, rows))))
            return forward(rows, *layers)

        target.forward = charged


class Piece(NamedTuple):
    """Something that comes at a time; `change` False goes on, True begins again."""

    at: float
    what: Any
    change: bool = False


class Told(NamedTuple):
    """An answer, and when it was asked for, began and ended."""

    asked: float
    began: float
    ended: float
    answer: Any


class System(Protocol):
    """What hears pieces, and answers once."""

    def hear(self, piece: Piece) -> None: ...

    def ask(self) -> None:
        """Be asked: nothing comes after it."""
        ...

    def work(self) -> bool:
        """Do a little, if there is something to do by now; return whether there was."""
        ...

    def said(self) -> Any:
        """Return what is said by now; None before the first word."""
        ...

    @property
    def done(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Stream:
    """Pieces in order of time, then a question to one system at `asked`.

    InvalidOption: a piece comes before the one in front of it, or after the question.
    """

    system: System
    pieces: Sequence[Piece]
    asked: float

    def __post_init__(self) -> None:
        times = [*(piece.at for piece in self.pieces), self.asked]
        if times != sorted(times):
            raise InvalidOption("pieces must be in order of time, and the question behind them")


def play(streams: Sequence[Stream], clock: StreamClock) -> list[Told]:
    """Play streams together until all have their answers. Systems work by turns meanwhile."""
    waiting: list[tuple[float, int, Piece | None]] = sorted(
        [
            (at, number, piece)
            for number, stream in enumerate(streams)
            for at, piece in [*((p.at, p) for p in stream.pieces), (stream.asked, None)]
        ],
        key=lambda each: each[:2],  # those of one stream stay in order
    )
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    while len(ended) < len(streams):
        while waiting and waiting[0][0] <= clock.now():
            _, number, piece = waiting.pop(0)
            system = streams[number].system
            if piece is None:
                system.ask()
            else:
                system.hear(piece)
        busy = False
        for number, stream in enumerate(streams):
            if number not in ended:
                busy = stream.system.work() or busy
                if number not in began and stream.system.said() is not None:
                    began[number] = clock.now()
                if stream.system.done:
                    ended[number] = clock.now()
        if not busy and waiting:
            clock.wait(waiting[0][0])
    return [
        Told(stream.asked, began.get(number, ended[number]), ended[number], stream.system.said())
        for number, stream in enumerate(streams)
    ]


Way = Literal["writing", "caching", "waiting"]


class Room:
    """An engine, and the prompts of several clients in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.readers: dict[int, Prompter] = {}

    def step(self) -> bool:
        """Take a step and hand its events out; False if there is nothing to do."""
        if not self.engine.pending or self.engine.resting:
            return False
        for event in self.engine.checked_step():
            reader = self.readers.get(event.request)
            if reader is not None:
                reader.take(event)
        return True


class Prompter:
    """A prompt that comes in pieces, as a client of an engine has it answered.

    It is handed over as it is written, or whole at the end; "caching" asks for one token behind
    every piece and throws it away, as can be done where prefixes are kept.
    """

    def __init__(self, room: Room, params: SamplingParams, way: Way, **options: Any) -> None:
        self._room, self._params, self._way, self._options = room, params, way, options
        self._prompt: Prompt = ""
        self._request: int | None = None
        self._asked = False
        self._text: str | None = None
        self._completion: Completion | None = None

    def hear(self, piece: Piece) -> None:
        self._prompt = piece.what if piece.change else joined(self._prompt, piece.what)
        if self._way != "waiting":
            self._hand(open=self._way == "writing")

    def ask(self) -> None:
        self._asked = True
        self._hand(open=False)

    def work(self) -> bool:
        return self._room.step()

    def take(self, event: Event) -> None:
        """Hear an event of the engine."""
        if self._asked:
            self._text = (self._text or "") + event.text
            self._completion = event.completion

    def said(self) -> Completion | str | None:
        return self._completion or self._text

    @property
    def done(self) -> bool:
        return self._completion is not None

    def _hand(self, open: bool) -> None:
        engine, readers = self._room.engine, self._room.readers
        last = self._asked or open
        params = self._params if last else SamplingParams(max_new_tokens=1)
        prepared = engine.prepare(self._prompt, params, open=open, **self._options)
        if self._request is not None and self._way == "writing":
            engine.replace(self._request, prepared)
            return
        if self._request is not None:
            readers.pop(self._request)
            engine.cancel(self._request)  # a piece that is still read, if it is
        self._request = engine.add(prepared)
        readers[self._request] = self

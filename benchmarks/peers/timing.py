"""Engines by turns: for each prompt every configuration answers once before the next prompt.

Where prompts are answered together, a batch of them takes the place of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import EngineFailed
from paceline.lab.audit.engine import Timing
from paceline.lab.measure.kept import Kept

WARM_UP_TOKENS = 12

Batch = tuple[tuple[int, ...], ...]
"""Prompts that are answered together, or just one."""


class Timed(Protocol):
    """An engine in a process of its own; `JsonlEngine` is one."""

    def time(self, prompts: Batch, speculation: bool, tokens: int) -> Timing:
        """Greedy answers and their times; EngineFailed if there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Configuration:
    """What takes a turn.

    Attributes:
        name: of the row.
        engine: process that answers.
        peer: an engine other than paceline.
        mode: how it drafts; "plain" without.
        plain: name of the configuration that decodes the same without drafts.
    """

    name: str
    engine: str
    peer: bool
    mode: str
    plain: str

    @property
    def speculation(self) -> bool:
        """Whether it drafts."""
        return self.mode != "plain"


@dataclass(frozen=True, slots=True)
class Turn:
    """What every configuration made of one batch, one after the other.

    Attributes:
        round: number of the repetition, from 0.
        prompt: number of the batch, from 0; of the prompt where each is answered alone.
        timings: by configuration; those that had failed by then are missing.
    """

    round: int
    prompt: int
    timings: Mapping[str, Timing]


class Race:
    """Lets engines take turns, and drops those that fail."""

    def __init__(self, engines: Mapping[str, Timed], configurations: Sequence[Configuration]):
        """Engines by name, and configurations of these."""
        self._engines = engines
        self._left = list(configurations)
        self.failed: dict[str, str] = {}
        """Why a configuration is out of the race."""

    def warm_up(self, prompts: Batch) -> None:
        """Let caches fill and kernels compile outside the measurement."""
        for configuration in list(self._left):
            self._time(configuration, prompts, WARM_UP_TOKENS)

    def run(
        self,
        batches: Sequence[Batch],
        rounds: int,
        tokens: int,
        done: frozenset[tuple[int, int]] = frozenset(),
        say: Callable[[str], None] = lambda line: None,
    ) -> Iterator[Turn]:
        """Turns, round by round; those in `done`, as pairs of round and batch, are left out.

        Who begins changes from turn to turn, so that no one always follows the same one.
        """
        for number in range(rounds * len(batches)):
            place = divmod(number, len(batches))
            if place in done or not self._left:
                continue
            timings = {}
            shift = number % len(self._left)
            for configuration in self._left[shift:] + self._left[:shift]:
                say(configuration.name)
                timing = self._time(configuration, batches[place[1]], tokens)
                if timing is not None:
                    timings[configuration.name] = timing
            yield Turn(*place, timings)

    def _time(self, configuration: Configuration, prompts: Batch, tokens: int) -> Timing | None:
        try:
            engine = self._engines[configuration.engine]
            return engine.time(prompts, configuration.speculation, tokens)
        except EngineFailed as error:
            self.failed[configuration.name] = str(error)
            self._left.remove(configuration)
            return None


class Samples(Kept[Turn | tuple[str, dict[str, str]]]):
    """`samples.jsonl`: a line per turn, and per engine what it says of itself."""

    def __init__(self, directory: Path | None, settings: Mapping[str, Any]) -> None:
        """Open a directory as `Kept` does; None keeps nothing."""
        super().__init__(directory and directory / "samples.jsonl", settings, _entry)
        self.turns = [each for each in self.entries if isinstance(each, Turn)]
        self.about = dict(each for each in self.entries if not isinstance(each, Turn))
        """What engines said of themselves."""

    def add_turn(self, turn: Turn) -> None:
        """Keep a turn."""
        self.turns.append(turn)
        self.append(asdict(turn))

    def add_about(self, engine: str, about: Mapping[str, str]) -> None:
        """Keep what an engine says of itself."""
        self.about[engine] = dict(about)
        self.append({"engine": engine, "about": about})


def _entry(found: dict[str, Any]) -> Turn | tuple[str, dict[str, str]]:
    if "about" in found:
        return found["engine"], found["about"]
    timings = {
        name: Timing(**{**each, "tokens": tuple(each["tokens"])})
        for name, each in found["timings"].items()
    }
    return Turn(found["round"], found["prompt"], timings)

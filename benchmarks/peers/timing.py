"""Engines by turns: for each prompt every configuration answers once before the next prompt.

Where prompts are answered together, a batch of them takes the place of a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.audit.engine import Timing
from paceline.errors import EngineFailed, InvalidOption
from paceline.measure.machine import dumps

WARM_UP_TOKENS = 12

Batch = tuple[tuple[int, ...], ...]
"""Prompts that are answered together, or just one."""


class Timed(Protocol):
    """An engine in a process of its own; `BatchEngine` is one."""

    def time_batch(self, prompts: Batch, speculation: bool, tokens: int) -> Timing:
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
            return engine.time_batch(prompts, configuration.speculation, tokens)
        except EngineFailed as error:
            self.failed[configuration.name] = str(error)
            self._left.remove(configuration)
            return None


class Samples:
    """`samples.jsonl`: the settings on the first line, then a line per turn and per remark."""

    def __init__(self, directory: Path | None, settings: Mapping[str, Any]) -> None:
        """Open a directory, new or left by a run with the same settings; None keeps no file.

        Raises:
            InvalidOption: it holds other settings, or cannot be read or written.
        """
        self.turns: list[Turn] = []
        self.about: dict[str, dict[str, str]] = {}
        """What engines said of themselves."""
        self._file = None if directory is None else directory / "samples.jsonl"
        if directory is None or self._file is None:
            return
        header = dumps({"settings": settings})
        kept = [header]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lines = self._file.read_text("utf-8").split("\n") if self._file.exists() else [header]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"cannot use {directory} ({error}): give another --out") from error
        if lines[0] != header:
            raise InvalidOption(
                f"{directory} holds a run with other settings: give another --out, or the same "
                "settings to go on"
            )
        for line in lines[1:]:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue  # cut short; the turn is taken again
            kept.append(line)
        self._write("w", kept)

    def add_turn(self, turn: Turn) -> None:
        """Keep a turn."""
        self.turns.append(turn)
        self._write("a", [dumps(asdict(turn))])

    def add_about(self, engine: str, about: Mapping[str, str]) -> None:
        """Keep what an engine says of itself."""
        self.about[engine] = dict(about)
        self._write("a", [dumps({"engine": engine, "about": about})])

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "about" in entry:
            self.about[entry["engine"]] = entry["about"]
            return
        timings = {
            name: Timing(**{**each, "tokens": tuple(each["tokens"])})
            for name, each in entry["timings"].items()
        }
        self.turns.append(Turn(entry["round"], entry["prompt"], timings))

    def _write(self, mode: str, lines: Sequence[str]) -> None:
        if self._file is None:
            return
        try:
            with self._file.open(mode, encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
        except OSError as error:
            raise InvalidOption(
                f"cannot write {self._file} ({error.strerror}): give another --out"
            ) from error

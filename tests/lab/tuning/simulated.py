"""A track without a model: configurations have known speeds, and time is a counter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paceline.core.metrics import GenerationStats
from paceline.lab.measure.report import BASELINE
from paceline.lab.measure.run import Record, Run, Stopped
from paceline.registry.tuned_choice import Configuration

TOKENS = 100
"""Of every run; plain decoding takes one second for them when the machine is fast."""

SLICES = 10


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SimulatedTrack:
    """Every run takes a second over the speed of its configuration.

    The machine's own speed changes by a factor of two from prompt to prompt, for all alike; each
    pair is noisy besides. On every other prompt, drafts gain `repetitive` times as much.
    """

    def __init__(
        self,
        clock: Clock,
        speeds: Mapping[str, float],
        *,
        others: float = 0.9,
        repetitive: float = 1.0,
        noise: float = 0.0,
        seed: int = 7,
        prompts: int = 12,
        on_play: Callable[[int], None] = lambda plays: None,
    ) -> None:
        self.searching: Sequence[int] = range(prompts // 2)
        self.held_out: Sequence[int] = range(prompts // 2, prompts)
        self.opened: list[list[Configuration]] = []
        self.plays: list[tuple[int, list[str]]] = []
        self._clock = clock
        self._speeds = speeds
        self._others = others
        self._repetitive = repetitive
        self._noise = noise
        self._on_play = on_play
        self._rng = np.random.default_rng(seed)

    def open(self, configurations: Sequence[Configuration]):
        self.opened.append(list(configurations))

        def play(prompt: int, who: Sequence[Configuration], stop: Callable[[], object]) -> Record:
            assert set(who) <= set(configurations)
            self.plays.append((prompt, [each.name for each in who]))
            self._on_play(len(self.plays))
            machine = 1.0 + self._rng.random()
            runs = {}
            for name in [BASELINE, *(each.name for each in who)]:
                speed = 1.0
                if name != BASELINE:
                    speed = self.speed(name) * (self._repetitive if prompt % 2 else 1.0)
                speed *= float(np.exp(self._noise * self._rng.standard_normal()))
                runs[name] = Run([], stats(machine / speed))
            for _ in range(SLICES):
                self._clock.now += sum(r.stats.forward_seconds for r in runs.values()) / SLICES
                if stop():
                    raise Stopped
            return Record(prompt, str(prompt), "any", runs)

        return play

    def speed(self, name: str) -> float:
        return self._speeds.get(name, self._others)


def stats(seconds: float) -> GenerationStats:
    """Figures of a run of TOKENS tokens."""
    return GenerationStats(target_forwards=TOKENS, committed_tokens=TOKENS, forward_seconds=seconds)

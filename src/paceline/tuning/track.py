"""Where configurations are measured: one loaded model, prompts to search on, others to prove on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.bench.dialogues import Dialogues
from paceline.bench.prompts import BenchPrompt, spread
from paceline.bench.report import BASELINE
from paceline.bench.run import Race, Record, warm_up
from paceline.errors import PromptError
from paceline.loading import Loaded, make_engine
from paceline.tuned import Configuration
from paceline.tuning.space import PLAIN
from paceline.types import SamplingParams

FEWEST_PROMPTS = 4
_MOST_PROMPTS = 24

Play = Callable[[int, Sequence[Configuration], Callable[[], object]], Record]
"""Prompt, who takes part, and what is asked between slices whether to stop; raises Stopped."""


class Track(Protocol):
    """What a search needs to measure."""

    @property
    def searching(self) -> Sequence[int]:
        """Numbers of the prompts that candidates are compared on."""

    @property
    def held_out(self) -> Sequence[int]:
        """Numbers of the prompts that finalists must prove themselves on."""

    def open(self, configurations: Sequence[Configuration]) -> Play:
        """Fresh engines for configurations, none of which has seen a prompt."""


class ModelTrack:
    """A track over a model. The first half of the prompts is searched on, the second held out."""

    def __init__(
        self, loaded: Loaded, prompts: Sequence[BenchPrompt], params: SamplingParams
    ) -> None:
        """Choose prompts evenly over categories, and warm up.

        Raises:
            PromptError: there are fewer than four prompts, or one is longer than the context.
        """
        if len(prompts) < FEWEST_PROMPTS:
            raise PromptError(
                f"tuning needs {FEWEST_PROMPTS} prompts or more, half of them to prove the winner "
                f"on, and there are {len(prompts)}: add prompts"
            )
        self._loaded = loaded
        self._params = params
        self.work = Dialogues(spread(prompts, _MOST_PROMPTS))
        count = len(self.work.prompts)
        self.searching: Sequence[int] = range(count // 2)
        self.held_out: Sequence[int] = range(count // 2, count)
        self._plain = make_engine(loaded, drafter=PLAIN.drafter, max_batch=1)
        self.work.check(self._plain, params)
        warm_up({BASELINE: self._plain}, self.work.opening)
        loaded.costs  # noqa: B018 (measured now, not within the time limit)
        self._turn = 0

    def open(self, configurations: Sequence[Configuration]) -> Play:
        """Fresh engines; drafters learn from prompt to prompt, as they do in use."""
        gc.collect()  # engines of the round before hold tables and caches
        engines = {BASELINE: self._plain}
        for each in configurations:
            engines[each.name] = make_engine(
                self._loaded,
                drafter=each.drafter,
                controller=each.controller,
                nodes=each.nodes,
                depth=each.depth,
                max_batch=1,
            )
        warm_up(engines, self.work.opening)

        def play(prompt: int, who: Sequence[Configuration], stop: Callable[[], object]) -> Record:
            names = [BASELINE, *(each.name for each in who)]
            race = Race({name: engines[name] for name in names}, turn=self._turn, stop=stop)
            self._turn += 1
            [record] = self.work.play([prompt], race, self._params)
            return record

        return play

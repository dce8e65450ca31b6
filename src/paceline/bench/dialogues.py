"""The workload of a prompt file: single prompts, or dialogues with the model's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from paceline.bench.prompts import BenchPrompt
from paceline.bench.run import Playing, Race, Record, Run, Workload, decode
from paceline.engine import Engine, Prompt
from paceline.errors import PromptError
from paceline.types import SamplingParams


@dataclass(frozen=True)
class Dialogues(Workload):
    """Prompts whose user turns are known beforehand.

    Attributes:
        prompts: what to decode, at least one.
        batch: prompts decoded together.
        all_turns: play dialogues to their end (or until the context is full) with the model's own
            answers in between, instead of the first turn alone.
    """

    prompts: Sequence[BenchPrompt]
    batch: int = 1
    all_turns: bool = False
    name: ClassVar[str] = "prompts"

    @property
    def groups(self) -> list[list[int]]:
        """As many prompts as are decoded together."""
        numbers = list(range(len(self.prompts)))
        return [numbers[start : start + self.batch] for start in numbers[:: self.batch]]

    @property
    def opening(self) -> Prompt:
        """The first turn of the first prompt."""
        return self.prompts[0].turns[0]

    @property
    def content(self) -> str:
        """All turns."""
        return repr([(p.question_id, p.category, p.turns) for p in self.prompts])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        """Raises PromptError if a first turn is longer than the context."""
        for prompt in self.prompts:
            try:
                engine.cancel(engine.add(prompt.turns[0], params))
            except PromptError as error:
                raise PromptError(f"question {prompt.question_id}: {error}") from error

    def play(self, group: Sequence[int], race: Race, params: SamplingParams) -> list[Record]:
        """Every engine on the group's prompts, each with its own answers."""
        chosen = [self.prompts[number] for number in group]
        turns = max(len(prompt.turns) for prompt in chosen) if self.all_turns else 1
        runs = race.run(partial(_play, prompts=chosen, params=params, turns=turns))
        return [
            Record(
                number,
                prompt.question_id,
                prompt.category,
                {name: mine[place] for name, mine in runs.items()},
            )
            for place, (number, prompt) in enumerate(zip(group, chosen, strict=True))
        ]


def _play(
    engine: Engine, prompts: Sequence[BenchPrompt], params: SamplingParams, turns: int
) -> Playing[list[Run]]:
    """One engine on a group of prompts, turn by turn."""
    runs = [Run() for _ in prompts]
    dialogues: list[list[dict[str, str]]] = [[] for _ in prompts]
    for turn in range(turns):
        places, asked = [], []
        for place, prompt in enumerate(prompts):
            if turn >= len(prompt.turns):
                continue
            message = {"role": "user", "content": prompt.turns[turn]}
            request: Prompt = [*dialogues[place], message] if turn else prompt.turns[0]
            if turn and not _fits(engine, request):
                continue  # the context is full: the dialogue ends here
            dialogues[place].append(message)
            places.append(place)
            asked.append(request)
        completions = yield from decode(engine, asked, params)
        for place, completion in zip(places, completions, strict=True):
            runs[place].add(completion)
            dialogues[place].append({"role": "assistant", "content": completion.text})
    return runs


def _fits(engine: Engine, prompt: Prompt) -> bool:
    try:
        engine.cancel(engine.add(prompt))
    except PromptError:
        return False
    return True

"""The protocol of a bench: every drafter on every prompt in turn, over one loaded model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paceline.bench.prompts import BenchPrompt
from paceline.engine import Completion, Engine
from paceline.errors import PromptError
from paceline.metrics import GenerationStats
from paceline.types import SamplingParams

_WARM_UP_TOKENS = 12

_SLICE = 8
"""Steps that one engine takes before the next one's turn: a shared machine's speed changes within
a second, and every engine shall see the same share of slow moments."""


@dataclass(slots=True)
class Run:
    """One drafter on one prompt.

    Attributes:
        token_ids: generated tokens, turn by turn.
        stats: figures of all turns together.
    """

    token_ids: list[list[int]] = field(default_factory=list)
    stats: GenerationStats = field(default_factory=GenerationStats)


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
            runs[drafter] = Run(run["token_ids"], GenerationStats(**run["stats"]))
        return cls(int(entry["index"]), entry["question_id"], entry["category"], runs)


def groups(prompts: Sequence[BenchPrompt], batch: int) -> list[list[int]]:
    """Indices of the prompts that are decoded together."""
    indices = list(range(len(prompts)))
    return [indices[start : start + batch] for start in range(0, len(prompts), batch)]


def check_fit(engine: Engine, prompts: Sequence[BenchPrompt]) -> None:
    """Find prompts that do not fit before hours are spent on the others.

    Raises:
        PromptError: a first turn is longer than the context.
    """
    for prompt in prompts:
        try:
            engine.cancel(engine.add(prompt.turns[0]))
        except PromptError as error:
            raise PromptError(f"question {prompt.question_id}: {error}") from error


def warm_up(engines: Mapping[str, Engine], prompt: BenchPrompt) -> None:
    """Let kernels compile outside the measurement; drafters forget what they saw."""
    for engine in engines.values():
        engine.decoder.target.warm_up()
        engine.generate(prompt.turns[0], max_new_tokens=_WARM_UP_TOKENS)
        engine.decoder.drafter.reset()


def run(
    engines: Mapping[str, Engine],
    prompts: Sequence[BenchPrompt],
    params: SamplingParams,
    *,
    batch: int = 1,
    all_turns: bool = False,
    cold: bool = False,
    done: frozenset[int] = frozenset(),
    stop: Callable[[], object] = lambda: False,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[list[Record]]:
    """Decode every prompt with every engine, by turns, and yield records group by group.

    All engines work on a group at once, a few steps each in rotation, so that a machine that
    becomes slower or faster does so for all of them.

    Args:
        engines: by drafter; they share a target.
        prompts: what to decode.
        params: sampling parameters of every request.
        batch: prompts decoded together.
        all_turns: play dialogues to their end (or until the context is full) with the model's own
            answers in between, instead of the first turn alone.
        cold: make drafters forget before every prompt.
        done: indices of prompts that were decoded in an earlier run.
        stop: asked between turns; once true, the current group is dropped and the run ends.
        tick: called when an engine has finished a group.
    """
    names = list(engines)
    for number, group in enumerate(groups(prompts, batch)):
        if done.issuperset(group):
            continue
        if cold:
            for engine in engines.values():
                engine.decoder.drafter.reset()
        shift = number % len(names)
        chosen = [prompts[i] for i in group]
        playing = {
            name: _play(engines[name], chosen, params, all_turns)
            for name in names[shift:] + names[:shift]
        }
        runs: dict[str, list[Run]] = {}
        try:
            while playing:
                for name in list(playing):
                    played = _advance(playing[name])
                    if played is not None:
                        runs[name] = played
                        del playing[name]
                        tick()
                    if stop():
                        return
        finally:
            for left in playing.values():
                left.close()
        yield [
            Record(
                index,
                prompts[index].question_id,
                prompts[index].category,
                {name: runs[name][place] for name in names},
            )
            for place, index in enumerate(group)
        ]


def _advance(playing: Generator[None, None, list[Run]]) -> list[Run] | None:
    """A few steps; the runs if that was the end."""
    try:
        for _ in range(_SLICE):
            next(playing)
    except StopIteration as end:
        runs: list[Run] = end.value
        return runs
    return None


def _play(
    engine: Engine, prompts: Sequence[BenchPrompt], params: SamplingParams, all_turns: bool
) -> Generator[None, None, list[Run]]:
    """One engine on a group of prompts, turn by turn; pauses after every step."""
    runs = [Run() for _ in prompts]
    dialogues: list[list[dict[str, str]]] = [[] for _ in prompts]
    longest = max(len(prompt.turns) for prompt in prompts) if all_turns else 1
    for turn in range(longest):
        requests: dict[int, int] = {}
        for place, prompt in enumerate(prompts):
            if turn == 0:
                requests[engine.add(prompt.turns[0], params)] = place
            elif turn < len(prompt.turns):
                asked = [*dialogues[place], {"role": "user", "content": prompt.turns[turn]}]
                try:
                    requests[engine.add(asked, params)] = place
                except PromptError:  # the context is full: the dialogue ends here
                    continue
        for place, completion in (yield from _finish(engine, requests)).items():
            runs[place].token_ids.append(list(completion.token_ids))
            runs[place].stats.add(completion.stats)
            dialogues[place] += [
                {"role": "user", "content": prompts[place].turns[turn]},
                {"role": "assistant", "content": completion.text},
            ]
    return runs


def _finish(
    engine: Engine, requests: Mapping[int, int]
) -> Generator[None, None, dict[int, Completion]]:
    """Completions by place in the group; whatever ends it, nothing is left in flight."""
    done: dict[int, Completion] = {}
    try:
        while len(done) < len(requests):
            for event in engine.step():
                if event.completion is not None:
                    done[requests[event.request]] = event.completion
            yield
    finally:
        for request in requests:
            engine.cancel(request)
    return done

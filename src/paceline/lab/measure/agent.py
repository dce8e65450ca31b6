"""The agentic workload: plan, parallel workers, rounds of self-refinement.

Later prompts quote earlier answers, files come back in every step that reads them, and drafts are
pasted back to be improved, as in practice. So that all engines see the same prompts, the answers
that are quoted are always those of plain decoding.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import ClassVar

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine, Prepared, Prompt
from paceline.errors import PromptError
from paceline.lab.measure.prompts import BenchPrompt
from paceline.lab.measure.report import BASELINE
from paceline.lab.measure.run import Playing, Record, Rotation, Run, Workload, decode


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One task of the agent.

    Attributes:
        files: shown to the planner and the refiner.
        steps: taken where the model's own plan has fewer.
        calls: by step, a tool call and what it returns.
        review: of every draft.
    """

    name: str
    goal: str
    files: tuple[str, ...]
    steps: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]
    review: str


_TOLD = tomllib.loads(
    files("paceline.lab.measure").joinpath("agent.toml").read_text(encoding="utf-8")
)
FILES: dict[str, str] = _TOLD["files"]
TEST_OUTPUT: str = _TOLD["test_output"]


def _called(name: str) -> tuple[str, str]:
    if name == "run_tests":
        return "run_tests()", TEST_OUTPUT
    return f'read_file("{name}")', FILES[name]


TASKS = tuple(
    AgentTask(
        task["name"],
        task["goal"],
        tuple(task["files"]),
        tuple(task["steps"]),
        tuple(map(_called, task["calls"])),
        task["review"],
    )
    for task in _TOLD["tasks"]
)


WORKERS = 3
ROUNDS = 2
PROMPTS = 1 + WORKERS + ROUNDS
"""Prompts of one task."""

_STEP_LENGTH = 200
_STEP = re.compile(r"^\W*(?:step\s*)?\d+\s*[.):-]\W*(.+)|^\s*[-*•]\s+(.+)", re.IGNORECASE)

_SYSTEM = """\
You are a careful assistant who works on a small software project for a ferry line. You can use \
these tools:

- read_file(name): returns the contents of a file.
- run_tests(): runs the tests and returns what they print.
- finish(text): hands in the result.

Work on one step at a time. When you change a file, return the whole file. Use only facts from \
the files. Do not explain what you are going to do."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Prompts that are answered before the next can be written: "plan", "work" or "refine"."""

    category: str
    names: tuple[str, ...]
    prompts: list[Prompt]


def stages(task: AgentTask) -> Generator[Stage, list[str], None]:
    """Yield the stages of a task; each is answered by sending a text per prompt."""
    goal = f"Task: {task.goal}"
    files = "\n\n".join(f"File {name}:\n\n{FILES[name]}" for name in task.files)
    ask = f"Which {WORKERS} steps lead there? Answer with a numbered list, a sentence per step."
    [plan] = yield _stage("plan", ["plan"], [_chat(f"{files}\n\n{goal}\n\n{ask}")])
    steps = plan_steps(plan, task.steps)
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    working = []
    for number, (step, (call, result)) in enumerate(zip(steps, task.calls, strict=True), 1):
        working.append(
            _chat(
                f"{goal}\n\nPlan:\n{listed}\n\nYou called {call}. It returned:\n\n{result}\n\n"
                f"Now do step {number}: {step}"
            )
        )
    names = [f"work-{number}" for number in range(1, WORKERS + 1)]
    answers = yield _stage("work", names, working)
    drafts = "\n\n".join(f"Result {n}:\n\n{text}" for n, text in enumerate(answers, 1))
    text = (
        f"{files}\n\n{goal}\n\nThree workers did the steps of the plan.\n\n{drafts}\n\n"
        "Put their results together to one. Return the whole result."
    )
    for number in range(1, ROUNDS + 1):
        [draft] = yield _stage("refine", [f"refine-{number}"], [_chat(text)])
        text = (
            f"{files}\n\n{goal}\n\nThis is the draft:\n\n{draft}\n\n"
            f"A reviewer says: {task.review}\n\nImprove this. Return the whole result."
        )


def plan_steps(plan: str, otherwise: Sequence[str]) -> list[str]:
    """Return the first steps of a plan, its numbered or bulleted lines, filled up from `otherwise`.

    Small models plan poorly.
    """
    steps: list[str] = []
    for line in plan.splitlines():
        match = _STEP.match(line)
        step = (match[1] or match[2]).strip(" *_`")[:_STEP_LENGTH] if match else ""
        fresh = step.casefold() not in (known.casefold() for known in steps)
        if fresh and any(map(str.isalpha, step)):
            steps.append(step)
    return [*steps[:WORKERS], *otherwise[len(steps) :]][:WORKERS]


@dataclass(frozen=True)
class AgentLoop(Workload):
    """Tasks that a small agent works on; a group is a task."""

    tasks: Sequence[AgentTask] = TASKS
    name: ClassVar[str] = "agentic"
    races: int = 2 + ROUNDS
    max_new_tokens: ClassVar[int] = 512  # a whole file, since prompts ask for it
    stop_loops: ClassVar[bool] = True  # else half of the tokens of a small model go in circles

    @property
    def groups(self) -> list[list[int]]:
        return [list(range(n * PROMPTS, (n + 1) * PROMPTS)) for n in range(len(self.tasks))]

    @property
    def opening(self) -> Prompt:
        return next(stages(self.tasks[0])).prompts[0]

    @property
    def content(self) -> str:
        return repr([(task, _played(task, "")) for task in self.tasks])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        # With the longest answers.
        if engine.tokenizer.chat_template is None:
            raise PromptError("the model has no chat template: use --workload prompts")
        for task in self.tasks:
            for stage in _played(task, " word" * params.max_new_tokens):
                for name, prompt in zip(stage.names, stage.prompts, strict=True):
                    try:
                        engine.cancel(engine.add(prompt, params))
                    except PromptError as error:
                        raise PromptError(f"task {task.name}, {name}: {error}") from error

    def play(self, group: Sequence[int], race: Rotation, params: SamplingParams) -> list[Record]:
        task = self.tasks[group[0] // PROMPTS]
        records: list[Record] = []
        left = stages(task)
        stage: Stage | None = next(left)
        while stage is not None:
            answers = race.run(partial(decode, prompts=stage.prompts, params=params))
            for place, name in enumerate(stage.names):
                runs = {drafter: Run() for drafter in answers}
                for drafter, run in runs.items():
                    run.add(answers[drafter][place])
                number = group[len(records)]
                records.append(Record(number, f"{task.name}/{name}", stage.category, runs))
            stage = _answer(left, [each.text for each in answers[BASELINE]])
        return records


def _played(task: AgentTask, answer: str) -> list[Stage]:
    left = stages(task)
    stage: Stage | None = next(left)
    out = []
    while stage is not None:
        out.append(stage)
        stage = _answer(left, [answer] * len(stage.prompts))
    return out


def _answer(left: Generator[Stage, list[str], None], answers: list[str]) -> Stage | None:
    try:
        return left.send(answers)
    except StopIteration:
        return None


def _stage(category: str, names: Sequence[str], chats: Sequence[list[dict[str, str]]]) -> Stage:
    return Stage(category, tuple(names), list(chats))


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


@dataclass(frozen=True)
class Dialogues(Workload):
    """Prompts whose user turns are known beforehand, `batch` of them decoded together.

    `all_turns` plays dialogues to their end (or until the context is full) with the model's own
    answers in between, instead of the first turn alone.
    """

    prompts: Sequence[BenchPrompt]
    batch: int = 1
    all_turns: bool = False
    name: ClassVar[str] = "prompts"

    @property
    def groups(self) -> list[list[int]]:
        numbers = list(range(len(self.prompts)))
        return [numbers[start : start + self.batch] for start in numbers[:: self.batch]]

    @property
    def opening(self) -> Prompt:
        return self.prompts[0].turns[0]

    @property
    def content(self) -> str:
        return repr([(p.question_id, p.category, p.turns) for p in self.prompts])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        for prompt in self.prompts:
            try:
                engine.cancel(engine.add(prompt.turns[0], params))
            except PromptError as error:
                raise PromptError(f"question {prompt.question_id}: {error}") from error

    def play(self, group: Sequence[int], race: Rotation, params: SamplingParams) -> list[Record]:
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
    runs = [Run() for _ in prompts]
    dialogues: list[list[dict[str, str]]] = [[] for _ in prompts]
    for turn in range(turns):
        places, asked = list[int](), list[Prepared]()
        for place, prompt in enumerate(prompts):
            if turn >= len(prompt.turns):
                continue
            message = {"role": "user", "content": prompt.turns[turn]}
            request: Prompt = [*dialogues[place], message] if turn else prompt.turns[0]
            if turn and not _fits(engine, request):
                continue  # the context is full: the dialogue ends here
            dialogues[place].append(message)
            places.append(place)
            asked.append(engine.prepare(request, params, sample=prompt.sample))
        completions = yield from decode(engine, asked)
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

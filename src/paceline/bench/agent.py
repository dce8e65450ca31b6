"""The agentic workload: plan, parallel workers, rounds of self-refinement.

Later prompts quote earlier answers, files come back in every step that reads them, and drafts are
pasted back to be improved, as in practice. So that all engines see the same prompts, the answers
that are quoted are always those of plain decoding.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from paceline.bench.report import BASELINE
from paceline.bench.run import Race, Record, Run, Workload, decode
from paceline.bench.tasks import TASKS, Task
from paceline.bench.workspace import FILES
from paceline.engine import Engine, Prompt
from paceline.errors import PromptError
from paceline.types import SamplingParams

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
    """Prompts that are answered before the next ones can be written.

    Attributes:
        category: "plan", "work" or "refine".
        names: of the prompts.
        prompts: chat messages of each.
    """

    category: str
    names: tuple[str, ...]
    prompts: list[Prompt]


def stages(task: Task) -> Generator[Stage, list[str], None]:
    """The stages of a task; each is answered by sending a text per prompt."""
    goal = f"Task: {task.goal}"
    files = _files(task.files)
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
    """The first steps of a plan, filled up from `otherwise`: small models plan poorly.

    Args:
        plan: a model's answer; numbered or bulleted lines with words are steps.
        otherwise: `WORKERS` steps that always make sense.
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
    """Tasks that a small agent works on; a group is a task.

    Attributes:
        tasks: what to do, at least one.
    """

    tasks: Sequence[Task] = TASKS
    name: ClassVar[str] = "agentic"
    races: int = 2 + ROUNDS
    max_new_tokens: ClassVar[int] = 512  # a whole file, since prompts ask for it
    stop_loops: ClassVar[bool] = True  # else half of the tokens of a small model go in circles

    @property
    def groups(self) -> list[list[int]]:
        """The prompts of every task."""
        return [list(range(n * PROMPTS, (n + 1) * PROMPTS)) for n in range(len(self.tasks))]

    @property
    def opening(self) -> Prompt:
        """The first plan."""
        return next(stages(self.tasks[0])).prompts[0]

    @property
    def content(self) -> str:
        """Tasks, and the prompts around them with empty answers."""
        return repr([(task, _played(task, "")) for task in self.tasks])

    def check(self, engine: Engine, params: SamplingParams) -> None:
        """Raises PromptError if a prompt is longer than the context, all answers being long."""
        if engine.tokenizer.chat_template is None:
            raise PromptError("the model has no chat template: use --workload prompts")
        for task in self.tasks:
            for stage in _played(task, " word" * params.max_new_tokens):
                for name, prompt in zip(stage.names, stage.prompts, strict=True):
                    try:
                        engine.cancel(engine.add(prompt, params))
                    except PromptError as error:
                        raise PromptError(f"task {task.name}, {name}: {error}") from error

    def play(self, group: Sequence[int], race: Race, params: SamplingParams) -> list[Record]:
        """All stages of a task."""
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


def _played(task: Task, answer: str) -> list[Stage]:
    """All stages when every answer is `answer`."""
    left = stages(task)
    stage: Stage | None = next(left)
    out = []
    while stage is not None:
        out.append(stage)
        stage = _answer(left, [answer] * len(stage.prompts))
    return out


def _answer(left: Generator[Stage, list[str], None], answers: list[str]) -> Stage | None:
    """The next stage, or None after the last."""
    try:
        return left.send(answers)
    except StopIteration:
        return None


def _stage(category: str, names: Sequence[str], chats: Sequence[list[dict[str, str]]]) -> Stage:
    return Stage(category, tuple(names), list(chats))


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}]


def _files(names: Sequence[str]) -> str:
    return "\n\n".join(f"File {name}:\n\n{FILES[name]}" for name in names)

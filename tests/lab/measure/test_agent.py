"""The agentic workload: plans of poor models, prompts that repeat, equal prompts for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer

from paceline.core.types import SamplingParams
from paceline.drafters.base import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Engine, Prompt
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import PromptError
from paceline.lab.measure import agent
from paceline.lab.measure.agent import (
    FILES,
    PROMPTS,
    ROUNDS,
    TASKS,
    WORKERS,
    AgentLoop,
    AgentTask,
    Stage,
    plan_steps,
    stages,
)
from paceline.lab.measure.run import run
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.verifiers.matching import Coupled

VOCABULARY = 320
OTHERWISE = ("first", "second", "third")
PARAMS = SamplingParams(temperature=1.0, max_new_tokens=8)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        ("1. read\n2. write\n3. test\n4. rest", ["read", "write", "test"]),
        ("Here it is:\n\n- read\n* write\n• test", ["read", "write", "test"]),
        ("**Step 1:** read it\n### Step 2: write", ["read it", "write", "third"]),
        ("1) **read**\n1) READ\n2) write", ["read", "write", "third"]),
        ("no plan at all\nreally 5. none", ["first", "second", "third"]),
        ("1.\n2. \n-", ["first", "second", "third"]),
        ("1. 1.\n2. 2.\n3. write", ["write", "second", "third"]),
        ("", ["first", "second", "third"]),
        ("1. " + "x" * 999, ["x" * 200, "second", "third"]),
    ],
)
def test_plans_are_read_leniently(plan: str, steps: list[str]) -> None:
    assert plan_steps(plan, OTHERWISE) == steps


def played(task: AgentTask, answers: Sequence[str]) -> list[Stage]:
    """Stages when prompts are answered by `answers`, in order."""
    left, texts = stages(task), iter(answers)
    out = [next(left)]
    while True:
        try:
            out.append(left.send([next(texts) for _ in out[-1].prompts]))
        except StopIteration:
            return out


def text(prompt: Prompt) -> str:
    return "\n".join(message["content"] for message in prompt)  # type: ignore[index, call-overload]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_later_prompts_quote_earlier_answers(task: AgentTask) -> None:
    answers = ["1. apples\n2. pears", "PART ONE", "PART TWO", "PART THREE", "DRAFT", "END"]
    made = played(task, answers)
    assert [stage.category for stage in made] == ["plan", "work"] + ["refine"] * ROUNDS
    assert sum(len(stage.prompts) for stage in made) == PROMPTS == len(answers)
    [plan], work, [merge], [improve] = [list(map(text, stage.prompts)) for stage in made]
    for name in task.files:
        for prompt in (plan, merge, improve):
            assert FILES[name] in prompt
    assert len(work) == WORKERS
    steps = ("apples", "pears", task.steps[2])
    for number, prompt, step, call in zip((1, 2, 3), work, steps, task.calls, strict=True):
        assert prompt.endswith(f"step {number}: {step}")
        assert "1. apples\n2. pears\n" in prompt
        assert call[1] in prompt
    for part in answers[1:4]:
        assert part in merge
        assert part not in improve
    assert "DRAFT" in improve
    systems = {prompt[0]["content"] for stage in made for prompt in stage.prompts}  # type: ignore[index, call-overload]
    assert len(systems) == 1


def test_tasks_are_told_apart_and_share_files() -> None:
    assert len(TASKS) == len({task.name for task in TASKS}) == 8
    shown = [name for task in TASKS for name in task.files]
    assert len(shown) > len(set(shown))
    changed = (replace(TASKS[0], review="Shorter."), *TASKS[1:])
    assert AgentLoop(changed).content != AgentLoop().content
    assert AgentLoop(TASKS[:2]).content == AgentLoop(TASKS[:2]).content


def engine(drafted: bool, seed: int, context: int = 9000, chat: bool = True) -> Engine:
    table = TabularModel(VOCABULARY, 1, seed=seed, sharpness=3.0)
    target: Any = TabularTarget(table.logits, VOCABULARY, context)
    drafter = Recycling(VOCABULARY) if drafted else NoDrafter()
    parts = drafter, Coupled(), Fixed(4 if drafted else 1, 4), StopRules((), context)
    tokenizer = Tokenizer(tiny_tokenizer(VOCABULARY), chat_template=CHAT_TEMPLATE if chat else None)
    return Engine(AutoregressiveDecoder(target, *parts), tokenizer, max_batch=2)


def watch(engines: dict[str, Engine], log: list[tuple[str, Any]]) -> None:
    """Log what engines are asked, and when their drafters forget."""

    def wrap(name: str, each: Engine) -> None:
        add, reset = each.add, each.decoder.drafter.reset
        each.add = lambda p, *a, **o: log.append((name, p)) or add(p, *a, **o)  # type: ignore
        each.decoder.drafter.reset = lambda: log.append((name, None)) or reset()  # type: ignore

    for name, each in engines.items():
        wrap(name, each)


def test_all_engines_see_the_prompts_that_plain_decoding_makes() -> None:
    engines = {"none": engine(False, 5), "same": engine(True, 5), "other": engine(True, 6)}
    log: list[tuple[str, Any]] = []
    watch(engines, log)
    groups = list(run(engines, AgentLoop(TASKS[:2]), PARAMS))
    asked = {name: [p for who, p in log if who == name] for name in engines}
    assert asked["none"] == asked["same"] == asked["other"]
    assert len(asked["none"]) == 2 * PROMPTS
    assert [[r.index for r in group] for group in groups] == AgentLoop(TASKS[:2]).groups
    assert [r.question_id for r in groups[1]] == [
        f"rounding/{name}"
        for name in ("plan", "work-1", "work-2", "work-3", "refine-1", "refine-2")
    ]
    texts = engines["none"].tokenizer
    for group in groups:
        for record in group:
            assert record.runs["same"].token_ids == record.runs["none"].token_ids
            assert record.runs["same"].stats.committed_tokens == PARAMS.max_new_tokens
        answers = [texts.decode(record.runs["none"].token_ids[0]) for record in group]
        expected = played(TASKS[group[0].index // PROMPTS], answers)
        assert [p for stage in expected for p in stage.prompts] == asked["none"][
            group[0].index : group[0].index + PROMPTS
        ]
    other = [record.runs["other"].token_ids for record in groups[0]]
    assert other != [record.runs["none"].token_ids for record in groups[0]]


@pytest.mark.parametrize("cold", [False, True])
def test_drafters_remember_across_steps_and_tasks_unless_cold(cold: bool) -> None:
    engines = {"none": engine(False, 5), "same": engine(True, 5)}
    log: list[tuple[str, Any]] = []
    watch(engines, log)
    list(run(engines, AgentLoop(TASKS[:2]), PARAMS, cold=cold))
    forgot = [name for name, prompt in log if prompt is None]
    assert forgot == (["none", "same"] * 2 * agent.AgentLoop.races if cold else [])


def test_a_stop_drops_the_task_and_a_later_run_takes_up_with_the_next() -> None:
    engines = {"none": engine(False, 5)}
    steps = iter(range(10**6))
    whole = list(run({"none": engine(False, 5)}, AgentLoop(TASKS[:2]), PARAMS))
    first = list(run(engines, AgentLoop(TASKS[:2]), PARAMS, stop=lambda: next(steps) > 12))
    assert [r.index for group in first for r in group] == list(range(PROMPTS))
    assert engines["none"].pending == 0
    done = frozenset(range(PROMPTS))
    [second] = run(engines, AgentLoop(TASKS[:2]), PARAMS, done=done)
    tokens = [[r.runs["none"].token_ids for r in group] for group in (first[0], second)]
    assert tokens == [[r.runs["none"].token_ids for r in group] for group in whole]


def test_prompts_that_will_not_fit_are_found_first() -> None:
    AgentLoop().check(engine(False, 5), PARAMS)
    with pytest.raises(PromptError, match="task docstrings, plan: the prompt has"):
        AgentLoop().check(engine(False, 5, 600), PARAMS)
    long = replace(PARAMS, max_new_tokens=1500)  # the plan fits, what quotes three answers not
    with pytest.raises(PromptError, match="refine-1: the prompt has"):
        AgentLoop().check(engine(False, 5), long)
    with pytest.raises(PromptError, match="no chat template: use --workload prompts"):
        AgentLoop().check(engine(False, 5, chat=False), PARAMS)

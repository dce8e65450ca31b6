"""Black-box audit of an engine: greedy identity, sampled distributions, statistical power."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest

from paceline.errors import EngineFailed
from paceline.lab.audit.checks import AuditExtent, Trial, tests
from paceline.lab.audit.engine import AuditedEngine, Prompt, SeededRequest, Token
from paceline.lab.audit.named import Referee, open_engine, referee
from paceline.lab.audit.report import GreedyTexts, Report
from paceline.lab.measure.prompts import BUILT_IN, read_prompts, spread

_BATCH = 50
_TITLE = 60


def run(
    engine: str | AuditedEngine,
    plan: AuditExtent | None = None,
    options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Audit one engine (an adapter, or a name for `open_engine`).

    Raises:
        InvalidOption: unknown engine or option.
        PromptError: the prompt file cannot be used.
        EngineFailed: the engine cannot be reached, died, or gave a malformed answer.
    """
    plan = plan or AuditExtent()
    say = progress or (lambda line: None)
    texts = _greedy_texts(plan)
    with ExitStack() as stack:
        judge = None
        if isinstance(engine, str):
            say(f"starting {engine}")
            judge = referee(engine)
            opened = open_engine(engine, options)
        else:
            opened = engine
        stack.callback(opened.close)
        greedy = []
        for number, text in enumerate(texts, 1):
            say(f"greedy prompt {number} of {len(texts)}")
            greedy.append(_greedy(opened, text, plan, judge))
        trials: list[Trial] = []
        for number, text in enumerate(plan.check_prompts if plan.samples else (), 1):
            say(f"sampling prompt {number} of {len(plan.check_prompts)}")
            trials.append(_trial(opened, text, plan, number))
        about = dict(opened.about())
    say("testing distributions")
    return Report(
        about, plan.as_dict(), tuple(greedy), tests(trials, plan), plan.level, plan.near_tie
    )


def _greedy_texts(plan: AuditExtent) -> list[str]:
    if not plan.greedy_prompts:
        return []
    prompts = list(BUILT_IN) if plan.prompts is None else read_prompts(plan.prompts)
    return [each.turns[0] for each in spread(prompts, plan.greedy_prompts)]


def _greedy(
    engine: AuditedEngine, text: str, plan: AuditExtent, judge: Referee | None
) -> GreedyTexts:
    prompt = engine.prompt(text, True)
    ask = SeededRequest(prompt, True, 0.0, plan.greedy_tokens, (plan.seed,))
    on, off, again = (
        _continuations(engine, replace(ask, speculation=speculation))[0]
        for speculation in (True, False, False)
    )
    pairs = list(zip_longest(on, off))
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    one, other = (None, None) if place is None else pairs[place]
    gap, by = None, None
    if place is not None and one is not None and other is not None:
        gap, by = _gap(engine, judge, prompt, off[:place], one, other)
    return GreedyTexts(_title(text), len(off), place, one, other, gap, by, off == again)


def _gap(
    engine: AuditedEngine,
    judge: Referee | None,
    prompt: Prompt,
    prefix: tuple[Token, ...],
    on: Token,
    off: Token,
) -> tuple[float | None, str | None]:
    # Negative if the engine chose `off` although its own distribution prefers `on`.
    context: Prompt
    if isinstance(prompt, str):
        context = prompt + "".join(map(str, prefix))
    else:
        context = (*prompt, *(int(token) for token in prefix))
    for one, who in ((engine, "engine"), (judge, "referee")):
        distribution = None if one is None else one.distribution(context, 1.0)
        if (
            distribution is not None
            and distribution.get(on, 0) > 0
            and distribution.get(off, 0) > 0
        ):
            return math.log(distribution[off] / distribution[on]), who
    return None, None


def _trial(engine: AuditedEngine, text: str, plan: AuditExtent, number: int) -> Trial:
    # No seed is used twice: some engines tie draws to seeds.
    prompt = engine.prompt(text, False)
    first = plan.seed * 10**9 + number * 10**7
    seeds = {True: first, False: first + 10**6}

    def sample(speculation: bool) -> list[tuple[Token, ...]]:
        out: list[tuple[Token, ...]] = []
        for start in range(0, plan.samples, _BATCH):
            size = min(_BATCH, plan.samples - start)
            begin = seeds[speculation] + start
            ask = SeededRequest(
                prompt,
                speculation,
                plan.temperature,
                plan.tokens,
                tuple(range(begin, begin + size)),
            )
            out += _continuations(engine, ask)
        return out

    distribution = engine.distribution(prompt, plan.temperature)
    return Trial(_title(text), sample(True), sample(False), distribution)


def _continuations(engine: AuditedEngine, ask: SeededRequest) -> list[tuple[Token, ...]]:
    got = engine.continuations(ask)
    if len(got) != len(ask.seeds):
        raise EngineFailed(
            f"the engine gave {len(got)} continuations for {len(ask.seeds)} seeds: give one each"
        )
    return [tuple(tokens[: ask.tokens]) for tokens in got]


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "\N{HORIZONTAL ELLIPSIS}"

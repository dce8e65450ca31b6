"""The target writes texts: user turns where none is given, then answers, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from paceline.engine import Engine
from paceline.errors import InvalidOption, PromptError
from paceline.training.data.plan import Plan
from paceline.types import IntArray

_MARK = "\x00"
"""Stands for the user's words in a rendered chat; no text holds it."""


@dataclass(frozen=True, slots=True)
class Text:
    """One text.

    Attributes:
        index: its place in the plan.
        tokens: int64 `[length]`, prompt and answer.
        prompt_length: how many of them come before the answer.
    """

    index: int
    tokens: IntArray
    prompt_length: int


def write_texts(
    engine: Engine,
    plan: Plan,
    indices: Iterable[int],
    batch: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Text | None]]:
    """Texts of a plan by index, in the order in which they are finished.

    An index comes with None where there is no text: the target wrote an empty user turn, or the
    prompt is too long for the context.

    Args:
        engine: decodes plainly.
        plan: what to write.
        indices: which texts.
        batch: how many texts the engine decodes together.
        stopped: asked between steps; once true, what is unfinished is dropped.

    Raises:
        InvalidOption: the model has no chat template, so it cannot write user turns.
    """
    header = _header(engine) if plan.self_written else []
    waiting = iter(indices)
    turns: dict[int, int] = {}
    answers: dict[int, tuple[int, list[int]]] = {}
    context = engine.decoder.target.capabilities.max_context

    def ask(index: int, prompt: str) -> bool:
        ids = _prompt(engine, prompt) if prompt else []
        good = 0 < len(ids) < context - plan.new_tokens
        if good:
            answers[engine.add(ids, plan.answer(index))] = (index, ids)
        return good

    while True:
        # Some wait beside those that run, so that an ended text is followed at once.
        while engine.pending < 2 * batch and (index := next(waiting, None)) is not None:
            prompt = plan.prompt(index)
            if prompt is None:
                turns[engine.add(header, plan.turn(index))] = index
            elif not ask(index, prompt):
                yield index, None
        if not engine.pending or stopped():
            break
        for event in engine.step():
            if event.completion is None:
                continue
            if event.request in turns:
                index = turns.pop(event.request)
                if not ask(index, event.completion.text.strip()):
                    yield index, None
            else:
                index, prompt_ids = answers.pop(event.request)
                tokens = np.array([*prompt_ids, *event.completion.token_ids], dtype=np.int64)
                yield index, Text(index, tokens, len(prompt_ids))
    for request in (*turns, *answers):
        engine.cancel(request)


def _prompt(engine: Engine, words: str) -> list[int]:
    if engine.tokenizer.chat_template is None:
        return engine.tokenizer.encode(words)
    return engine.tokenizer.chat([{"role": "user", "content": words}])


def _header(engine: Engine) -> list[int]:
    """What stands before the user's words in a chat."""
    tokenizer = engine.tokenizer
    if tokenizer.chat_template is None:
        raise InvalidOption(
            "the model has no chat template, so it cannot write user turns: give prompts and set "
            "self-written to 0"
        )
    text = tokenizer.decode(_prompt(engine, _MARK), skip_special=False)
    before, mark, _ = text.partition(_MARK)
    if not mark:
        raise PromptError("the chat template drops the user's words: set self-written to 0")
    return tokenizer.encode(before, special=True)

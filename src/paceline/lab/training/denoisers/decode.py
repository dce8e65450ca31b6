"""A plain decoder of denoisers, to judge by: one token per forward, the most confident first.

It computes every row anew in each forward, in PyTorch, and shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from paceline.core.types import IntArray, ProbArray
from paceline.lab.measure import parallel_tasks
from paceline.lab.training.denoisers.rows import (
    EOS,
    MASK,
    PAD,
    UNKNOWN,
    ExampleRows,
    PackedRows,
    pack,
    text_of,
    vocabulary,
)
from paceline.lab.training.model import TrainableModel

Way = Literal["full", "block", "order", "causal"]
"""Kinds, and "causal": a "block" denoiser from left to right, by its clean rows."""


@torch.no_grad()
def decode(
    model: TrainableModel,
    prompts: Sequence[IntArray],
    kind: Way,
    *,
    block: int = 8,
    length: int = 20,
) -> list[list[int]]:
    """Fill a place per forward, the most probable token first, and cut at the first end token.

    Args:
        block: size of "block", counted from the begin of the prompt.
        length: places of an answer at most.
    """
    answers = [np.full(length, MASK) for _ in prompts]
    filled: list[list[int]] = [[] for _ in prompts]  # places in the order of filling
    while True:
        open_ = [i for i, each in enumerate(answers) if (each[: _first_end(each)] == MASK).any()]
        if not open_:
            break
        examples, asked = [], []
        for i in open_:
            rows, at, places = _asked(prompts[i], answers[i], filled[i], kind, block)
            examples.append(rows)
            asked.append((at, places))
        packed = pack(examples)
        sure, best = best_tokens(model, packed)
        for i, (bin_, begin), (at, places) in zip(open_, packed.places, asked, strict=True):
            index = int(sure[bin_, begin + at].argmax())
            place = int(places[index])
            answers[i][place] = int(best[bin_, begin + int(at[index])])
            filled[i].append(place)
    return [answer[: _first_end(answer)].tolist() for answer in answers]


@torch.no_grad()
def best_tokens(model: TrainableModel, packed: PackedRows) -> tuple[ProbArray, IntArray]:
    """Return the most probable token of each row, `[bins, rows]`, and its probability.

    Masks, padding and unknown words have none.
    """
    logits = model.packed(packed.tokens, packed.positions, packed.sees)
    logits[..., [MASK, PAD, UNKNOWN]] = -torch.inf
    sure, best = logits.softmax(-1).max(-1)
    return sure.double().numpy(), best.numpy()


def _first_end(answer: IntArray) -> int:
    ends = np.flatnonzero(answer == EOS)
    return int(ends[0]) if len(ends) else len(answer)


def _asked(
    prompt: IntArray, answer: IntArray, filled: Sequence[int], kind: str, block: int
) -> tuple[ExampleRows, IntArray, IntArray]:
    # Rows of the next forward, those that may be filled, and their places in the answer.
    start = len(prompt)
    hidden = np.flatnonzero(answer == MASK)
    both = np.concatenate([prompt, answer])
    if kind == "order":
        at = np.asarray(filled, dtype=np.int64)
        tokens = np.concatenate([prompt, answer[at], np.full(len(hidden), MASK)])
        positions = np.concatenate([np.arange(start), start + at, start + hidden])
        sees = np.tri(len(tokens), dtype=np.bool_)
        clean = start + len(at)
        sees[clean:, clean:] = np.eye(len(hidden), dtype=np.bool_)
        rows, places = np.arange(clean, len(tokens)), hidden
    elif kind == "causal":
        tokens, positions = both[: start + hidden[0]], np.arange(start + hidden[0])
        sees = np.tri(len(tokens), dtype=np.bool_)
        rows, places = np.array([len(tokens) - 1]), hidden[:1]
    else:
        end = len(both)
        if kind == "block":
            end = min(end, ((start + hidden[0]) // block + 1) * block)
        tokens, positions = both[:end], np.arange(end)
        of = positions // block if kind == "block" else np.zeros(end)
        sees = of[:, None] >= of
        places = hidden[start + hidden < end]
        rows = start + places
    nothing = np.zeros(len(tokens), dtype=np.int64)
    return ExampleRows(tokens, positions, sees, nothing, nothing.astype(np.float64)), rows, places


class Answered(NamedTuple):
    """Held-out cases of a task with their answers, and the share that is strictly right."""

    prompts: list[IntArray]
    answers: list[list[int]]
    right: float


def answered(
    model: TrainableModel,
    kind: Way,
    task: str,
    count: int,
    *,
    seed: int = 0,
    block: int = 8,
    length: int = 20,
) -> Answered:
    """Let a model answer `count` cases of a task; `block` and `length` as of `decode`."""
    ids = vocabulary()
    words = {index: word for word, index in ids.items()}
    cases = list(parallel_tasks.cases(task, count, seed))
    texts = [text_of(case, ids) for case in cases]
    prompts = [text.tokens[: text.prompt_length] for text in texts]
    answers = decode(model, prompts, kind, block=block, length=length)
    right = [
        parallel_tasks.grade(case, " ".join(words[i] for i in answer)).strict
        for case, answer in zip(cases, answers, strict=True)
    ]
    return Answered(prompts, answers, sum(right) / count)

"""Training of a small mixture of experts on lists, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import BoolArray
from paceline.measure import parallel_tasks
from paceline.training.card import card_of, table
from paceline.training.data import Text
from paceline.training.denoisers.files import LICENCE, save_model
from paceline.training.denoisers.rows import EOS, MASK, PAD, UNKNOWN, text_of, vocabulary
from paceline.training.denoisers.task import JUDGED, SHARES
from paceline.training.experts import (
    ExpertModel,
    balance_loss,
    chunk_loss,
    config_json,
    in_use,
    locality_loss,
    union_share,
)
from paceline.training.optimisers import Rated, optimisers
from paceline.training.recipe import ExpertRecipe
from paceline.training.run import Task, TrainingRun

TASKS = tuple(parallel_tasks.TASKS)[:10]
"""Those about lists of names."""
UNIONS = (1, 8, 16, 32)
"""Tokens in a row whose experts are counted."""
_ANSWER = 12  # tokens at most


class Quality(NamedTuple):
    """Share of strictly right answers by task, and of experts in use by tokens in a row."""

    right: dict[str, float]
    experts: dict[str, float]


class ExpertTask(Task[ExpertRecipe, Quality]):
    """A mixture of experts, on cases that are drawn as it goes."""

    def __init__(self, recipe: ExpertRecipe) -> None:
        """Draw the weights."""
        super().__init__(recipe)
        self.ids, self.steps = vocabulary(), recipe.steps
        self.model = ExpertModel(recipe, self.generator)
        self.module = self.model.module
        shares = np.array([SHARES.get(name, 1.0) for name in TASKS])
        self._shares = shares / shares.sum()

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "vocabulary": list(self.ids), "shares": list(self._shares)}

    def optimisers(self) -> list[Rated]:
        return optimisers(self.model.own, self.recipe.matrix_rate, self.recipe.vector_rate)

    def batch(self, step: int) -> list[Text]:
        rng = np.random.default_rng((self.recipe.seed, step, 0))
        texts = []
        for index in range(self.recipe.batch):
            name = TASKS[rng.choice(len(TASKS), p=self._shares)]
            task = parallel_tasks.TASKS[name]
            case = parallel_tasks.draw(task, name, rng, False, int(rng.integers(3)))
            texts.append(text_of(case, self.ids, index))
        return texts

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        tokens, valid = padded([np.append(text.tokens, EOS) for text in texts])
        logits, scores = self.model.scored(tokens[:, :-1])
        begins = torch.tensor([text.prompt_length - 1 for text in texts])
        asked = valid[:, 1:] & (torch.arange(logits.shape[1]) >= begins[:, None])
        loss = functional.cross_entropy(logits[asked], tokens[:, 1:][asked])
        value = float(loss.detach())
        yield loss + self._extra(scores, valid[:, :-1], step), value

    def _extra(self, scores: Sequence[Tensor], valid: Tensor, step: int) -> Tensor:
        recipe = self.recipe
        if recipe.kind == "top-k":
            found = [recipe.balance * balance_loss(each, valid, recipe.used) for each in scores]
            return torch.stack(found).mean()
        found = [
            recipe.locality * locality_loss(each, valid) + recipe.chunk * chunk_loss(each, valid)
            for each in scores
        ]
        # From nothing in the first third: experts must be of use before they are told to be few.
        return torch.stack(found).mean() * min(1.0, 3 * step / self.steps)

    def judge(self) -> Quality:
        right, written = {}, []
        words = {index: word for word, index in self.ids.items()}
        for name in TASKS:
            cases = list(parallel_tasks.cases(name, JUDGED, 0))
            texts = [text_of(case, self.ids) for case in cases]
            prompts = [text.tokens[: text.prompt_length] for text in texts]
            answers = decode(self.model, prompts)
            graded = [
                parallel_tasks.grade(case, " ".join(words[each] for each in answer)).strict
                for case, answer in zip(cases, answers, strict=True)
            ]
            right[name] = sum(graded) / len(graded)
            written += [np.append(p, a) for p, a in zip(prompts, answers, strict=True)]
        order = np.random.default_rng(0).permutation(len(written))
        used = experts_of(self.model, [written[each] for each in order], self.recipe)
        return Quality(right, {str(size): union_share(used, size) for size in UNIONS})


def padded(texts: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 `[texts, longest]`, and where they are no padding."""
    tokens = np.full((len(texts), max(map(len, texts))), PAD)
    valid = np.zeros(tokens.shape, dtype=np.bool_)
    for row, known, text in zip(tokens, valid, texts, strict=True):
        row[: len(text)], known[: len(text)] = text, True
    return torch.from_numpy(tokens), torch.from_numpy(valid)


@torch.no_grad()
def decode(model: ExpertModel, prompts: Sequence[Any]) -> list[list[int]]:
    """Return greedy answers without their end tokens; every forward computes all rows anew."""
    texts = [list(map(int, prompt)) for prompt in prompts]
    open_ = list(range(len(texts)))
    for _ in range(_ANSWER):
        if not open_:
            break
        tokens, valid = padded([texts[i] for i in open_])
        last = model.scored(tokens)[0][torch.arange(len(open_)), valid.sum(1) - 1]
        last[:, [PAD, MASK, UNKNOWN]] = -torch.inf
        for i, token in zip(open_, last.argmax(-1).tolist(), strict=True):
            texts[i].append(token)
        open_ = [i for i in open_ if texts[i][-1] != EOS]
    found = [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    return [answer[:-1] if answer and answer[-1] == EOS else answer for answer in found]


@torch.no_grad()
def experts_of(model: ExpertModel, texts: Sequence[Any], recipe: ExpertRecipe) -> list[BoolArray]:
    """Return the experts that rows use, bool `[rows, experts]` by layer, text behind text."""
    found: list[list[BoolArray]] = [[] for _ in range(recipe.layers)]
    for begin in range(0, len(texts), JUDGED):
        tokens, valid = padded(texts[begin : begin + JUDGED])
        for scores, to in zip(model.scored(tokens)[1], found, strict=True):
            to.append(in_use(scores, recipe)[valid].numpy())
    return [np.concatenate(each) for each in found]


def publish(run: TrainingRun, out: Path, command: str) -> tuple[dict[str, Any], str]:
    """Judge a run, write its model with a card, and return figures and a line for people.

    Raises InvalidOption if it cannot be written.
    """
    task = run.task
    assert isinstance(task, ExpertTask)
    quality = task.judge()
    save_experts(out, run, quality, command)
    seconds, right = run.course.seconds, sum(quality.right.values()) / len(quality.right)
    few = " ".join(f"{share:.0%}" for share in quality.experts.values())
    line = (
        f"{out}: {run.step} updates in {seconds:.0f} s; {right:.1%} of held-out cases right; "
        f"experts in use by {', '.join(quality.experts)} tokens in a row: {few}"
    )
    return {"seconds": seconds, **quality._asdict()}, line


def save_experts(out: Path, run: TrainingRun, quality: Quality, command: str) -> None:
    """Write a model directory with its card, as `save_model`."""
    task = run.task
    assert isinstance(task, ExpertTask)
    kind, right = task.recipe.kind, quality.right
    held_out = {"cases": JUDGED, "right": right, "experts": quality.experts}
    rows = [(name, f"{share:.0%}") for name, share in right.items()]
    middle = [
        "## Right answers",
        f"{JUDGED} held-out cases a task, greedy.",
        table(("task", "right"), [*rows, ("all", f"{sum(right.values()) / len(right):.1%}")]),
        "## Experts in use",
        "By some of so many tokens in a row, of prompts and answers one behind another.",
        table(
            ("tokens", "share of experts"),
            [(size, f"{share:.1%}") for size, share in quality.experts.items()],
        ),
    ]
    card = card_of(run, command, LICENCE, held_out, kind=kind)
    title = f"A mixture of experts, {kind}"
    save_model(out, config_json(task.recipe), task.model.hf_tensors(), card, title, middle)

"""Training of a denoiser on cases that are drawn as it goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidOption
from paceline.lab.measure import parallel_tasks
from paceline.lab.training import checkpoint
from paceline.lab.training.card import card_of
from paceline.lab.training.data import Text
from paceline.lab.training.denoisers.decode import Way, answered, best_tokens, decode
from paceline.lab.training.denoisers.files import LICENCE, denoiser, save_denoiser
from paceline.lab.training.denoisers.rows import (
    BLOCKS,
    MASK,
    ExampleRows,
    PackedRows,
    block_rows,
    full_rows,
    order_rows,
    pack,
    staged_rows,
    text_of,
    vocabulary,
)
from paceline.lab.training.optimisers import Rated, optimisers
from paceline.lab.training.recipe import DenoiserRecipe
from paceline.lab.training.run import TrainingRun, TrainingTask

SHARES = {
    **dict.fromkeys(("reverse", "insert-index", "replace-index"), 2.5),
    **dict.fromkeys(("sort", "remove-index"), 1.5),
    **dict.fromkeys(("latin-square", "sudoku", "sums", "expression", "brackets"), 0.15),
}
"""How often tasks are trained on, against 1 for the others: long ones less, hard ones more."""
_TOGETHER = 64  # prompts answered together

JUDGED = 96
"""Held-out cases of a task that a denoiser is judged by."""


class DenoiserTask(TrainingTask[DenoiserRecipe, dict[str, dict[str, float]]]):
    """A denoiser, on cases drawn as it goes; no head of a target, and no texts of one.

    `judge` returns the share of strictly right answers on held-out cases, by decoding and task.
    """

    def __init__(
        self, recipe: DenoiserRecipe, start: Mapping[str, Tensor] = MappingProxyType({})
    ) -> None:
        """Draw the weights, or take float32 tensors to `start` from, by canonical names.

        Raises:
            InvalidOption: own answers are wanted, and there are no weights to write them.
        """
        super().__init__(recipe)
        self.ids, self.steps = vocabulary(), recipe.steps
        self.model = denoiser(recipe, self.generator)
        self.module = self.model.module
        self._tasks = list(parallel_tasks.TASKS.items())
        weights = np.array([SHARES.get(name, 1.0) for name, _ in self._tasks])
        self._shares = weights / weights.sum()
        self._start = start
        self._own: list[Text] = []
        if start:
            self.model.load(start)
            self._own = list(self._written())
        elif recipe.own:
            raise InvalidOption("own answers are written by weights to start from: give those")

    @property
    def settings(self) -> dict[str, Any]:
        start = {"start": checkpoint.digest(self._start, "")} if self._start else {}
        return {**super().settings, "vocabulary": list(self.ids), "shares": SHARES, **start}

    def optimisers(self) -> list[Rated]:
        return optimisers(self.model.own, self.recipe.matrix_rate, self.recipe.vector_rate)

    def batch(self, step: int) -> list[Text]:
        rng = np.random.default_rng((self.recipe.seed, step, 0))
        if self._own:
            return [self._own[i] for i in rng.choice(len(self._own), self.recipe.batch)]
        return [self._drawn(rng, index) for index in range(self.recipe.batch)]

    def _drawn(self, rng: np.random.Generator, index: int) -> Text:
        name, task = self._tasks[rng.choice(len(self._tasks), p=self._shares)]
        case = parallel_tasks.draw(task, name, rng, False, int(rng.integers(3)))
        return text_of(case, self.ids, index)

    def _written(self) -> Iterator[Text]:
        # Prompts of the tasks with the module's own answers.
        rng = np.random.default_rng((self.recipe.seed, 2))
        asked = [self._drawn(rng, index) for index in range(self.recipe.own)]
        for first in range(0, len(asked), _TOGETHER):
            some = asked[first : first + _TOGETHER]
            prompts = [each.tokens[: each.prompt_length] for each in some]
            found = decode(self.model, prompts, self.recipe.kind)
            for text, prompt, answer in zip(some, prompts, found, strict=True):
                tokens = np.concatenate([prompt, np.asarray(answer, dtype=np.int64)])
                yield Text(text.index, tokens, text.prompt_length)

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        packed = pack(noised(texts, self.recipe, step))
        if self.recipe.guesses:
            packed = self._guessed(packed, np.random.default_rng((self.recipe.seed, step, 2)))
        logits = self.model.packed(packed.tokens, packed.positions, packed.sees)
        counted = packed.weights > 0
        each = functional.cross_entropy(logits[counted], packed.labels[counted], reduction="none")
        loss = (each * packed.weights[counted]).sum() / len(texts)
        if self.recipe.certainty:
            hidden = packed.tokens[counted] == MASK
            shown = logits[counted][hidden], packed.labels[counted][hidden]
            loss = loss + self.recipe.certainty * certainty_loss(*shown)
        yield loss, float(loss.detach())

    def _guessed(self, packed: PackedRows, draws: np.random.Generator) -> PackedRows:
        # Some masks are filled by the module itself; what is wrong there must be put right.
        _, best = best_tokens(self.model, packed)
        filled = torch.from_numpy(draws.random(best.shape) < self.recipe.guesses)
        filled &= (packed.tokens == MASK) & (packed.weights > 0)
        return packed._replace(tokens=packed.tokens.where(~filled, torch.from_numpy(best)))

    def judge(self) -> dict[str, dict[str, float]]:
        ways: dict[str, tuple[Way, int]] = {self.recipe.kind: (self.recipe.kind, 0)}
        if self.recipe.kind == "block":
            ways = {f"block {size}": ("block", size) for size in BLOCKS if size > 1}
            ways["left to right"] = ("causal", 0)
        return {
            name: {
                task: answered(self.model, way, task, JUDGED, block=size).right
                for task in parallel_tasks.TASKS
            }
            for name, (way, size) in ways.items()
        }


def publish(run: TrainingRun[DenoiserTask], out: Path, command: str) -> tuple[dict[str, Any], str]:
    """Judge a run, write its model with a card, and return figures and a line for people.

    Raises InvalidOption if it cannot be written.
    """
    task = run.task
    right = task.judge()
    held_out = {"cases": JUDGED, "right": right}
    card = card_of(run, command, LICENCE, held_out, kind=task.recipe.kind)
    save_denoiser(out, task.model, task.recipe, card)
    shares = {name: sum(each.values()) / len(each) for name, each in right.items()}
    said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    seconds = run.course.seconds
    line = f"{out}: {run.step} updates in {seconds:.0f} s; right on held-out cases: {said}"
    return {"seconds": seconds, "held_out": right}, line


def certainty_loss(logits: Tensor, labels: Tensor, temperature: float = 0.5) -> Tensor:
    """Return the mean entropy, in nats, of rows whose most probable token is right; else 0.

    Args:
        logits: float32 `[rows, vocabulary]`.
        labels: int64 `[rows]`.
        temperature: of the entropy (dParallel).
    """
    right = logits.argmax(-1) == labels
    if not right.any():
        return logits.sum() * 0.0
    logs = (logits[right] / temperature).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1).mean()


def noised(texts: Sequence[Text], recipe: DenoiserRecipe, step: int) -> list[ExampleRows]:
    """Return the rows of a step's batch, a function of the recipe's seed and the step."""
    rng = np.random.default_rng((recipe.seed, step, 1))
    if recipe.stages:
        return [each for text in texts for each in staged_rows(text, rng, recipe.stages)]
    if recipe.kind == "full":
        return [full_rows(text, rng, recipe.corrupt) for text in texts]
    if recipe.kind == "order":
        return [order_rows(text, rng) for text in texts]
    return [
        block_rows(text, rng, int(rng.choice(BLOCKS)), bool(i % 2), recipe.causal_weight)
        for i, text in enumerate(texts)
    ]

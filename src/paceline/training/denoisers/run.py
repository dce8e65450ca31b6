"""Training of a denoiser on cases that are drawn as it goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidOption
from paceline.measure import parallel_tasks
from paceline.training import checkpoint
from paceline.training.data import Text
from paceline.training.denoisers.decode import Way, accuracy, decode
from paceline.training.denoisers.module import DenoiserModule, DenoiserRecipe
from paceline.training.denoisers.rows import (
    BLOCKS,
    MASK,
    ExampleRows,
    block_rows,
    full_rows,
    order_rows,
    pack,
    text_of,
    vocabulary,
)
from paceline.training.run import TrainingRun

SHARES = {
    **dict.fromkeys(("reverse", "insert-index", "replace-index"), 2.5),
    **dict.fromkeys(("sort", "remove-index"), 1.5),
    **dict.fromkeys(("latin-square", "sudoku", "sums", "expression", "brackets"), 0.15),
}
"""How often tasks are trained on, against 1 for the others: long ones less, hard ones more."""
_TOGETHER = 64  # prompts answered together

JUDGED = 96
"""Held-out cases of a task that a denoiser is judged by."""


class DenoiserTraining(TrainingRun[dict[str, dict[str, float]]]):
    """Resumable training of a denoiser on cases drawn as it goes.

    `judge` returns the share of strictly right answers on held-out cases, by decoding and task.
    """

    def __init__(
        self,
        recipe: DenoiserRecipe,
        *,
        start: Mapping[str, Tensor] | None = None,
        checkpoint_at: Path | None = None,
    ) -> None:
        """Initialise the weights, at random or from `start`, or resume; errors as `TrainingRun`.

        Args:
            start: float32 parameters by the names of the module.
        """
        generator = torch.Generator().manual_seed(recipe.seed)
        self.recipe, self.ids = recipe, vocabulary()
        self.warm_up, self.clip = recipe.warm_up, recipe.clip
        self.module = DenoiserModule(recipe, len(self.ids), generator)
        self._tasks = list(parallel_tasks.TASKS.items())
        weights = np.array([SHARES.get(name, 1.0) for name, _ in self._tasks])
        self._shares = weights / weights.sum()
        self._own: list[Text] = []
        settings = asdict(recipe) | {"vocabulary": list(self.ids), "shares": SHARES}
        if start is not None:
            self.module.load_state_dict(start)
            settings["start"] = checkpoint.digest(start, "")
            self._own = list(self._written())
        elif recipe.own:
            raise InvalidOption("own answers are written by weights to start from: give those")
        super().__init__(
            self.module,
            self.module.rated(recipe.matrix_rate, recipe.vector_rate),
            generator,
            (),
            (),
            steps=recipe.steps,
            batch_tokens=0,
            seed=recipe.seed,
            settings=settings,
            checkpoint_at=checkpoint_at,
        )

    def batches(self, epoch: int) -> list[list[Text]]:
        """Return the batch of step `epoch`, empty if it is done."""
        if epoch < self.step:
            return [[]]
        rng = np.random.default_rng((self.recipe.seed, epoch, 0))
        if self._own:
            return [[self._own[i] for i in rng.choice(len(self._own), self.recipe.batch)]]
        texts = []
        for index in range(self.recipe.batch):
            texts.append(self._drawn(rng, index))
        return [texts]

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
            found = decode(self.module, prompts, self.recipe.kind)
            for text, prompt, answer in zip(some, prompts, found, strict=True):
                tokens = np.concatenate([prompt, np.asarray(answer, dtype=np.int64)])
                yield Text(text.index, tokens, text.prompt_length)

    def losses(self, texts: Sequence[Text]) -> Iterator[tuple[Tensor, float]]:
        rows = noised(texts, self.recipe, self.step)
        packed = pack(rows)
        logits = self.module(packed.tokens, packed.positions, packed.sees)
        counted = packed.weights > 0
        each = functional.cross_entropy(logits[counted], packed.labels[counted], reduction="none")
        loss = (each * packed.weights[counted]).sum() / len(texts)
        if self.recipe.certainty:
            hidden = packed.tokens[counted] == MASK
            shown = logits[counted][hidden], packed.labels[counted][hidden]
            loss = loss + self.recipe.certainty * certainty_loss(*shown)
        yield loss, float(loss.detach())

    def judge(self) -> dict[str, dict[str, float]]:
        ways: dict[str, tuple[Way, int]] = {self.recipe.kind: (self.recipe.kind, 0)}
        if self.recipe.kind == "block":
            ways = {f"block {size}": ("block", size) for size in BLOCKS if size > 1}
            ways["left to right"] = ("causal", 0)
        return {
            name: accuracy(self.module, way, count=JUDGED, block=size)
            for name, (way, size) in ways.items()
        }


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
    if recipe.kind == "full":
        return [full_rows(text, rng, recipe.corrupt) for text in texts]
    if recipe.kind == "order":
        return [order_rows(text, rng) for text in texts]
    return [
        block_rows(text, rng, int(rng.choice(BLOCKS)), bool(i % 2), recipe.causal_weight)
        for i, text in enumerate(texts)
    ]

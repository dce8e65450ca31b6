"""Training of the filter of Learn2PD (arXiv:2509.25188): which picks of a block are right.

A network of two layers reads the largest probability of each place of a block, 1 where it is
filled. Its labels come from replays of answers that the denoiser decoded one token per forward: a
pick is right if it is that answer's. A replay fills all right picks of a forward at once, so
that the filter sees such canvases as it makes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.cache import written_file
from paceline.core.options import require
from paceline.core.types import BoolArray, IntArray, ProbArray
from paceline.lab.measure import parallel_tasks
from paceline.lab.training.data import Text
from paceline.lab.training.denoisers.decode import best_tokens, decode
from paceline.lab.training.denoisers.rows import EOS, MASK, ExampleRows, pack, text_of, vocabulary
from paceline.lab.training.model import TrainableModel
from paceline.lab.training.optimisers import Rated
from paceline.lab.training.recipe import FilterRecipe
from paceline.lab.training.run import TrainingTask

Examples = tuple[ProbArray, BoolArray]
"""float64 and bool `[examples, block]`: largest probabilities, 1 where filled; and right picks,
filled places among them."""

_SURE = 0.9  # of scores that are judged


@torch.no_grad()
def replay(
    model: TrainableModel, prompts: Sequence[IntArray], answers: Sequence[IntArray], block: int
) -> Examples:
    """Replay answers of a "full" denoiser, block after block, and return what its picks were.

    A forward in which no pick is right fills the place of the surest one from the answer.

    Args:
        answers: int64, each a multiple of `block` long.
    """
    canvases = [np.full(len(answer), MASK) for answer in answers]
    seen, right = [], []
    while open_ := [i for i, each in enumerate(canvases) if (each == MASK).any()]:
        packed = pack([_rows(prompts[i], canvases[i]) for i in open_])
        sure, best = best_tokens(model, packed)
        for i, (bin_, begin) in zip(open_, packed.places, strict=True):
            canvas = canvases[i]
            start = int(np.flatnonzero(canvas == MASK)[0]) // block * block
            mine = slice(start, start + block)
            at = begin + len(prompts[i]) + start
            hidden = canvas[mine] == MASK
            found = np.where(hidden, sure[bin_, at : at + block], 1.0)
            good = ~hidden | (best[bin_, at : at + block] == answers[i][mine])
            seen.append(found)
            right.append(good)
            fill = hidden & good
            if not fill.any():
                fill[np.where(hidden, found, -1.0).argmax()] = True
            canvas[mine] = np.where(fill, answers[i][mine], canvas[mine])
    return np.array(seen), np.array(right)


def _rows(prompt: IntArray, canvas: IntArray) -> ExampleRows:
    tokens = np.concatenate([prompt, canvas])
    count, nothing = len(tokens), np.zeros(len(tokens), dtype=np.int64)
    sees = np.ones((count, count), dtype=np.bool_)
    return ExampleRows(tokens, np.arange(count), sees, nothing, nothing.astype(np.float64))


def collect(model: TrainableModel, count: int, block: int, length: int, seed: int = 0) -> Examples:
    """Return examples of `count` cases that are not held out, of all tasks by turns.

    Raises InvalidOption if the canvas is no multiple of the block.
    """
    require(length % block == 0, "canvas", length, f"a multiple of the block of {block}")
    ids, names = vocabulary(), list(parallel_tasks.TASKS)
    drawn = [
        case
        for index, name in enumerate(names)
        for case in parallel_tasks.cases(
            name, len(range(index, count, len(names))), seed, held_out=False
        )
    ]
    texts = [text_of(case, ids) for case in drawn]
    prompts = [text.tokens[: text.prompt_length] for text in texts]
    answers = []
    for answer in decode(model, prompts, "full", length=length):
        whole = np.full(length, EOS)
        whole[: len(answer)] = answer
        answers.append(whole)
    return replay(model, prompts, answers, block)


class ConfidenceFilter(nn.Module):
    """Scores `[examples, block]` from largest probabilities; a score of 0 is a chance of 1/2."""

    def __init__(self, block: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.enter, self.leave = nn.Linear(block, hidden), nn.Linear(hidden, block)

    def forward(self, seen: Tensor) -> Tensor:
        scores: Tensor = self.leave(functional.relu(self.enter(seen)))
        return scores


class FilterTask(TrainingTask[FilterRecipe, dict[str, float]]):
    """A filter, from all examples at once; places that are filled do not count.

    `judge` returns precision, recall and base rate of scores above 0.9 at open places.
    """

    module: ConfidenceFilter

    def __init__(self, recipe: FilterRecipe, taught: Examples, apart: Examples) -> None:
        super().__init__(recipe)
        self.steps, self._apart = recipe.steps, apart
        self._seen, self._right = (torch.from_numpy(each).float() for each in taught)
        self._open = self._seen < 1
        block = self._seen.shape[1]
        self.module = ConfidenceFilter(block, recipe.hidden or block, recipe.seed)

    def optimisers(self) -> list[Rated]:
        rate = self.recipe.rate
        return [(torch.optim.AdamW(self.module.parameters(), lr=rate), rate)]

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        scores = self.module(self._seen)[self._open]
        loss = functional.binary_cross_entropy_with_logits(scores, self._right[self._open])
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        seen, right = self._apart
        open_ = seen < 1
        chosen = (self.module(torch.from_numpy(seen).float()).sigmoid() > _SURE).numpy()[open_]
        right = right[open_]
        both = float((chosen & right).sum())
        return {
            "precision": both / max(1, int(chosen.sum())),
            "recall": both / max(1, int(right.sum())),
            "right": float(right.mean()),
        }

    def save(self, out: Path, metadata: dict[str, str]) -> None:
        """Write float32 `in.weight`, `in.bias`, `out.weight` and `out.bias`.

        Raises InvalidOption if the file cannot be written.
        """
        names = {"enter": "in", "leave": "out"}
        tensors = {}
        for name, each in self.module.state_dict().items():
            part, kind = name.split(".")
            tensors[f"{names[part]}.{kind}"] = each
        with written_file(out, "free space or give another --out") as part_file:
            part_file.write_bytes(save(tensors, metadata))

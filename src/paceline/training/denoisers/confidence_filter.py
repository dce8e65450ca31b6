"""Training of the filter of Learn2PD (arXiv:2509.25188): which picks of a block are right.

A network of two layers reads the largest probability of each place of a block, 1 where it is
filled. Its labels come from replays of answers that the denoiser decoded one token per forward: a
pick is right if it is that answer's. A replay fills all right picks of a forward at once, so
that the filter sees such canvases as it makes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from paceline.core.cache import written_file
from paceline.core.options import require
from paceline.core.types import BoolArray, IntArray, ProbArray
from paceline.measure import parallel_tasks
from paceline.training.denoisers.decode import best_tokens, decode
from paceline.training.denoisers.module import DenoiserModule
from paceline.training.denoisers.rows import EOS, MASK, ExampleRows, pack, text_of, vocabulary

Examples = tuple[ProbArray, BoolArray]
"""float64 and bool `[examples, block]`: largest probabilities, 1 where filled; and right picks,
filled places among them."""


@torch.no_grad()
def replay(
    module: DenoiserModule, prompts: Sequence[IntArray], answers: Sequence[IntArray], block: int
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
        sure, best = best_tokens(module, packed)
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


def collect(module: DenoiserModule, count: int, block: int, length: int, seed: int = 0) -> Examples:
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
    for answer in decode(module, prompts, "full", length=length):
        whole = np.full(length, EOS)
        whole[: len(answer)] = answer
        answers.append(whole)
    return replay(module, prompts, answers, block)


class ConfidenceFilter(nn.Module):
    """Scores `[examples, block]` from largest probabilities; a score of 0 is a chance of 1/2."""

    def __init__(self, block: int, hidden: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.enter, self.leave = nn.Linear(block, hidden), nn.Linear(hidden, block)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.leave(functional.relu(self.enter(seen)))
        return scores


def fit(
    examples: Examples,
    *,
    hidden: int | None = None,
    steps: int = 8000,
    rate: float = 3e-3,
    seed: int = 0,
) -> ConfidenceFilter:
    """Fit a filter to places that are not filled yet, by AdamW over all examples at once.

    `hidden` is the inner width, the block if None.
    """
    seen, right = torch.from_numpy(examples[0]).float(), torch.from_numpy(examples[1]).float()
    block = seen.shape[1]
    network = ConfidenceFilter(block, hidden or block, seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate)
    open_ = seen < 1
    for _ in range(steps):
        optimiser.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(network(seen)[open_], right[open_])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network


@torch.no_grad()
def judge(network: ConfidenceFilter, examples: Examples, tau: float = 0.9) -> dict[str, float]:
    """Return precision, recall and base rate of scores above `tau`, at places that are open."""
    seen = torch.from_numpy(examples[0]).float()
    open_ = examples[0] < 1
    chosen = (network(seen).sigmoid() > tau).numpy()[open_]
    right = examples[1][open_]
    both = float((chosen & right).sum())
    return {
        "precision": both / max(1, int(chosen.sum())),
        "recall": both / max(1, int(right.sum())),
        "right": float(right.mean()),
    }


def save_filter(out: Path, network: ConfidenceFilter, metadata: dict[str, str]) -> None:
    """Write float32 `in.weight`, `in.bias`, `out.weight` and `out.bias`.

    Raises InvalidOption if the file cannot be written.
    """
    parts = {"in": network.enter, "out": network.leave}
    tensors = {
        f"{name}.{kind}": getattr(part, kind).detach()
        for name, part in parts.items()
        for kind in ("weight", "bias")
    }
    with written_file(out, "free space or give another --out") as part:
        part.write_bytes(save(tensors, metadata))

"""What drafters are trained for: at every depth, the law that the target has there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.training.batches import Batch
from paceline.training.losses import Loss
from paceline.types import IntArray


@dataclass(frozen=True, slots=True)
class Hits:
    """How greedy drafts of the true tokens fare.

    Attributes:
        starts: number of drafts, with all depths inside the text.
        accepted: int64 `[depth]`, how many of those are right down to each depth.
    """

    starts: int
    accepted: IntArray

    def __add__(self, other: Hits) -> Hits:
        """Both together."""
        return Hits(self.starts + other.starts, self.accepted + other.accepted)

    @property
    def block_efficiency(self) -> float:
        """Committed tokens per forward, if every draft were as deep as the network drafts."""
        return 1 + float(self.accepted.sum()) / max(1, self.starts)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """At each depth, the share of drafts right above it that are right there, too."""
        above = np.concatenate([[self.starts], self.accepted[:-1]])
        return tuple((self.accepted / np.maximum(above, 1)).tolist())


def labels(batch: Batch, places: Tensor, depth: int) -> Tensor:
    """int64 `[texts, time]`: for every position, the draft index of the token at a depth.

    Args:
        batch: the texts.
        places: int64 `[vocabulary]`, draft index of each token, or -1.
        depth: 1 is the token behind the root, which is one behind the position.
    """
    ahead = np.full(batch.tokens.shape, -1, dtype=np.int64)
    known = batch.tokens[:, 1 + depth :]
    ahead[:, : known.shape[1]] = known
    found = places.cpu()[torch.from_numpy(np.maximum(ahead, 0))]
    found[torch.from_numpy(ahead < 0)] = -1
    return found.to(places.device)


def wanted(batch: Batch, depth: int, prompt_weight: float) -> Tensor:
    """float32 `[texts, time]`: what the draft at a depth behind each position counts.

    As much as its token: 1 in the answer, `prompt_weight` in the prompt, 0 behind the end, or what
    the batch says.
    """
    counts = batch.weights
    if counts is None:
        place = np.arange(batch.tokens.shape[1])[None]
        counts = np.where(place >= batch.prompt_lengths[:, None], 1.0, prompt_weight)
        counts[place >= batch.lengths[:, None]] = 0
    ahead = np.zeros(counts.shape, dtype=np.float32)
    known = counts[:, 1 + depth :]
    ahead[:, : known.shape[1]] = known
    return torch.from_numpy(ahead)


def total_loss(
    drafted: Sequence[Tensor],
    teacher: Tensor,
    batch: Batch,
    places: Tensor,
    loss: Loss,
    *,
    decay: float,
    prompt_weight: float,
) -> Tensor:
    """The losses of all depths, deeper ones weighing less (Medusa, section 2.2.1).

    Args:
        drafted: per depth, logits `[texts, time, draft vocabulary]`.
        teacher: the target's logits over the draft vocabulary, of the same shape: those at a
            position are for the token behind it.
        batch: the texts.
        places: as for `labels`.
        loss: of one depth.
        decay: weight of a depth beside the one above.
        prompt_weight: as for `wanted`.

    Returns:
        A scalar: the weighted mean over depths.
    """
    parts, weights = [], []
    for index, logits in enumerate(drafted):
        depth = index + 1
        counts = wanted(batch, depth, prompt_weight).to(logits.device).flatten()
        if not counts.any():
            continue
        # Side by side, texts are one long row. Of views alone, since copies of logits cost much;
        # where the target's row is another text's, or there is none, nothing counts.
        rows = slice(len(counts) - depth)
        ahead, label = teacher.flatten(0, 1)[depth:], labels(batch, places, depth).flatten()
        value = loss(logits.flatten(0, 1)[rows], ahead, label[rows], counts[rows])
        parts.append(decay**index * value)
        weights.append(decay**index)
    if not parts:
        return drafted[0].sum() * 0  # texts of a token or two: nothing to learn
    return torch.stack(parts).sum() / sum(weights)


@torch.no_grad()
def hits(drafted: Sequence[Tensor], batch: Batch, places: Tensor) -> Hits:
    """How drafts fare when the texts are decoded with them.

    Each text is walked as decoding walks it: a draft starts behind what the one before brought.
    Drafts at all positions would flatter a drafter, since most positions lie in runs that it
    foretells, and decoding starts where it failed.

    Args:
        drafted: per depth, int64 `[texts, time]`, draft index of the most likely token.
        batch: the texts.
        places: as for `labels`.
    """
    right = torch.ones_like(drafted[0], dtype=torch.bool)
    lengths = torch.zeros_like(drafted[0])
    for index, tokens in enumerate(drafted):
        right = right & (tokens == labels(batch, places, index + 1))
        lengths += right
    depth, starts, accepted = len(drafted), 0, np.zeros(len(drafted), dtype=np.int64)
    for row, run in enumerate(lengths.cpu().numpy()):
        position = max(0, int(batch.prompt_lengths[row]) - 2)  # the root ends the prompt
        while position + 1 + depth < batch.lengths[row]:
            starts += 1
            accepted[: run[position]] += 1
            position += int(run[position]) + 1
    return Hits(starts, accepted)

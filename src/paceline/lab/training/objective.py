"""Training objective of drafter networks: per-depth distillation, auxiliary losses, greedy hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import IntArray
from paceline.lab.training.batches import Batch
from paceline.lab.training.losses import Loss, weighted_mean
from paceline.lab.training.module import DraftModule, Drafts, Reveal
from paceline.networks.base import Network


@dataclass(frozen=True, slots=True)
class Hits:
    """Greedy drafts against true tokens.

    Attributes:
        starts: number of drafts with all depths inside the text.
        accepted: int64 `[depth]`, drafts that are right down to each depth.
    """

    starts: int
    accepted: IntArray

    def __add__(self, other: Hits) -> Hits:
        return Hits(self.starts + other.starts, self.accepted + other.accepted)

    @property
    def block_efficiency(self) -> float:
        """Committed tokens per forward, if every draft has the network's full depth."""
        return 1 + float(self.accepted.sum()) / max(1, self.starts)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """At each depth, the share of drafts accepted there given acceptance above."""
        above = np.concatenate([[self.starts], self.accepted[:-1]])
        return tuple((self.accepted / np.maximum(above, 1)).tolist())


def labels(batch: Batch, places: Tensor, depth: int) -> Tensor:
    """Return int64 `[texts, time]`, the draft index of the token at `depth`, or -1.

    `places` is int64 `[vocabulary]`, the draft index of each token, or -1. Depth 1 is the token
    after the root, which is one after the position.
    """
    ahead = np.full(batch.tokens.shape, -1, dtype=np.int64)
    known = batch.tokens[:, 1 + depth :]
    ahead[:, : known.shape[1]] = known
    found = places.cpu()[torch.from_numpy(np.maximum(ahead, 0))]
    found[torch.from_numpy(ahead < 0)] = -1
    return found.to(places.device)


def wanted(batch: Batch, depth: int, prompt_weight: float) -> Tensor:
    """Return float32 `[texts, time]`, the loss weight of the draft at a depth after each position.

    1 in the answer, `prompt_weight` in the prompt, 0 beyond the end, or as the batch says.
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
    """Return the mean loss over depths, weighted by powers of `decay` (Medusa, section 2.2.1).

    Args:
        drafted: per depth, logits `[texts, time, draft vocabulary]`.
        teacher: the target's logits, of the same shape; row t is for token t + 1.
        places: as for `labels`.
        prompt_weight: as for `wanted`.
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
    """Count greedy hits along each text as decoding walks it: a draft starts after the one before.

    Drafts at all positions would overestimate: most lie in runs that the drafter predicts, and
    decoding restarts where it failed. `drafted` is per depth int64 `[texts, time]` draft indices.
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


def network_loss(
    network: Network,
    drafts: Drafts,
    features: Tensor,
    teacher: Tensor,
    batch: Batch,
    places: Tensor,
    loss: Loss,
    *,
    decay: float,
    prompt_weight: float,
    feature_weight: float = 1.0,
) -> Tensor:
    """Return the whole training loss of a network.

    `Network.own_loss`, or else `total_loss`, averaged over exits, plus `feature_weight` times
    `feature_loss` if the network predicts hidden states (EAGLE).
    Arguments as for `total_loss`; `features` is `[texts, time, 4 * width]`.
    """
    own: Tensor | None = network.own_loss(drafts.logits, batch, places, prompt_weight)
    if own is not None:
        return own
    exits = [
        total_loss(each, teacher, batch, places, loss, decay=decay, prompt_weight=prompt_weight)
        for each in (drafts.logits, *drafts.exits)
    ]
    out = torch.stack(exits).mean()
    if drafts.features and feature_weight:
        apart = feature_loss(
            drafts.features, features, batch, prompt_weight, network.feature_distance == "cosine"
        )
        out = out + feature_weight * apart
    return out


def feature_loss(
    foretold: Sequence[Tensor],
    features: Tensor,
    batch: Batch,
    prompt_weight: float,
    cosine: bool = False,
) -> Tensor:
    """Return the mean smooth L1 between hidden states and their predictions (EAGLE).

    Each axis is scaled by its root mean square in the batch, since scales differ by orders. Or
    return one minus the mean cosine.

    Args:
        foretold: per depth, `[texts, time, width]`.
        features: `[texts, time, 4 * width]`; hidden states are the last part.
    """
    hidden = features[..., -foretold[0].shape[-1] :]
    spread = hidden.square().mean((0, 1)).sqrt().clamp_min(1e-3)
    values, weights = [], []
    for index, each in enumerate(foretold):
        depth = index + 1
        counts = wanted(batch, depth, prompt_weight).to(each.device)
        rows = counts > 0
        shifted = torch.cat([hidden[:, depth:], hidden[:, :depth]], dim=1)  # the tail counts 0
        said, true = wide(each[rows]), shifted[rows]
        if cosine:
            values.append(1 - functional.cosine_similarity(said, true, dim=-1))
        else:
            error = functional.smooth_l1_loss(said / spread, true / spread, reduction="none")
            values.append(error.mean(-1))
        weights.append(counts[rows])
    return weighted_mean(torch.cat(values), torch.cat(weights))


def argmax_tokens(network: Network, drafted: Sequence[Tensor]) -> list[Tensor]:
    """Return per depth int64 `[texts, time]` greedy draft indices; -2 if none."""
    best = torch.stack([logits.argmax(-1) for logits in drafted], dim=-1)
    return list(network.read_argmax(best, drafted[0].shape[-1]).unbind(-1))


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def forward(
    module: DraftModule,
    batch: Batch,
    places: Tensor,
    loss: Loss,
    *,
    decay: float,
    prompt_weight: float,
    feature_weight: float,
    half: bool,
    reveal: Reveal | None = None,
) -> tuple[Drafts, Tensor]:
    """Return teacher-forced drafts of a batch and their scalar loss.

    Arguments as for `network_loss` and `DraftModule.unroll`. `half` runs matmuls in bfloat16.
    """
    features = torch.from_numpy(batch.features).to(places.device)
    tokens = torch.from_numpy(batch.tokens).to(places.device)
    with torch.autocast(places.device.type, dtype=torch.bfloat16, enabled=half):
        drafts = module.draft(features, tokens, reveal or batch.reveal)
        with torch.no_grad():
            teacher = module.teacher(features)
    trained = drafts
    if not module.network.reads_features:  # deeper drafts are the same ones, further on
        trained = replace(drafts, logits=drafts.logits[:1])
    cost = network_loss(
        module.network,
        trained,
        features,
        teacher.float(),
        batch,
        places,
        loss,
        decay=decay,
        prompt_weight=prompt_weight,
        feature_weight=feature_weight,
    )
    return drafts, cost

"""On-policy distillation on the network's own drafts (DistillSpec, arXiv:2310.08461, section 3).

A drafter that reads hidden states only drafts a few tokens after committed text, so its on-policy
data are such drafts, not whole texts. The target scores every drafted token. Each counts by the
acceptance probability of the tokens above it: verification stops at a rejection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core import tree as trees
from paceline.core.target import Rows, Target
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training.acceptance import acceptance_labels
from paceline.lab.training.batches import Batch
from paceline.lab.training.data import Text
from paceline.lab.training.losses import CrossEntropy, Loss
from paceline.lab.training.module import DraftModule
from paceline.networks.base import Network


@dataclass(frozen=True, slots=True)
class Places:
    """Starts of drafts.

    Attributes:
        texts: int64 `[n]`, row of the text.
        positions: int64 `[n]`, position of the context row; the root is the token after it.
    """

    texts: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class SelfDrafts:
    """Drafts conditioned on the network's own tokens.

    Attributes:
        logits: per depth, `[n, draft vocabulary]`.
        picks: int64 `[n, depth]`, drafted tokens as draft indices.
    """

    logits: list[Tensor]
    picks: Tensor


def self_drafts(
    module: DraftModule,
    features: Tensor,
    tokens: Tensor,
    places: Places,
    ids: Tensor,
    pick: Callable[[Tensor], Tensor],
) -> SelfDrafts:
    """Draft autoregressively at some places of a batch, with gradients; no slot may be blank.

    Args:
        features: float32 `[batch, time, 4 * width]`.
        tokens: int64 `[batch, time]`.
        ids: int64 `[draft vocabulary]`, token ids.
        pick: draft indices `[n]` from logits `[n, draft vocabulary]`.
    """
    network, at = module.network, (places.texts, places.positions)
    logits: list[Tensor] = []
    picks: list[Tensor] = []

    def feed(step: int) -> Tensor:
        # Other positions get the text: their drafts are unused.
        shown = tokens[:, :, None].repeat(1, 1, network.width)
        shown[at] = ids[torch.stack(picks[-network.width :], dim=1)]
        return shown

    for ops, state, step in module.unroll(features, tokens, feed):
        said = network.logits(ops, state[at][None], step)[0]
        for slot in said.unbind(1):
            logits.append(slot)
            picks.append(pick(slot.detach().float()))
    return SelfDrafts(logits, torch.stack(picks, dim=1))


# Answer tokens per draft.
_APART = 8


class OnPolicy:
    """On-policy loss of a network's drafts, scored by a target that gives features.

    `ids` is int64 `[draft vocabulary]`, token ids.
    """

    def __init__(self, target: Target, ids: IntArray) -> None:
        self._target = target
        self._ids = ids

    def loss(
        self,
        module: DraftModule,
        texts: Sequence[Text],
        batch: Batch,
        loss: Loss,
        *,
        decay: float,
        half: bool,
        seed: tuple[int, ...],
    ) -> Tensor:
        """Return the mean loss of drafts sampled at temperature 1.

        Each token weighs the probability that rejection sampling accepts all tokens above it, times
        a power of `decay`. `loss` must need no labels; `half` runs matmuls in bfloat16.
        """
        device = module.get_buffer("head").device
        rng = np.random.default_rng(seed)
        rows, positions = _starts(batch, rng)
        if not len(rows):
            return next(module.parameters()).sum() * 0  # texts of a token or two
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))

        def draw(logits: Tensor) -> Tensor:
            return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            drafts = self_drafts(
                module,
                torch.from_numpy(batch.features).to(device),
                torch.from_numpy(batch.tokens).to(device),
                Places(torch.from_numpy(rows).to(device), torch.from_numpy(positions).to(device)),
                torch.from_numpy(self._ids).to(device),
                draw,
            )
            picks = drafts.picks
            hidden = self.score(texts, rows, positions, self._ids[picks.cpu().numpy()])
            with torch.no_grad():
                teacher = module.teacher(torch.from_numpy(hidden).to(device)).float()
        counts = torch.ones(len(rows), device=device)
        weights = []
        for depth, said in enumerate(drafts.logits):
            weights.append(counts)
            stands = acceptance_labels(teacher[:, depth], said.float(), picks[:, depth])
            counts = counts * stands * decay
        student = torch.cat([said.float() for said in drafts.logits])
        unknown = torch.full_like(picks.T.flatten(), -1)
        return loss(student, teacher.transpose(0, 1).flatten(0, 1), unknown, torch.cat(weights))

    def score(
        self, texts: Sequence[Text], rows: IntArray, positions: IntArray, drafts: IntArray
    ) -> LogitArray:
        """Return the target's final hidden states over drafts, float32 `[n, depth, hidden_size]`.

        Row d is of the token before depth d + 1, the root first. A text is prefilled once; drafts
        run from the last position to the first, those of all texts batched.

        Args:
            rows: int64 `[n]`, text of each draft.
            positions: int64 `[n]`, position before each root.
            drafts: int64 `[n, depth]` token ids.
        """
        waiting: dict[int, list[int]] = defaultdict(list)
        for index in np.argsort(positions).tolist():
            waiting[int(rows[index])].append(index)
        width = self._target.capabilities.hidden_size
        out = np.zeros((*drafts.shape, width), dtype=np.float32)
        caches = {row: self._target.open() for row in waiting}
        try:
            for row, indices in waiting.items():
                known = texts[row].tokens[: positions[indices[-1]] + 1]
                self._target.prefill(caches[row], known.tolist())
            while waiting:
                reads, asked = [], []
                for row, indices in list(waiting.items()):
                    index = indices.pop()
                    if not indices:
                        del waiting[row]
                    root = int(positions[index]) + 1
                    self._target.truncate(caches[row], root)
                    # A state may have gone back further.
                    again = texts[row].tokens[caches[row].length : root]
                    self._target.prefill(caches[row], again.tolist())
                    # Nothing comes after the last drafted token, so it need not be read.
                    draft = trees.chain(drafts[index, :-1].tolist())
                    new_tokens = [int(texts[row].tokens[root])]
                    reads.append(Rows.draft(caches[row], new_tokens, draft, features=True))
                    asked.append(index)
                for index, output in zip(asked, self._target.forward(reads), strict=True):
                    assert output.features is not None
                    out[index] = output.features[:, -width:]
        finally:
            for cache in caches.values():
                self._target.release(cache)
        return out


def check(network: Network, loss: Loss) -> None:
    """Raise InvalidOption if the loss or the network learns from labels alone."""
    if isinstance(loss, CrossEntropy):
        raise InvalidOption(
            "loss cross-entropy learns from what the target wrote, which does not follow drafted "
            "tokens: use a divergence such as reverse-kl, or leave out --on-policy"
        )
    if type(network).own_loss is not Network.own_loss or network.more:
        how = "of what it is shown" if network.more else "by a loss of its own"
        raise InvalidOption(
            f"network '{network.name}' learns {how}, from what the target wrote alone: leave out "
            "--on-policy"
        )


def _starts(batch: Batch, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    rows: list[int] = []
    positions: list[int] = []
    for row, (begin, end) in enumerate(zip(batch.prompt_lengths, batch.lengths, strict=True)):
        first, last = max(0, int(begin) - 2), int(end) - 2  # of the rows whose root is in the text
        count = -(-(last - first) // _APART)
        if count > 0:
            chosen = rng.choice(np.arange(first, last), count, replace=False)
            rows += [row] * count
            positions += chosen.tolist()
    return np.array(rows, dtype=np.int64), np.array(positions, dtype=np.int64)

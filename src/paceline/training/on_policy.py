"""Training on the drafter's own words (on-policy data: DistillSpec, arXiv:2310.08461, section 3).

Text of the target shows a drafter what follows the target's words; while decoding it goes on from
its own. Here drafts are drawn from the network, each step fed what the one before said, and the
target says, in forwards of its own, what it would have written behind each drafted token.

A drafter that reads hidden states drafts a few tokens behind text that the target committed, never
more, so its own words are such drafts, and not whole texts as for a model that stands alone. What
is drafted behind a token counts as much as that token is likely to be accepted: verification never
looks below a rejected one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline import tree as trees
from paceline.errors import InvalidOption
from paceline.networks.base import Network
from paceline.target import Pass, Target
from paceline.training.acceptance_head import acceptance_labels
from paceline.training.batches import Batch
from paceline.training.data.writing import Text
from paceline.training.losses import CrossEntropy, Loss
from paceline.training.module import DraftModule
from paceline.training.own_drafts import Places, own_drafts
from paceline.types import IntArray, LogitArray

_APART = 8
"""One draft for so many tokens of an answer."""


class OnPolicy:
    """Drafts of a network, and what the target says of them."""

    def __init__(self, target: Target, ids: IntArray) -> None:
        """Bind the target.

        Args:
            target: gives features.
            ids: int64 `[draft vocabulary]`, token ids.
        """
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
        """What drafts drawn from the network at temperature 1 cost it.

        Args:
            module: the network.
            texts: of the target.
            batch: the same with features.
            loss: of one depth; no labels are needed for it.
            decay: weight of a depth beside the one above.
            half: whether matrix products run in bfloat16.
            seed: names the draws.

        Returns:
            A scalar: the mean over all drafted tokens. One counts the probability that rejection
            sampling accepts all that was drafted above it, times a power of the decay.
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
            drafts = own_drafts(
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
        """The target's final hidden states over drafts, which its LM head turns into its law.

        Every text is read once, down to its last draft; the drafts follow from the last to the
        first, those of all texts side by side in a forward.

        Args:
            texts: of the target.
            rows: int64 `[n]`, which text each draft stands in.
            positions: int64 `[n]`, position before the root of each.
            drafts: int64 `[n, depth]` token ids.

        Returns:
            float32 `[n, depth, hidden_size]`: row d belongs to the token before the draft at depth
            d + 1, the root first.
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
                passes, asked = [], []
                for row, indices in list(waiting.items()):
                    index = indices.pop()
                    if not indices:
                        del waiting[row]
                    root = int(positions[index]) + 1
                    self._target.truncate(caches[row], root)
                    # Nothing comes after the last drafted token, so it need not be read.
                    draft = trees.chain(drafts[index, :-1].tolist())
                    pending = [int(texts[row].tokens[root])]
                    passes.append(Pass(caches[row], pending, draft, features=True))
                    asked.append(index)
                for index, output in zip(asked, self._target.forward(passes), strict=True):
                    assert output.features is not None
                    out[index] = output.features[:, -width:]
        finally:
            for cache in caches.values():
                self._target.release(cache)
        return out


def check(network: Network, loss: Loss) -> None:
    """Whether a network can be trained on its own words.

    Raises:
        InvalidOption: the loss or the network learns from labels alone.
    """
    if isinstance(loss, CrossEntropy):
        raise InvalidOption(
            "loss cross-entropy learns from what the target wrote, which does not follow drafted "
            "tokens: use a divergence such as reverse-kl, or leave out --on-policy"
        )
    if network.blank:
        raise InvalidOption(
            f"network '{network.name}' drafts slots that may stay blank, and learns from what the "
            "target wrote alone: leave out --on-policy"
        )


def _starts(batch: Batch, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Some context rows, of answers alone: text and position of each."""
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

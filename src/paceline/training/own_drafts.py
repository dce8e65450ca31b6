"""Drafts that a network makes itself, behind some places of a batch, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.module import DraftModule


@dataclass(frozen=True, slots=True)
class Places:
    """Where drafts start.

    Attributes:
        texts: int64 `[n]`, which text.
        positions: int64 `[n]`, position of the context row; the root is the token behind it.
    """

    texts: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True)
class OwnDrafts:
    """Drafts behind places.

    Attributes:
        logits: per depth, `[n, draft vocabulary]`, given the network's own tokens above.
        picks: int64 `[n, depth]`, the tokens that were drafted, as draft indices.
    """

    logits: list[Tensor]
    picks: Tensor


def own_drafts(
    module: DraftModule,
    features: Tensor,
    tokens: Tensor,
    places: Places,
    ids: Tensor,
    pick: Callable[[Tensor], Tensor],
) -> OwnDrafts:
    """Draft as decoding does: every step is fed what the one before it said.

    Args:
        module: the network; its slots must not be able to stay blank.
        features: float32 `[batch, time, 4 * width]`.
        tokens: int64 `[batch, time]`, the texts.
        places: where to start.
        ids: int64 `[draft vocabulary]`, token ids.
        pick: draft indices `[n]` from logits `[n, draft vocabulary]`.
    """
    network, at = module.network, (places.texts, places.positions)
    logits: list[Tensor] = []
    picks: list[Tensor] = []

    def feed(step: int) -> Tensor:
        """The text elsewhere: what is drafted there is not looked at."""
        shown = tokens[:, :, None].repeat(1, 1, network.width)
        shown[at] = ids[torch.stack(picks[-network.width :], dim=1)]
        return shown

    for ops, state, step in module.unroll(features, tokens, feed):
        said = network.logits(ops, state[at][None], step)[0]
        for slot in said.unbind(1):
            logits.append(slot)
            picks.append(pick(slot.detach().float()))
    return OwnDrafts(logits, torch.stack(picks, dim=1))

"""Pruning by confidence: nodes that are unlikely to be accepted are not worth their place."""

from __future__ import annotations

import numpy as np

from paceline import tree as trees
from paceline.types import ROOT, TokenTree


def confident(draft: TokenTree, least: float) -> TokenTree:
    """A deterministic draft without the nodes whose score is below `least`, and all below them.

    A draft without scores comes back as it is.

    Args:
        draft: the draft; its scores were known before the target saw it.
        least: smallest score that stays.

    Raises:
        ValueError: the draft was sampled, so that its tokens decide about the scores. Dropping a
            drawn token because of its own probability would bias the output (predictability rule).
    """
    if draft.law is not None:
        raise ValueError("a sampled draft cannot be pruned by confidence after it was drawn")
    if draft.scores is None:
        return draft
    keep = draft.scores >= least
    if keep.all():
        return draft
    for node, parent in enumerate(draft.parents.tolist()):
        keep[node] &= parent == ROOT or keep[parent]
    return trees.take(draft, np.flatnonzero(keep))

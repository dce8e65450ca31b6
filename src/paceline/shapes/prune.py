"""Pruning of draft trees by confidence."""

from __future__ import annotations

import numpy as np

from paceline import tree as trees
from paceline.types import ROOT, TokenTree


def confident(draft: TokenTree, least: float) -> TokenTree:
    """Drop nodes with a score below `least`, and all below them; without scores, drop none.

    Raises ValueError if the draft was sampled: dropping a sampled token because of its own
    probability would bias the output (predictability).
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

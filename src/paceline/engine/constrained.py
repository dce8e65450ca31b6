"""Drafts of constrained sequences: without what the constraint forbids, with what it forces."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.core import tree as trees
from paceline.core.constraint import ConstraintState
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.sampling.sequence import Sequence

# Name of the drafter of forced runs.
SOURCE = "grammar"


def constrained(sequence: Sequence, draft: TokenTree, most: Budget, branches: bool) -> TokenTree:
    """Return a deterministic draft cut to what may be said, with a forced run, within `most`.

    The target decides about the run like about any draft. `branches`: drafts may be trees, else the
    run stands for a draft that does not go the same way. Drawn drafts are returned as they are:
    dropping what was drawn would bias p/q rules, and what is forbidden is rejected anyway.
    """
    state = sequence.sampler.constraint
    if state is None or draft.sampling is not None:
        return draft
    draft = _allowed(state, draft)
    run = min(most.nodes, most.depth)
    forced = state.forced()[:run] if run else ()
    if not forced:
        return draft
    chain = trees.chain(forced, SOURCE, scores=np.ones(len(forced)))
    merged = trees.merge(chain, draft)
    merged = trees.limit(merged, most.nodes, most.depth)
    return merged if branches or trees.is_chain(merged) else chain


def _allowed(state: ConstraintState, draft: TokenTree) -> TokenTree:
    # A node is tried once: with the first leaf below it.
    good: dict[int, bool] = {ROOT: True}
    for path in trees.leaf_paths(draft):
        tokens: List[int] = draft.tokens[list(path)].tolist()
        count = state.valid(tokens)
        good.update((node, place < count) for place, node in enumerate(path))
    kept = [node for node in range(len(draft)) if good[node]]
    return draft if len(kept) == len(draft) else trees.take(draft, np.array(kept, dtype=np.int64))

"""How far the logits of a token depend on the pass it was computed in: the floor of exactness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline import tree as trees
from paceline.target import Pass, Target
from paceline.types import ROOT, LogitArray, TokenTree

_PREFIX = 150
_CHAIN = 16
_PARENTS = (ROOT, ROOT, ROOT, 0, 0, 1, 3, 3, 5)
"""A tree of four paths whose nodes do not stand in the order of the paths."""
_SHORTEST = 10
"""A context that has no room for the tree."""


def noise_floor(target: Target, tokens: Sequence[int]) -> dict[str, float]:
    """Largest |logit difference| between one-token decoding and a chain pass, and a tree pass.

    Zero means that drafts cannot change a bit of the output.

    Args:
        target: any target.
        tokens: a text of the model's language, a few dozen tokens or more; it is repeated to the
            length needed.

    Returns:
        Differences by kind of draft: "chain", and "tree" where target and context take one.
    """
    context = target.capabilities.max_context
    prefix = max(1, min(_PREFIX, context // 2))
    chain = max(1, min(_CHAIN, context - prefix - 1))
    text = np.resize(np.asarray(tokens, dtype=np.int64), prefix + chain + 1).tolist()
    root, following = text[prefix], text[prefix + 1 :]
    cache = target.open()
    try:
        target.prefill(cache, text[:prefix])
        out = {"chain": _difference(target, cache, root, trees.chain(following))}
        if target.capabilities.tree and context > _SHORTEST:
            vocabulary = target.capabilities.vocab_size
            # Distinct tokens, so that no two siblings are equal.
            nodes = [(text[0] + 7 * node) % vocabulary for node in range(len(_PARENTS))]
            tree = TokenTree(np.array(nodes, dtype=np.int64), np.array(_PARENTS, dtype=np.int64))
            out["tree"] = _difference(target, cache, root, tree)
    finally:
        target.release(cache)
    return out


def _difference(target: Target, cache: object, root: int, draft: TokenTree) -> float:
    """Largest difference at any node; the cache is left as it was."""
    rows = target.forward([Pass(cache, [root], draft)])[0].logits.copy()
    worst = 0.0
    for path in trees.leaf_paths(draft):
        plain = _one_by_one(target, cache, [root, *draft.tokens[list(path)].tolist()])
        drafted = rows[[0, *(node + 1 for node in path)]]
        worst = max(worst, float(np.abs(plain - drafted).max()))
    return worst


def _one_by_one(target: Target, cache: object, tokens: Sequence[int]) -> LogitArray:
    """float32 `[tokens, vocabulary]`: logits after each token of plain decoding."""
    start = cache.length  # type: ignore[attr-defined]  # caches are opaque but for their length
    rows = []
    for token in tokens:
        rows.append(target.forward([Pass(cache, [token])])[0].logits[0].copy())
        target.keep(cache, 1, ())
    target.truncate(cache, start)
    return np.stack(rows)

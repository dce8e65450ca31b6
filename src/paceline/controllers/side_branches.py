"""Pruning of side branches that gain less than they cost. In layout "exact" every root-to-leaf path
attends to the context on its own. The likeliest path is free; another pays for its attention, and
all together for branching, once per forward. Prices are in tokens of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.types import ROOT

# By node, ascending, the tokens that it is worth; at most its parent's worth.
Worth = dict[int, float]


class Priced(NamedTuple):
    """Draft with a price on its branches.

    Attributes:
        parents: as in a `TokenTree`.
        promise: per node, acceptance probability, at most its parent's.
        path: price of a path beyond the first, in tokens.
    """

    parents: list[int]
    promise: list[float]
    path: float


def worth_keeping(drafts: Sequence[Priced], fork: float) -> list[Worth]:
    """Return, per draft, the remaining nodes and their worth; `fork` is the price of branching."""
    heads = [_heads(draft, bool(fork)) for draft in drafts]
    gain = sum(
        value - draft.path
        for draft, side in zip(drafts, heads, strict=True)
        for value in side.values()
        if value > draft.path
    )
    left = 1 - fork / gain if gain > fork else 0.0
    return [_worth(*each, left) for each in zip(drafts, heads, strict=True)]


def _heads(draft: Priced, forked: bool) -> dict[int, float]:
    # First nodes of side branches, and the tokens expected along each one's likeliest path.
    if not (draft.path or forked) or draft.parents == list(range(ROOT, len(draft.parents) - 1)):
        return {}
    promise = list(draft.promise)
    best: dict[int, int] = {}
    for node in reversed(range(len(promise))):  # children before parents
        if node in best:
            promise[node] += promise[best[node]]
        rival = best.get(draft.parents[node])
        if rival is None or promise[node] >= promise[rival]:
            best[draft.parents[node]] = node
    firsts = set(best.values())
    return {node: value for node, value in enumerate(promise) if node not in firsts}


def _worth(draft: Priced, heads: dict[int, float], left: float) -> Worth:
    # `left` is the share of a branch's gain beyond the price of the fork.
    if not heads:
        return dict(enumerate(draft.promise))
    worth: Worth = {}
    share = {ROOT: 1.0}  # of its promise that a node is worth: the same along a path
    for node, (parent, promise) in enumerate(zip(draft.parents, draft.promise, strict=True)):
        if parent not in share:
            continue
        value = heads.get(node)
        if value is None:
            share[node] = share[parent]
        elif value > draft.path and left:
            share[node] = left * (value - draft.path) / value
        else:
            continue
        worth[node] = min(promise * share[node], worth.get(parent, 1.0))
    return worth

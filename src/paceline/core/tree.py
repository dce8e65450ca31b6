"""Token trees: pure functions for depths, masks, paths, pruning, merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.types import ROOT, BoolArray, DraftSampling, IntArray, ProbArray, TokenTree

_NO_NODES: IntArray = np.zeros(0, dtype=np.int64)
# A step with this draft is autoregressive decoding.
EMPTY = TokenTree(_NO_NODES, _NO_NODES)


def chain(
    tokens: Sequence[int] | IntArray,
    source: str = "",
    sampling: DraftSampling | None = None,
    scores: ProbArray | None = None,
) -> TokenTree:
    """Build a tree without branches."""
    n = len(tokens)
    parents = np.arange(-1, n - 1, dtype=np.int64)
    return TokenTree(np.asarray(tokens, dtype=np.int64), parents, sampling, source, scores)


def validate(tree: TokenTree) -> None:
    """Raise ValueError unless every node has a parent that precedes it."""
    if tree.tokens.shape != tree.parents.shape or tree.tokens.ndim != 1:
        raise ValueError("a tree needs one parent per token")
    for node, parent in enumerate(tree.parents):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must precede children")


def is_chain(tree: TokenTree) -> bool:
    parents: list[int] = tree.parents.tolist()
    return parents == list(range(-1, len(tree) - 1))


def depths(tree: TokenTree) -> IntArray:
    """Return int64 `[n]`; children of the root have depth 1."""
    return np.array(_depths(tree), dtype=np.int64)


def deepest(tree: TokenTree) -> int:
    """Return the greatest depth; 0 for an empty draft."""
    return len(tree) if is_chain(tree) else max(_depths(tree))


def _depths(tree: TokenTree) -> list[int]:
    out: list[int] = []
    for parent in tree.parents.tolist():
        out.append(1 if parent == ROOT else out[parent] + 1)
    return out


def ancestor_mask(tree: TokenTree) -> BoolArray:
    """Return bool `[n, n]`: True where column is the row's ancestor or itself."""
    mask = np.eye(len(tree), dtype=np.bool_)
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            mask[node] |= mask[parent]
    return mask


def children(tree: TokenTree) -> dict[int, list[int]]:
    """Return nodes by parent, `ROOT` included, in node order. Leaves have no entry."""
    out: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        out.setdefault(parent, []).append(node)
    return out


def places(tree: TokenTree) -> dict[tuple[int, int], int]:
    """Return nodes by parent and token; the first of siblings with equal tokens."""
    parents, tokens = reversed(tree.parents.tolist()), reversed(tree.tokens.tolist())
    backwards = range(len(tree) - 1, -1, -1)
    return dict(zip(zip(parents, tokens, strict=True), backwards, strict=True))


def node_name(node: int) -> str:
    return "the root" if node == ROOT else f"node {node}"


def path_to(tree: TokenTree, node: int) -> tuple[int, ...]:
    """Return node indices from a child of the root down to `node`; empty for `ROOT`."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = int(tree.parents[node])
    return tuple(reversed(path))


def follow(tree: TokenTree, tokens: Sequence[int]) -> int:
    """Return the length of the prefix of `tokens` that is a path from the root."""
    below, node = places(tree), ROOT
    for count, token in enumerate(tokens):
        child = below.get((node, token))
        if child is None:
            return count
        node = child
    return len(tokens)


def leaf_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the path to every leaf, in node order."""
    inner = set(tree.parents.tolist())
    return [path_to(tree, node) for node in range(len(tree)) if node not in inner]


def take(tree: TokenTree, nodes: IntArray) -> TokenTree:
    """Return the subtree of `nodes` (ascending, closed under parents) of a deterministic draft.

    Raises ValueError for a sampled draft: pruning after sampling would bias the output.
    """
    if tree.sampling is not None:
        raise ValueError("a sampled draft cannot be pruned after its tokens were drawn")
    renumber = np.full(len(tree) + 1, ROOT, dtype=np.int64)  # last slot maps ROOT to itself
    renumber[nodes] = np.arange(len(nodes))
    return TokenTree(
        tree.tokens[nodes],
        renumber[tree.parents[nodes]],
        source=tree.source,
        scores=None if tree.scores is None else tree.scores[nodes],
        origins=tuple(tree.origins[node] for node in nodes.tolist()) if tree.origins else (),
    )


def head(tree: TokenTree, nodes: int) -> TokenTree:
    """Return the first nodes of a deterministic draft; ValueError as `take`."""
    if tree.sampling is not None:
        raise ValueError("a sampled draft cannot be pruned after its tokens were drawn")
    return TokenTree(
        tree.tokens[:nodes],
        tree.parents[:nodes],
        None,
        tree.source,
        None if tree.scores is None else tree.scores[:nodes],
        tree.origins[:nodes],
    )


def limit(tree: TokenTree, nodes: int, depth: int) -> TokenTree:
    """Return the first nodes of a deterministic draft within a node count and a depth."""
    if len(tree) <= nodes and (len(tree) <= depth or deepest(tree) <= depth):
        return tree
    fitting = np.flatnonzero(depths(tree) <= depth)[:nodes]
    return take(tree, fitting)


def merge(first: TokenTree, second: TokenTree) -> TokenTree:
    """Return the union of two deterministic drafts; ValueError for sampled drafts.

    Nodes with equal token paths become one, with the first's origin and the higher score.
    """
    if first.sampling is not None or second.sampling is not None:
        raise ValueError("sampled drafts cannot be merged: their law would be lost")
    tokens = first.tokens.tolist()
    parents = first.parents.tolist()
    known = {(p, t): i for i, (p, t) in enumerate(zip(parents, tokens, strict=True))}
    origins = [first.origin(node) for node in range(len(first))]
    scored = all(draft.scores is not None or not len(draft) for draft in (first, second))
    scores = [] if first.scores is None else first.scores.tolist()
    extra = [] if second.scores is None else second.scores.tolist()
    moved: dict[int, int] = {ROOT: ROOT}
    for node, (token, parent) in enumerate(
        zip(second.tokens.tolist(), second.parents.tolist(), strict=True)
    ):
        key = (moved[parent], token)
        if key not in known:
            known[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
            origins.append(second.origin(node))
            scores += extra[node : node + 1]
        elif scored:
            scores[known[key]] = max(scores[known[key]], extra[node])
        moved[node] = known[key]
    return TokenTree(
        np.asarray(tokens, dtype=np.int64),
        np.asarray(parents, dtype=np.int64),
        source=origins[0] if origins else first.source,
        scores=np.asarray(scores, dtype=np.float64) if scored else None,
        origins=tuple(origins) if len(set(origins)) > 1 else (),
    )

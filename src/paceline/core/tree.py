"""Token trees: pure functions for depths, masks, paths, pruning, merging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from paceline.core.types import ROOT, BoolArray, DraftSampling, IntArray, ProbArray, TokenTree

_NO_NODES: IntArray = np.zeros(0, dtype=np.int64)
# A step with this draft is autoregressive decoding.
EMPTY = TokenTree(_NO_NODES, _NO_NODES)


class Builder:
    """A tree under construction.

    Attributes:
        tokens, parents, scores: per node, as in `TokenTree`; scores may be empty.
        nodes: by parent and token.
        scored: whether a tree without nodes has scores, too.
    """

    scored = False

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.nodes: dict[tuple[int, int], int] = {}

    @classmethod
    def of(cls, tree: TokenTree) -> Self:
        """Start with the nodes of a deterministic draft."""
        builder = cls()
        builder.tokens, builder.parents = tree.tokens.tolist(), tree.parents.tolist()
        builder.scores = [] if tree.scores is None else tree.scores.tolist()
        pairs = zip(builder.parents, builder.tokens, strict=True)
        builder.nodes = {pair: node for node, pair in enumerate(pairs)}
        return builder

    def add(self, parent: int, token: int, score: float | None = None) -> int:
        """Add a node; with a score if all have one."""
        node = self.nodes[parent, token] = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        if score is not None:
            self.scores.append(score)
        return node

    def graft(self, tree: TokenTree) -> list[int]:
        """Add the nodes of a tree whose token paths are missing; return the place of each node."""
        places: list[int] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            above = ROOT if parent == ROOT else places[parent]
            node = self.nodes.get((above, token))
            places.append(self.add(above, token) if node is None else node)
        return places

    def tree(self, source: str = "", origins: tuple[str, ...] = ()) -> TokenTree:
        """Return the tree, with scores if there are any."""
        tokens, parents = np.array(self.tokens, np.int64), np.array(self.parents, np.int64)
        scores = np.array(self.scores) if self.scores or self.scored else None
        return TokenTree(tokens, parents, None, source, scores, origins)


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
        first=tree.first,
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
        tree.first,
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
        raise ValueError("sampled drafts cannot be merged: their distribution would be lost")
    builder = Builder.of(first)
    origins = [first.origin(node) for node in range(len(first))]
    scored = all(draft.scores is not None or not len(draft) for draft in (first, second))
    extra = [] if second.scores is None else second.scores.tolist()
    scores = builder.scores
    for node, place in enumerate(builder.graft(second)):
        if place == len(origins):
            origins.append(second.origin(node))
            scores += extra[node : node + 1]
        elif scored:
            scores[place] = max(scores[place], extra[node])
    if not scored:
        scores.clear()
    builder.scored = scored
    named = tuple(origins) if len(set(origins)) > 1 else ()
    return builder.tree(origins[0] if origins else first.source, named)

"""SuffixDecoding as published (Oliaro et al. 2024, arXiv:2411.04975): suffix trees of the own text
and of earlier outputs, and drafts from the counts of what followed.

A match of m tokens allows drafts of alpha m tokens. A node's score is the product of the shares
that its path has among its siblings; a draft's is the sum of its nodes', its expected accepted
tokens. The best draft of all match lengths and both trees is proposed. `suffix-decoding` is our
variant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from paceline.core.options import require
from paceline.core.types import ROOT, Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.base import BestFirst
from paceline.trees.candidates import CandidateTree

# Tokens of the longest path in a tree, of match and continuation together.
DEPTH = 64

# Most tokens of earlier outputs.
CAPACITY = 1 << 17


class _Node:
    # A path that occurred `count` times, at least once up to `text[at]`. `below` is None while it
    # occurred once: its only continuation is read from the text.
    __slots__ = ("at", "below", "count", "text")

    def __init__(self, text: list[int], at: int) -> None:
        self.count = 1
        self.text = text
        self.at = at
        self.below: dict[int, _Node] | None = None


class SuffixTree:
    """Counts of every substring of up to `depth` tokens of some texts."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._depth = depth
        self._root = _Node([], -1)
        self._root.below = {}
        self._text: list[int] = []
        self._ends: list[_Node] = []

    def begin(self) -> None:
        """Start another text."""
        self._text = []
        # Of suffixes of the text that occurred elsewhere, the shortest first; first the empty one.
        self._ends = [self._root]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._text.append(token)
            ends = [self._root]
            for depth, end in enumerate(self._ends, 1):
                below = self._below(end, depth - 1)
                node = below.get(token)
                if node is None:
                    below[token] = _Node(self._text, len(self._text) - 1)
                    continue
                if node.below is None:
                    node.below = self._below(node, depth)
                node.count += 1
                if depth < self._depth:
                    ends.append(node)
            self._ends = ends

    def remove(self, text: list[int]) -> None:
        """Take back a whole text that was added, as if it had never been."""
        for begin in range(len(text)):
            node = self._root
            for depth, token in enumerate(text[begin : begin + self._depth]):
                below = self._below(node, depth)
                node = below[token]
                node.count -= 1
                if not node.count:
                    del below[token]
                    break

    def count(self, path: Sequence[int]) -> int:
        """Return how often a path of 1 to `depth` tokens occurred, overlaps included."""
        node: _Node | None = self._root
        for depth, token in enumerate(path):
            if node is None:
                return 0
            node = self._below(node, depth).get(token)
        return node.count if node else 0

    def matches(self, tokens: Sequence[int]) -> list[_Node]:
        """Return the nodes of suffixes of `tokens` that continue, of 1, 2, .. tokens."""
        found: list[_Node] = []
        for length in range(1, min(len(tokens), self._depth - 1) + 1):
            node: _Node | None = self._root
            for depth, token in enumerate(tokens[-length:]):
                node = self._below(node, depth).get(token) if node else None
            if node is None or not self._below(node, length):
                break
            found.append(node)
        return found

    def continuations(self, node: _Node, depth: int) -> Iterator[tuple[int, float, _Node]]:
        """Yield token, share among its siblings, and node, the most frequent first."""
        below = self._below(node, depth)
        total = sum(child.count for child in below.values())
        for token, child in sorted(below.items(), key=lambda each: -each[1].count):
            yield token, child.count / total, child

    def _below(self, node: _Node, depth: int) -> dict[int, _Node]:
        if node.below is not None:
            return node.below
        after = node.at + 1
        if depth >= self._depth or after >= len(node.text):
            return {}
        return {node.text[after]: _Node(node.text, after)}


Mode = Literal["tree", "path"]


class SuffixTrees(Drafter):
    """Drafts the best continuation by counts; with "path" the most frequent tokens alone."""

    name: ClassVar[str] = "suffix-tree"
    paper = "SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975"

    def __init__(
        self, mode: Mode = "tree", alpha: float = 1.0, least: float = 0.1, capacity: int = CAPACITY
    ) -> None:
        """Start with empty trees.

        Args:
            alpha: most drafted tokens per matched token.
            least: of a node's score, as in the authors' code.
            capacity: tokens of earlier outputs; the eldest outputs go.

        Raises InvalidOption.
        """
        if mode not in ("tree", "path"):
            raise InvalidOption(f"mode {mode!r} is unknown: use tree or path")
        require(0 < alpha <= 1e6, "alpha", alpha, "above 0, and at most 1000000")
        require(0 <= least <= 1, "least", least, "in [0, 1]")
        require(capacity >= 1, "capacity", capacity, "1 or more")
        self._mode = mode
        self._alpha = alpha
        self._least = least
        self._capacity = capacity
        self.reset()

    def reset(self) -> None:
        self._own: dict[int, SuffixTree] = {}
        self._read: dict[int, int] = {}
        self.earlier = SuffixTree()
        self._texts: deque[list[int]] = deque()
        self._size = 0

    def open(self, sequence: Generation) -> None:
        tree = self._own[sequence.id] = SuffixTree()
        tree.begin()
        tree.extend(sequence.tokens)
        self._read[sequence.id] = len(sequence.tokens)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        return self._best(sequence, budget).tree(self.name)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence = verified.sequence
        self._own[sequence.id].extend(sequence.tokens[self._read[sequence.id] :])
        self._read[sequence.id] = len(sequence.tokens)

    def close(self, sequence: Generation) -> None:
        if self._own.pop(sequence.id, None) is None:
            return
        del self._read[sequence.id]
        output = sequence.tokens[sequence.prompt_length :][-self._capacity :]
        self.earlier.begin()
        self.earlier.extend(output)
        self._texts.append(output)
        self._size += len(output)
        while self._size > self._capacity:
            eldest = self._texts.popleft()
            self.earlier.remove(eldest)
            self._size -= len(eldest)

    def _best(self, sequence: Generation, budget: Budget) -> CandidateTree:
        best = CandidateTree()
        if not (budget.nodes and budget.depth):
            return best
        for tree in (self._own[sequence.id], self.earlier):  # of equals, the own text's
            mine = CandidateTree()
            found = tree.matches(sequence.tokens[-DEPTH:])
            for length in range(len(found), 0, -1):  # of equals, the longer match's
                most = min(budget.nodes, int(self._alpha * length + 1e-6))
                if most <= max(mine.score, best.score):
                    break  # no node scores more than 1
                draft = self._draft(tree, found[length - 1], length, Budget(most, budget.depth))
                mine = max(mine, draft, key=lambda each: each.score)
            best = max(best, mine, key=lambda each: each.score)
        return best

    def _draft(self, tree: SuffixTree, match: _Node, length: int, budget: Budget) -> CandidateTree:
        draft = CandidateTree()
        queue: BestFirst[tuple[int, int, _Node, int]] = BestFirst()

        def enter(parent: int, node: _Node, reach: float, depth: int) -> None:
            if depth < budget.depth:
                for token, share, child in tree.continuations(node, length + depth):
                    if reach * share >= self._least:
                        queue.push(reach * share, (parent, token, child, depth + 1))
                    if self._mode == "path":
                        break

        enter(ROOT, match, 1.0, 0)
        while queue and len(draft.tokens) < budget.nodes:
            reach, (parent, token, node, depth) = queue.pop()
            enter(draft.add(parent, token, reach), node, reach, depth)
        return draft

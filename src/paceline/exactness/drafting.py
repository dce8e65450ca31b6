"""Stateless drafters for tabular models, as functions that enumeration can replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.drafters.base import Drafter
from paceline.exactness.tabular import LawOf
from paceline.growth.base import Ask, Growth, drive
from paceline.growth.iid import Iid
from paceline.randomness import Randomness
from paceline.sequence import Sequence
from paceline.types import Budget, Law, TokenTree

# From a context, a source of draws and a budget to a draft.
Propose = Callable[[tuple[int, ...], Randomness, Budget], TokenTree]


def grown(growth: Growth, law: LawOf) -> Propose:
    """Build a drafter from a tree expansion and a draft distribution."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        def answer(asks: Mapping[int, Ask]) -> dict[int, list[Law]]:
            return {index: [after(ask.tree, n) for n in ask.nodes] for index, ask in asks.items()}

        def after(tree: TokenTree, node: int) -> Law:
            return law((*context, *tree.tokens[list(trees.path_to(tree, node))].tolist()))

        [tree] = drive([growth.grow(budget, randomness, len(context))], answer)
        return replace(tree, source=growth.name)

    return propose


def sampled_chain(law: LawOf) -> Propose:
    """Build a drafter of sampled chains that reports its rows."""
    return grown(Iid([1]), law)


def random_tree(vocabulary: int, nodes: int, seed: int) -> Propose:
    """Build a drafter whose tree is an arbitrary but fixed function of the context."""

    @cache
    def tree(context: tuple[int, ...]) -> TokenTree:
        generator = np.random.default_rng([seed, len(context), *context])
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(nodes):
            edge = (int(generator.integers(-1, len(tokens))), int(generator.integers(vocabulary)))
            if edge not in zip(parents, tokens, strict=True):
                parents.append(edge[0])
                tokens.append(edge[1])
        return TokenTree(
            np.asarray(tokens, dtype=np.int64),
            np.asarray(parents, dtype=np.int64),
            source="random-tree",
        )

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        return trees.limit(tree(context), budget.nodes, budget.depth)

    return propose


def likely_chain(law: LawOf) -> Propose:
    """Build a drafter of argmax chains."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        for _ in range(min(budget.depth, budget.nodes)):
            tokens.append(law((*context, *tokens)).argmax())
        return trees.chain(tokens, "likely-chain")

    return propose


class FunctionDrafter(Drafter):
    """`Propose` as a drafter of the decode loop."""

    name: ClassVar[str] = "function"

    def __init__(self, propose: Propose) -> None:
        self._propose = propose

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        return [
            self._propose(tuple(s.tokens), s.randomness, b)
            for s, b in zip(sequences, budgets, strict=True)
        ]

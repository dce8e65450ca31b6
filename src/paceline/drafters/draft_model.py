"""A second, smaller target as drafter (Leviathan et al. 2023; Chen et al. 2023).

The draft model keeps its own cache per sequence and decodes ahead of the target: chains, or trees
of any growth, level by level over the whole batch. Under coupled verification it uses the noise
that the target will use, so both agree as often as their laws allow; under p/q rules it draws from
its law and reports the rows it drew from.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from itertools import takewhile
from typing import Any, ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import InvalidOption
from paceline.growth.base import Ask, Growth, drive
from paceline.growth.choice import growth_for
from paceline.sequence import Sequence
from paceline.target import Output, Pass, Target
from paceline.types import Budget, Law, TokenTree, Verdict


class DraftModel(Drafter):
    """Drafts with any target that has the same vocabulary."""

    name: ClassVar[str] = "draft-model"

    def __init__(self, model: Target, vocab_size: int, growth: Growth) -> None:
        """Bind the draft model.

        Args:
            model: the draft model.
            vocab_size: vocabulary of the target.
            growth: how drafts grow; the verifier must accept their kind.

        Raises:
            InvalidOption: the vocabularies differ.
        """
        theirs = model.capabilities.vocab_size
        if theirs != vocab_size:
            raise InvalidOption(
                f"the draft model has {theirs} tokens and the target {vocab_size}: "
                "use a draft model of the target's family, with the same tokenizer"
            )
        self._model = model
        self._growth = growth
        self.kind = growth.kind
        self._caches: dict[int, Any] = {}
        self._trunks: dict[int, tuple[int, List[int]]] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the draft model that the user named, and draft with it what the verifier takes.

        Drafts share the target's noise, in chains, unless the verifier needs their law or the
        option `growth` names another growth (`growth/choice.py`).

        Raises:
            InvalidOption: an option is unknown, or the verifier is not exact for that growth.
        """
        named = _growth(cls.name, context.options)
        growth = growth_for(context.accepts, context.shape, **named)
        return cls(cls._load(context), context.target.vocab_size, growth)

    @classmethod
    def _load(cls, context: DrafterContext) -> Target:
        """What drafts."""
        return context.draft_model()

    def open(self, sequence: Sequence) -> None:
        """Prefill the draft model's own cache."""
        cache = self._caches[sequence.id] = self._model.open()
        if self._room(sequence):
            self._model.prefill(cache, sequence.tokens[:-1])

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One draft per sequence, grown in step over the whole batch."""
        self._roll_back(sequences)  # a step that failed half-way left drafted tokens behind
        growing = [
            self._growth.grow(
                replace(budget, depth=min(budget.depth, self._room(sequence))),
                sequence.randomness,
                len(sequence.tokens),
            )
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

        def answer(asks: Mapping[int, Ask]) -> dict[int, list[Law]]:
            laws = self._laws([sequences[index] for index in asks], list(asks.values()))
            return dict(zip(asks, laws, strict=True))

        drafts = drive(growing, answer)
        for sequence, draft in zip(sequences, drafts, strict=True):
            # Every path starts with the trunk, so what is cached of it may agree with the commit.
            trunk = draft.tokens[: _trunk(draft)].tolist()
            self._shorten(sequence, len(sequence.tokens) + len(trunk))
            self._trunks[sequence.id] = (len(sequence.tokens), trunk)
        return [replace(draft, source=self.name) for draft in drafts]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Roll the draft model's caches back to what was committed."""
        self._roll_back(sequences)

    def close(self, sequence: Sequence) -> None:
        """Release the draft model's cache."""
        self._trunks.pop(sequence.id, None)
        cache = self._caches.pop(sequence.id, None)
        if cache is not None:
            self._model.release(cache)

    def _roll_back(self, sequences: List[Sequence]) -> None:
        for sequence in sequences:
            begin, trunk = self._trunks.pop(sequence.id, (len(sequence.tokens), ()))
            # What was verified, and so committed, may be another drafter's draft.
            pairs = zip(trunk, sequence.tokens[begin:], strict=False)
            agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._shorten(sequence, min(begin + agreed, len(sequence.tokens) - 1))

    def _shorten(self, sequence: Sequence, length: int) -> None:
        """Forget what the sequence's cache holds beyond `length` tokens."""
        cache = self._caches[sequence.id]
        if cache.length > length:
            self._model.truncate(cache, length)

    def _room(self, sequence: Sequence) -> int:
        """How deep the draft model's own context still reaches."""
        return max(0, self._model.capabilities.max_context - len(sequence.tokens))

    def _laws(self, sequences: List[Sequence], asks: List[Ask]) -> list[list[Law]]:
        """The laws that each growth asks for, by one forward of the draft model.

        The trunk of a tree is fed like committed tokens and stays in the cache, so a chain costs
        one row per token. Branches are fed again with every level, as a draft.
        """
        passes: list[Pass] = []
        rows: list[list[int]] = []
        for sequence, (tree, nodes) in zip(sequences, asks, strict=True):
            trunk = _trunk(tree)
            known = [*sequence.tokens, *tree.tokens[:trunk].tolist()]
            self._shorten(sequence, len(known) - 1)
            above = {node for asked in nodes for node in trees.path_to(tree, asked)}
            fed = np.array(sorted(node for node in above if node >= trunk), dtype=np.int64)
            cache = self._caches[sequence.id]
            draft = trees.take(tree, fed) if len(fed) else None
            passes.append(Pass(cache, known[cache.length :], draft))
            rows.append([0 if n < trunk else 1 + int(np.searchsorted(fed, n)) for n in nodes])
        outputs = self._model.forward(passes)
        for each in passes:
            if each.draft is None:
                self._model.keep(each.cache, len(each.pending), ())
        return [
            [
                sequence.sampler.law(
                    output.logits[row],
                    tree.tokens[list(trees.path_to(tree, node))].tolist(),
                    soft=self._growth.soft,
                )
                for node, row in zip(nodes, picked, strict=True)
            ]
            for sequence, (tree, nodes), output, picked in zip(
                sequences, asks, outputs, rows, strict=True
            )
        ]


def _trunk(tree: TokenTree) -> int:
    """How many nodes, from the root down, every path of the tree starts with.

    They are the nodes 0, 1, ..., since parents come before children.
    """
    trunk = 0
    while trunk < len(tree) and (tree.parents[trunk + 1 :] >= trunk).all():
        trunk += 1
    return trunk


def _growth(name: str, options: Mapping[str, str]) -> dict[str, str]:
    for key in options:
        if key != "growth":
            raise InvalidOption(f"drafter '{name}' has no option {key!r}: use growth")
    return {"named": options["growth"]} if options else {}

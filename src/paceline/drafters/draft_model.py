"""Draft-model speculation (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
arXiv:2302.01318): a smaller target drafts chains or trees.

Drafts share the target's Gumbel noise, or are sampled with q rows where the verifier is a p/q
rule. Its LM head may be cut to some tokens, without training (VocabTrim, Goel et al. 2025,
arXiv:2506.22694). A model that was trained so foretells a whole draft in one forward, with an id
that stands for the tokens to come (PARD, An et al. 2025, arXiv:2504.18583).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.target import Head, Rows, Target, open_for_drafts
from paceline.core.types import Budget, Distribution, IntArray, LogitArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.network.trees import draft_sampling
from paceline.drafters.resources import Loaded, Resources
from paceline.errors import InvalidOption
from paceline.policy.constants import FIRST_READ, OFTEN
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.base import DistributionRequest, TreeExpansion, expand
from paceline.trees.choice import expansion_for


class DraftModel(Drafter):
    """Drafts with any target of the same vocabulary."""

    name: ClassVar[str] = "draft-model"

    def __init__(
        self,
        model: Target,
        vocab_size: int,
        growth: TreeExpansion,
        recent: int = 256,
        to_come: int | None = None,
    ) -> None:
        """Bind the draft model.

        Args:
            model: drafts; it has the target's tokens, and its head may have more or fewer rows,
                or lack some.
            vocab_size: rows of the target's head.
            growth: of trees.
            recent: it reads at most so many tokens of a prompt, the last ones.
            to_come: id that it reads for tokens to come; None for a model that knows none.

        Raises:
            InvalidOption: `recent` is below 1, or the model has no row for `to_come`.
        """
        require(recent >= 1, "recent", recent, "1 or more")
        self._rows = model.capabilities.vocab_size
        known = to_come is None or 0 <= to_come < self._rows
        require(known, "pard_token of the draft model", to_come, f"one of its {self._rows} tokens")
        self._to_come = to_come
        self._depths: dict[int, int] = {}  # of drafts that are asked for
        self._foretold: dict[int, LogitArray] = {}  # by depth, [depth, rows]
        self._size, self._ids = vocab_size, None
        if model.capabilities.head is not None:
            self._ids = np.array(model.capabilities.head, dtype=np.int64)
        elif self._rows != vocab_size:
            self._ids = np.arange(min(vocab_size, self._rows), dtype=np.int64)
        self._model = model
        self._expansion = growth
        self.kind = growth.kind
        self._recent = recent
        self._caches: dict[int, Any] = {}
        self._begins: dict[int, int] = {}  # first token that the draft model has read
        self._asked: dict[int, int] = {}  # drafts
        self._short: set[int] = set()  # that have read less than they may
        self._trunks: dict[int, tuple[int, Sequence[int]]] = {}

    @classmethod
    def create(cls, context: DrafterContext, model: Loaded | None = None) -> Self:
        """Load the draft model, if none is given.

        Option `growth`, or else the verifier, selects the tree expansion. `vocabulary` says which
        tokens may be drafted beside those that end a text: how many of the lowest ids, which are
        the most frequent of most tokenizers, or a file of `paceline train vocabulary`.

        Raises:
            InvalidOption: an option is unknown, an expansion that the verifier does not take, a
                file that does not fit, or there is no draft model.
            RuntimeUnavailable: the runtime cannot leave out tokens.
        """
        options = dict(context.options)
        named, vocabulary = (options.pop(key, "") for key in ("growth", "vocabulary"))
        for key in options.keys() - {"recent"}:
            raise InvalidOption(
                f"drafter '{cls.name}' has no option {key!r}: use growth, recent or vocabulary"
            )
        chosen = arguments(cls, "drafter", options)
        growth = expansion_for(context.accepts, context.shape, named)
        size = context.target.vocab_size
        head: Head | None = None
        if vocabulary:
            ends = context.resources.loaded.source.config.eos_token_ids
            head = lambda rows: draft_vocabulary(vocabulary, min(size, rows), ends)  # noqa: E731
        model = model or cls._load(context.resources, head)
        to_come = model.source.config.token_to_come
        return cls(model.target, size, growth, **chosen, to_come=to_come)

    @classmethod
    def _load(cls, resources: Resources, head: Head | None) -> Loaded:
        return resources.draft_model(cls.name, head=head)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        for sequence, budget in zip(sequences, budgets, strict=True):
            if min(budget.nodes, budget.depth) > 0:
                missing = self._missing(sequence)
                if missing is not None:
                    self._read(sequence, missing)
                self._asked[sequence.id] = self._asked.get(sequence.id, 0) + 1
        self._roll_back(sequences)  # a step that failed half-way left drafted tokens behind

        def distributions(
            indices: Sequence[int], asks: Sequence[DistributionRequest]
        ) -> list[list[Distribution]]:
            return self._distributions([sequences[index] for index in indices], asks)

        rooms = list(map(self._room, sequences))
        self._foretold.clear()
        self._depths = {
            sequence.id: min(budget.nodes, budget.depth, room)
            for sequence, budget, room in zip(sequences, budgets, rooms, strict=True)
        }
        drafts = expand(self._expansion, sequences, budgets, rooms, distributions)
        for sequence, draft in zip(sequences, drafts, strict=True):
            # Every path starts with the trunk, so what is cached of it may agree with the commit.
            if sequence.id in self._caches:
                trunk = draft.tokens[: _trunk(draft)].tolist()
                self._shorten(sequence, len(sequence.tokens) + len(trunk))
                self._trunks[sequence.id] = (len(sequence.tokens), trunk)
        return [replace(draft, source=self.name) for draft in drafts]

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self._roll_back([each.sequence for each in step])

    def unread(self, sequence: Generation) -> int:
        missing = self._missing(sequence)
        return self._behind(sequence) if missing is None else missing

    def close(self, sequence: Generation) -> None:
        self._asked.pop(sequence.id, None)
        self._drop(sequence)

    def _drop(self, sequence: Generation) -> None:
        self._trunks.pop(sequence.id, None)
        self._begins.pop(sequence.id, None)
        self._short.discard(sequence.id)
        cache = self._caches.pop(sequence.id, None)
        if cache is not None:
            self._model.release(cache)

    def _behind(self, sequence: Generation) -> int:
        cache = self._caches[sequence.id]
        return max(0, len(sequence.tokens) - 1 - self._begins[sequence.id] - int(cache.length))

    def _missing(self, sequence: Generation) -> int | None:
        # Last tokens before the root to read anew; None if what is cached will do. Of a long prompt
        # only the end: to read it all takes as long as many drafts save. Less for a draft that may
        # be the only one.
        often = self._asked.get(sequence.id, 0) >= OFTEN
        limit = self._recent if often else min(FIRST_READ, self._recent)
        most = min(len(sequence.tokens), limit) - 1
        known = sequence.id in self._caches
        short = often and sequence.id in self._short
        return None if known and not short and self._behind(sequence) <= max(most, 1) else most

    def _read(self, sequence: Generation, tokens: int) -> None:
        # When a draft is first wanted, which in a batch may be never.
        self._drop(sequence)
        begin = len(sequence.tokens) - 1 - tokens
        cache = open_for_drafts(self._model)
        try:
            if self._room(sequence):
                self._model.prefill(cache, self._known(sequence.tokens[begin:-1]))
        except BaseException:
            self._model.release(cache)
            raise
        self._caches[sequence.id], self._begins[sequence.id] = cache, begin
        if begin and tokens + 1 < self._recent:
            self._short.add(sequence.id)

    def _roll_back(self, sequences: Sequence[Generation]) -> None:
        for sequence in sequences:
            if sequence.id not in self._caches:
                continue
            begin, trunk = self._trunks.pop(sequence.id, (len(sequence.tokens), ()))
            # What was verified, and so committed, may be another drafter's draft.
            pairs = zip(trunk, sequence.tokens[begin:], strict=False)
            agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self._shorten(sequence, min(begin + agreed, len(sequence.tokens) - 1))

    def _shorten(self, sequence: Generation, length: int) -> None:
        cache, begin = self._caches[sequence.id], self._begins[sequence.id]
        if cache.length > length - begin:
            self._model.truncate(cache, max(0, length - begin))

    def _room(self, sequence: Generation) -> int:
        # Remaining tokens of the draft model's context window.
        return max(0, self._model.capabilities.max_context - len(sequence.tokens))

    def _distributions(
        self, sequences: Sequence[Generation], asks: Sequence[DistributionRequest]
    ) -> list[list[Distribution]]:
        if self._to_come is not None:
            return self._of_depths(sequences, asks)
        # The trunk of a tree is fed like committed tokens and stays in the cache: a chain costs one
        # row per token. Branches are fed again at every level, as a draft.
        asked: list[Rows] = []
        rows: list[list[int]] = []
        for sequence, (tree, nodes) in zip(sequences, asks, strict=True):
            trunk = _trunk(tree)
            known = [*sequence.tokens, *tree.tokens[:trunk].tolist()]
            self._shorten(sequence, len(known) - 1)
            above = {node for asked in nodes for node in trees.path_to(tree, asked)}
            fed = np.array(sorted(node for node in above if node >= trunk), dtype=np.int64)
            cache = self._caches[sequence.id]
            draft = trees.take(tree, fed) if len(fed) else None
            begin = self._begins[sequence.id]
            asked.append(Rows.draft(cache, self._known(known[begin + cache.length :]), draft))
            rows.append([0 if n < trunk else 1 + int(np.searchsorted(fed, n)) for n in nodes])
        outputs = self._model.forward(asked)
        for each in asked:
            if each.tree is None:
                self._model.keep(each.cache, each.num_new, ())
        return [
            [
                self._distribution(
                    sequence,
                    output.logits[row],
                    tree.tokens[list(trees.path_to(tree, node))].tolist(),
                )
                for node, row in zip(nodes, picked, strict=True)
            ]
            for sequence, (tree, nodes), output, picked in zip(
                sequences, asks, outputs, rows, strict=True
            )
        ]

    def _of_depths(
        self, sequences: Sequence[Generation], asks: Sequence[DistributionRequest]
    ) -> list[list[Distribution]]:
        # A distribution hangs on the depth alone. The rows of tokens to come are not kept.
        assert self._to_come is not None
        new = [sequence for sequence in sequences if sequence.id not in self._foretold]
        asked: list[Rows] = []
        for sequence in new:
            self._shorten(sequence, len(sequence.tokens) - 1)
            cache, begin = self._caches[sequence.id], self._begins[sequence.id]
            ahead = [self._to_come] * (self._depths[sequence.id] - 1)
            known = self._known(sequence.tokens[begin + cache.length :])
            asked.append(Rows.draft(cache, known, trees.chain(ahead) if ahead else None))
        for each, sequence, output in zip(
            asked, new, self._model.forward(asked) if asked else (), strict=True
        ):
            self._model.keep(each.cache, each.num_new, ())
            self._foretold[sequence.id] = output.logits.copy()
        return [
            [
                self._distribution(
                    sequence, self._foretold[sequence.id][len(path)], tree.tokens[path].tolist()
                )
                for path in (list(trees.path_to(tree, node)) for node in nodes)
            ]
            for sequence, (tree, nodes) in zip(sequences, asks, strict=True)
        ]

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        # Rows that the draft model lacks are read as another token: a text has hardly any.
        if self._rows >= self._size:
            return tokens
        return [token if token < self._rows else 0 for token in tokens]

    def _distribution(
        self, sequence: Generation, row: LogitArray, path: Sequence[int]
    ) -> Distribution:
        sampler, soft = sequence.sampler, self._expansion.soft
        if self._ids is None:
            return sampler.proposal(row, path, soft=soft)
        return draft_sampling(
            sampler, row[: len(self._ids)], self._ids, self._size, path, soft=soft
        )


def draft_vocabulary(named: str, size: int, ends: Collection[int]) -> IntArray:
    """Return the ids below `size` that a vocabulary names, and the end tokens, ascending.

    Raises InvalidOption for a file that does not fit.
    """
    if named.isdecimal() and int(named) >= 1:
        ids = np.arange(min(int(named), size), dtype=np.int64)
    else:
        try:
            ids = np.array(json.loads(Path(named).read_text(encoding="utf-8"))["tokens"], np.int64)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidOption(
                f"vocabulary {named!r} is neither a number of tokens nor a file of `paceline train "
                f"vocabulary`: {error}"
            ) from error
        if ids.ndim != 1 or not len(ids) or not 0 <= ids.min() <= ids.max() < size:
            raise InvalidOption(f"{named} does not hold token ids below {size}: write it anew")
    return np.union1d(ids, np.array([end for end in ends if end < size], dtype=np.int64))


def _trunk(tree: TokenTree) -> int:
    # Number of nodes that every path starts with: 0, 1, ..., since parents come before children.
    trunk = 0
    while trunk < len(tree) and (tree.parents[trunk + 1 :] >= trunk).all():
        trunk += 1
    return trunk


class Quantised(DraftModel):
    """Draft with the target at int8."""

    name: ClassVar[str] = "quantised"
    requires = "a target at fp32 on runtime cpu; its weights once more, at int8"
    paper = "after QuantSpec, Tiwari et al. 2025, arXiv:2502.10424"

    @classmethod
    def _load(cls, resources: Resources, head: Head | None) -> Loaded:
        return resources.coarser(cls.name, head)

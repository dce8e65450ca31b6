"""A second, smaller target as drafter (Leviathan et al. 2023; Chen et al. 2023).

The draft model keeps its own cache per sequence and decodes a chain ahead of the target. Under
coupled verification it uses the noise that the target will use, so both agree as often as their
laws allow; under p/q rules it draws from its law and reports the rows it drew from.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any, ClassVar, Self

from paceline import tree as trees
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import InvalidOption
from paceline.randomness import Draw, Purpose
from paceline.sequence import Sequence
from paceline.target import Output, Pass, Target
from paceline.types import ROOT, Budget, DraftLaw, Law, TokenTree, Verdict
from paceline.verifiers.coupled import gumbel_max


class DraftModel(Drafter):
    """Drafts with any target that has the same vocabulary."""

    name: ClassVar[str] = "draft-model"

    def __init__(self, model: Target, vocab_size: int, *, report_law: bool) -> None:
        """Bind the draft model.

        Args:
            model: the draft model.
            vocab_size: vocabulary of the target.
            report_law: draw independently and report q rows (for p/q rules) instead of sharing
                the target's noise.

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
        self._report_law = report_law
        self._caches: dict[int, Any] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the draft model that the user named."""
        return cls(context.draft_model(), context.target.vocab_size, report_law=context.report_law)

    def open(self, sequence: Sequence) -> None:
        """Prefill the draft model's own cache."""
        cache = self._caches[sequence.id] = self._model.open()
        if self._room(sequence):
            self._model.prefill(cache, sequence.tokens[:-1])

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One chain per sequence, level by level over the whole batch."""
        self._roll_back(sequences)  # a step that failed half-way left drafted tokens behind
        drafts: list[list[int]] = [[] for _ in sequences]
        rows: list[dict[int, Law]] = [{} for _ in sequences]
        limits = [
            min(b.nodes, b.depth, self._room(s)) for s, b in zip(sequences, budgets, strict=True)
        ]
        for depth in range(max(limits, default=0)):
            live = [i for i, limit in enumerate(limits) if depth < limit]
            laws = self._advance([sequences[i] for i in live], [drafts[i] for i in live])
            for i, law in zip(live, laws, strict=True):
                if self._report_law:
                    rows[i][depth - 1 if depth else ROOT] = law
                drafts[i].append(self._draw(sequences[i], law, depth))
        return [
            trees.chain(draft, self.name, DraftLaw("iid", q) if self._report_law else None)
            if draft
            else trees.EMPTY
            for draft, q in zip(drafts, rows, strict=True)
        ]

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
        cache = self._caches.pop(sequence.id, None)
        if cache is not None:
            self._model.release(cache)

    def _roll_back(self, sequences: List[Sequence]) -> None:
        for sequence in sequences:
            # The accepted path and the next token were appended and drafts are never pruned, so
            # all that is cached before the last token agrees with what was committed.
            cache = self._caches[sequence.id]
            self._model.truncate(cache, min(cache.length, len(sequence.tokens) - 1))

    def _room(self, sequence: Sequence) -> int:
        """How deep the draft model's own context still reaches."""
        return max(0, self._model.capabilities.max_context - len(sequence.tokens))

    def _advance(self, sequences: List[Sequence], drafts: List[list[int]]) -> list[Law]:
        """Feed each draft model what it has not cached yet; its law of the next token."""
        passes = []
        for sequence, draft in zip(sequences, drafts, strict=True):
            cache = self._caches[sequence.id]
            passes.append(Pass(cache, [*sequence.tokens, *draft][cache.length :]))
        outputs = self._model.forward(passes)
        for each in passes:
            self._model.keep(each.cache, len(each.pending), ())
        return [
            sequence.sampler.law(output.logits[0], draft)
            for sequence, draft, output in zip(sequences, drafts, outputs, strict=True)
        ]

    def _draw(self, sequence: Sequence, law: Law, depth: int) -> int:
        position = len(sequence.tokens) + depth
        if not self._report_law:
            return gumbel_max(law, position, sequence.randomness)
        draw = Draw(position, Purpose.DRAFT, root=len(sequence.tokens) - 1)
        return law.token(sequence.randomness.choice(law.probs, draw))

"""Hierarchical speculative decoding (Globerson et al. 2025, arXiv:2510.19705).

Each model of a stack decodes with the one below as its drafter. Its output, a chain with q
rows of its own distribution, is the draft for the level above. Chain length depends on earlier
acceptance only (predictability), so any p/q rule may verify it.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from paceline import tree as trees
from paceline.drafters.ahead import LONGEST, Ahead
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.none import NoDrafter
from paceline.drafters.prompt_lookup import PromptLookup
from paceline.errors import InvalidOption
from paceline.options import arguments
from paceline.sampling import NodeLaws
from paceline.sequence import Sequence
from paceline.target import Output, Pass, Target
from paceline.types import ROOT, Budget, DraftLaw, TokenTree, Verdict
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.coupled import Coupled
from paceline.verifiers.sample_match import SampleMatch


@dataclass(frozen=True, slots=True)
class Level:
    """One model of a cascade.

    Attributes:
        model: not the target, and not used at two levels.
        least: tokens after which the chain goes up; None fills the budget.
        nodes: most nodes drafted by the level below at once.
    """

    model: Target
    least: int | None = None
    nodes: int = 6


class Cascade(Drafter):
    """Drafts with a stack of models that share the target's vocabulary."""

    name: ClassVar[str] = "cascade"

    def __init__(
        self,
        levels: List[Level],
        vocab_size: int,
        *,
        report_law: bool,
        bottom: Drafter | None = None,
        rule: Verifier | None = None,
    ) -> None:
        """Stack the models, cheapest first.

        Args:
            report_law: sample independently and report q rows (p/q rules), instead of sharing the
                target's Gumbel noise.
            bottom: drafts for the cheapest model; none by default. Reopened on every rollback.
            rule: lossless rule for chains with q rows; default block verification.

        Raises:
            InvalidOption: no level, different vocabularies, or a size below 1.
        """
        if not levels:
            raise InvalidOption("a cascade needs a model: give one or more levels")
        source: _Source = _Bottom(bottom or NoDrafter())
        for level in levels:
            theirs = level.model.capabilities.vocab_size
            if theirs != vocab_size:
                raise InvalidOption(
                    f"a model of the cascade has {theirs} tokens and the target {vocab_size}: "
                    "use models of the target's family, with the same tokenizer"
                )
            if level.nodes < 1 or (level.least is not None and level.least < 1):
                raise InvalidOption("least and nodes of a cascade's level must be 1 or more")
            source = _Model(level, source, rule or Block(), report_law)
        self._source = source
        self.kind = "iid" if report_law else None

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build prompt lookup, draft model, target."""
        arguments(cls, "drafter", context.options, "report_law")  # there are none to set
        return cls(
            [Level(context.draft_model())],
            context.target.vocab_size,
            report_law=context.report_law,
            bottom=PromptLookup(),
        )

    def open(self, sequence: Sequence) -> None:
        self._source.open(sequence)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        return self._source.propose(sequences, budgets)

    def close(self, sequence: Sequence) -> None:
        self._source.close(sequence)

    def reset(self) -> None:
        self._source.reset()


class _Source(Protocol):
    # Drafts for a model. Sequences may shrink or change between calls.

    # True if `observe` needs hidden states.
    hidden: bool

    def open(self, sequence: Sequence) -> None: ...

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]: ...

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None: ...

    def close(self, sequence: Sequence) -> None: ...

    def reset(self) -> None: ...


class _Bottom:
    # Drafters expect sequences to grow only: reopen on every rollback.

    def __init__(self, drafter: Drafter) -> None:
        self.hidden = drafter.needs.hidden
        self._drafter = drafter
        self._seen: dict[int, list[int]] = {}

    def open(self, sequence: Sequence) -> None:
        self._seen[sequence.id] = sequence.tokens
        self._drafter.open(sequence)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        for sequence in sequences:
            seen = self._seen[sequence.id]
            if sequence.tokens[: len(seen)] != seen:
                self._drafter.close(sequence)
                self._drafter.open(sequence)
            self._seen[sequence.id] = sequence.tokens
        return self._drafter.propose(sequences, budgets)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        self._drafter.observe(sequences, drafts, verdicts, outputs)

    def close(self, sequence: Sequence) -> None:
        if self._seen.pop(sequence.id, None) is not None:
            self._drafter.close(sequence)

    def reset(self) -> None:
        self._drafter.reset()


class _Model:
    hidden = False

    def __init__(self, level: Level, below: _Source, rule: Verifier, report_law: bool) -> None:
        self._model = level.model
        self._least = LONGEST if level.least is None else level.least
        self._nodes = level.nodes
        self._below = below
        self._report_law = report_law
        self._match: Verifier = SampleMatch() if report_law else Coupled()
        self._rule = rule if report_law else self._match
        self._caches: dict[int, Any] = {}
        self._cached: dict[int, list[int]] = {}

    def open(self, sequence: Sequence) -> None:
        cache = self._caches[sequence.id] = self._model.open()
        self._cached[sequence.id] = sequence.tokens
        if self._room(sequence):
            self._model.prefill(cache, sequence.tokens[:-1])
        self._below.open(sequence)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        runs = [Ahead(sequence, fresh=self._report_law) for sequence in sequences]
        limits = [
            min(budget.nodes, budget.depth, self._room(sequence), LONGEST)
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        for run in runs:
            self._roll_back(run.sequence)
        while live := [
            (run, limit - len(run))
            for run, limit in zip(runs, limits, strict=True)
            if len(run) < min(self._least, limit)
        ]:
            self._round(live)
        return [self._chain(run) for run in runs]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        # The cache is rolled back to the accepted tokens in `propose`.
        ...

    def close(self, sequence: Sequence) -> None:
        self._below.close(sequence)
        self._cached.pop(sequence.id, None)
        cache = self._caches.pop(sequence.id, None)
        if cache is not None:
            self._model.release(cache)

    def reset(self) -> None:
        self._below.reset()

    def _round(self, live: List[tuple[Ahead, int]]) -> None:
        aheads = [run.sequence for run, _ in live]
        # The last token of a round is the model's own.
        budgets = [Budget(self._nodes, min(self._nodes, room - 1)) for _, room in live]
        drafts = self._below.propose(aheads, budgets)
        passes = []
        for ahead, draft in zip(aheads, drafts, strict=True):
            cache = self._caches[ahead.id]
            passes.append(Pass(cache, ahead.tokens[cache.length :], draft, self._below.hidden))
        outputs = self._model.forward(passes)
        verdicts = []
        for (run, _), draft, each, output in zip(live, drafts, passes, outputs, strict=True):
            kind = None if draft.law is None else draft.law.kind
            rule = self._rule if kind in self._rule.accepts else self._match
            ahead = run.sequence
            laws = NodeLaws(ahead.sampler, draft, output, len(ahead.tokens), rule.name)
            verdict = rule.verify(draft, laws, ahead.randomness)
            self._model.keep(each.cache, len(each.pending), verdict.path)
            run.extend(
                [*draft.tokens[list(verdict.path)].tolist(), verdict.next_token],
                [laws.law(node) for node in (ROOT, *verdict.path)] if self._report_law else [],
            )
            verdicts.append(verdict)
        self._below.observe(aheads, drafts, verdicts, outputs)

    def _chain(self, run: Ahead) -> TokenTree:
        if not len(run):
            return trees.EMPTY
        law = DraftLaw("iid", dict(enumerate(run.rows, ROOT))) if self._report_law else None
        return trees.chain(run.tokens, Cascade.name, law)

    def _room(self, sequence: Sequence) -> int:
        # Remaining tokens of the model's context window.
        return max(0, self._model.capabilities.max_context - len(sequence.tokens))

    def _roll_back(self, sequence: Sequence) -> None:
        cache, cached = self._caches[sequence.id], self._cached[sequence.id]
        length = min(cache.length, len(sequence.tokens) - 1)
        while sequence.tokens[:length] != cached[:length]:
            length -= 1
        if length < cache.length:
            self._model.truncate(cache, length)
        # The cache holds the head of this list, also when the list grows.
        self._cached[sequence.id] = sequence.tokens

"""The decode loop: draft, verify in one pass, keep the accepted path, commit.

`AutoregressiveDecoder.step` is all of speculative decoding on one screen. It works on a list of
sequences; a batch is ragged, every sequence accepts its own number of tokens, nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from time import perf_counter

from paceline import tree as trees
from paceline.controllers.base import Controller
from paceline.drafters.base import Drafter
from paceline.sampling import NodeLaws, logprobs
from paceline.sequence import Sequence
from paceline.stopping import StopRules, TextWatch
from paceline.target import Output, Pass, Target
from paceline.types import Budget, FinishReason, TokenTree, Verdict
from paceline.verifiers.base import Verifier


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that one step added to a sequence.

    Attributes:
        sequence: the sequence, already extended.
        tokens: the new tokens, at least one.
        sources: per token, the drafter it came from, or None if the target chose it.
        finish_reason: why the sequence ended with them, or None.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    finish_reason: FinishReason | None


class AutoregressiveDecoder:
    """Decodes a batch of sequences with one target, drafter, verifier and controller."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        controller: Controller,
        stops: StopRules,
    ) -> None:
        """Bind the parts; all but `stops` may be replaced between steps."""
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.controller = controller
        self.stops = stops
        self._watches: dict[int, TextWatch] = {}

    def open(self, sequence: Sequence, watch: TextWatch | None = None) -> None:
        """Admit a sequence: prefill all of its prompt but the root.

        Raises:
            OutOfMemory: the target's cache has no room for the prompt.
        """
        begin = perf_counter()
        sequence.cache = self.target.open()
        try:
            wanted = self.drafter.needs.features
            features = self.target.prefill(sequence.cache, sequence.tokens[:-1], wanted)
            prefilled = perf_counter()
            self.drafter.open(sequence)
            if features is not None:
                self.drafter.read(sequence, features)
        except BaseException:
            self.close(sequence)
            raise
        if watch is not None:
            self._watches[sequence.id] = watch
        sequence.stats.prefill_seconds += prefilled - begin
        sequence.stats.draft_seconds += perf_counter() - prefilled

    def step(self, sequences: List[Sequence]) -> list[Commit]:
        """One round for every sequence; each commits at least one token.

        Sequences whose commit has a finish reason must be closed by the caller.
        """
        begin = perf_counter()
        budgets = list(map(self._cap, sequences, self.controller.budgets(sequences)))
        start_draft = perf_counter()
        proposed = self.drafter.propose(sequences, budgets)
        end_draft = perf_counter()
        drafts = self.controller.select(sequences, proposed)
        needs = self.drafter.needs
        hidden = needs.hidden or self.verifier.needs.hidden
        shown = list(map(self.verifier.extend, drafts))
        passes = [
            Pass(s.cache, s.tokens[-1:], draft, hidden, needs.features)
            for s, draft in zip(sequences, shown, strict=True)
        ]
        start_forward = perf_counter()
        outputs = self.target.forward(passes, self.controller.rows)
        end_forward = perf_counter()
        verdicts = list(map(self._verify, sequences, shown, outputs))
        start_keep = perf_counter()
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            self.target.keep(sequence.cache, 1, verdict.path)
        end_keep = perf_counter()
        commits = list(map(self._commit, sequences, drafts, verdicts, outputs))
        start_observe = perf_counter()
        self.drafter.observe(sequences, drafts, verdicts, outputs)
        end_observe = perf_counter()
        drafting = (end_draft - start_draft) + (end_observe - start_observe)
        forwarding = (end_forward - start_forward) + (end_keep - start_keep)
        self.controller.observe(sequences, drafts, verdicts, drafting, forwarding)
        overhead = perf_counter() - begin - drafting - forwarding
        for sequence in sequences:
            stats = sequence.stats
            stats.draft_seconds += drafting / len(sequences)
            stats.forward_seconds += forwarding / len(sequences)
            stats.overhead_seconds += overhead / len(sequences)
        return commits

    def close(self, sequence: Sequence) -> None:
        """Forget a sequence: release its cache and tell drafter and controller."""
        self._watches.pop(sequence.id, None)
        self.drafter.close(sequence)
        self.controller.close(sequence)
        if sequence.cache is not None:
            self.target.release(sequence.cache)
            sequence.cache = None

    def _cap(self, sequence: Sequence, budget: Budget) -> Budget:
        """No more than the request allows, and no deeper than tokens are left: the last one always
        comes from the target."""
        budget = sequence.speculation.cap(budget)
        context = self.target.capabilities.max_context - len(sequence.tokens)
        depth = max(0, min(budget.depth, sequence.room - 1, context - 1))
        return Budget(budget.nodes if depth else 0, depth)

    def _verify(self, sequence: Sequence, draft: TokenTree, output: Output) -> Verdict:
        rule = self.verifier.name
        laws = NodeLaws(sequence.sampler, draft, output, len(sequence.tokens), rule)
        return self.verifier.verify(draft, laws, sequence.randomness)

    def _commit(
        self, sequence: Sequence, draft: TokenTree, verdict: Verdict, output: Output
    ) -> Commit:
        run = [*draft.tokens[list(verdict.path)].tolist(), verdict.next_token]
        kept, reason = self.stops.cut(sequence, run, self._watches.get(sequence.id))
        tokens = run[:kept]
        accepted = min(kept, len(verdict.path))
        sources = [*map(draft.origin, verdict.path[:accepted])] + [None] * (kept - accepted)
        top = sequence.params.logprobs
        if top is not None:
            rows = (0, *(node + 1 for node in verdict.path))
            sequence.logprobs += [
                logprobs(output.logits[r], t, top) for r, t in zip(rows, tokens, strict=False)
            ]
        sequence.tokens += tokens
        sequence.sampler.commit(tokens)
        sequence.sources += sources
        sequence.finish_reason = reason
        depth = int(trees.depths(draft).max()) if len(draft) else 0
        sequence.stats.record(depth, len(draft), accepted)
        sequence.stats.committed_tokens += kept
        return Commit(sequence, tuple(tokens), tuple(sources), reason)

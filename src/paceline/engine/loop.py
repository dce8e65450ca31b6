"""Decode loop of speculative decoding: draft, verify in one target forward, commit.

Batches are ragged: each sequence accepts its own number of tokens, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from time import perf_counter
from typing import NamedTuple

from paceline.core import tree as trees
from paceline.core.target import Output, Pass, Target
from paceline.core.types import Budget, FinishReason, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.engine.memory import fitted, memory_of
from paceline.engine.prefill import Chunk, Prefiller
from paceline.engine.stopping import StopRules, TextWatch
from paceline.policy.controller import Controller
from paceline.sampling.sampler import TreeDistributions, logprobs
from paceline.sampling.sequence import Sequence
from paceline.verifiers.base import Verifier

# Result of a decoding step.


class Commit(NamedTuple):
    """Tokens that one step added to a sequence (already extended), at least one.

    `sources` names per token its drafter, or None if the target chose it.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    sources: tuple[str | None, ...]
    finish_reason: FinishReason | None


class AutoregressiveDecoder:
    """Decode a batch of sequences with one target, drafter, verifier and controller."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        controller: Controller,
        stops: StopRules,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.controller = controller
        self.stops = stops
        self.memory = memory_of(target)
        self._reader = Prefiller(target)
        self._watches: dict[int, TextWatch] = {}

    def admit(self, sequence: Sequence, watch: TextWatch | None = None) -> None:
        """Open a sequence's cache. Prefill its tokens in chunks before `begin`."""
        self._reader.open(sequence, self.drafter.needs)
        if watch is not None:
            self._watches[sequence.id] = watch

    def begin(self, sequence: Sequence) -> None:
        """Open the drafter of an admitted sequence once its tokens up to the root are cached."""
        self._reader.share(sequence, self.drafter.needs)
        if sequence.unread:
            return
        begin = perf_counter()
        try:
            self.drafter.open(sequence)
            features = self._reader.features(sequence)
            if features is not None:
                self.drafter.read(sequence, features)
        except BaseException:
            self.drafter.close(sequence)
            raise
        self._reader.done(sequence)
        sequence.stats.draft_seconds += perf_counter() - begin

    def open(self, sequence: Sequence, watch: TextWatch | None = None) -> None:
        """Admit a sequence, prefill its prompt and begin it; raises OutOfMemory."""
        begin = perf_counter()
        self.admit(sequence, watch)
        try:
            self._reader.read_all(sequence, self.drafter.needs)
            sequence.stats.prefill_seconds += perf_counter() - begin
            self.begin(sequence)
        except BaseException:
            self.close(sequence)
            raise

    def read(self, chunks: List[Chunk]) -> None:
        """Prefill chunks of admitted sequences in a forward of their own."""
        begin = perf_counter()
        outputs = self.target.forward(self._reader.passes(chunks, self.drafter.needs))
        self._reader.take(chunks, outputs, perf_counter() - begin)

    def step(self, sequences: List[Sequence], chunks: List[Chunk] = ()) -> list[Commit]:
        """Decode one step; every sequence commits at least one token. Also prefills `chunks`.

        The caller must close sequences whose commit has a finish reason.
        """
        begin = perf_counter()
        beside = self.controller.beside = sum(chunk.tokens for chunk in chunks)
        capped = list(map(self._cap, sequences, self.controller.budgets(sequences)))
        budgets = fitted(self.memory, sequences, capped)
        start_draft = perf_counter()
        proposed = self.drafter.propose(sequences, budgets)
        end_draft = perf_counter()
        drafts = self.controller.select(sequences, proposed)
        needs = self.drafter.needs_of(sequences)
        hidden = needs.hidden or self.verifier.needs.hidden
        shown = list(map(self.verifier.extend, drafts))
        passes = [
            Pass(s.cache, s.tokens[-1:], draft, hidden, needs.features, s.sampler.greedy_argmax)
            for s, draft in zip(sequences, shown, strict=True)
        ]
        start_forward = perf_counter()
        passes += self._reader.passes(chunks, self.drafter.needs)
        outputs = self.target.forward(passes, self.controller.rows)
        end_forward = perf_counter()
        reading = 0.0
        if chunks:
            share = beside / (beside + len(sequences) + sum(map(len, shown)))
            reading = share * (end_forward - start_forward)
            self._reader.take(chunks, outputs[len(sequences) :], reading)
            del outputs[len(sequences) :]
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
        forwarding = (end_forward - start_forward) - reading + (end_keep - start_keep)
        self.controller.observe(sequences, drafts, verdicts, drafting, forwarding)
        overhead = perf_counter() - begin - drafting - forwarding - reading
        for sequence in sequences:
            stats = sequence.stats
            stats.draft_seconds += drafting / len(sequences)
            stats.forward_seconds += forwarding / len(sequences)
            stats.overhead_seconds += overhead / len(sequences)
        return commits

    def close(self, sequence: Sequence) -> None:
        """Release a sequence; an unfinished one may be admitted again later and then continues."""
        self._watches.pop(sequence.id, None)
        self.drafter.close(sequence)
        self.controller.close(sequence)
        self._reader.close(sequence)

    def _cap(self, sequence: Sequence, budget: Budget) -> Budget:
        # The last token of a request always comes from the target, so drafts leave room for it.
        budget = sequence.speculation.cap(budget)
        context = self.target.capabilities.max_context - len(sequence.tokens)
        depth = max(0, min(budget.depth, sequence.room - 1, context - 1))
        if depth == budget.depth:
            return budget
        return Budget(budget.nodes if depth else 0, depth, budget.least)

    def _verify(self, sequence: Sequence, draft: TokenTree, output: Output) -> Verdict:
        rule = self.verifier.name
        distributions = TreeDistributions(
            sequence.sampler, draft, output, len(sequence.tokens), rule
        )
        return self.verifier.verify(draft, distributions, sequence.randomness)

    def _commit(
        self, sequence: Sequence, draft: TokenTree, verdict: Verdict, output: Output
    ) -> Commit:
        run = [*map(draft.tokens.item, verdict.path), verdict.next_token]
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
        sequence.stats.record(trees.deepest(draft), len(draft), accepted)
        sequence.stats.committed_tokens += kept
        return Commit(sequence, tuple(tokens), tuple(sources), reason)

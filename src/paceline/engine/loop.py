"""Decode loop of speculative decoding: draft, verify in one target forward, commit.

Batches are ragged: each sequence accepts its own number of tokens, without padding.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as List
from dataclasses import replace
from time import perf_counter
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.metrics import Clock
from paceline.core.target import Output, Pass, Target
from paceline.core.types import Budget, Denoising, Described, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.engine.constrained import constrained
from paceline.engine.decoder import Commit
from paceline.engine.isolation import IsolatedDrafter
from paceline.engine.memory import fitted, memory_of
from paceline.engine.predicted import SOURCE, Follower, depths
from paceline.engine.prefill import Chunk, Prefiller
from paceline.engine.stopping import StopRules, TextWatch
from paceline.errors import InvalidOption
from paceline.policy.controller import Controller
from paceline.policy.cost import CostModel
from paceline.sampling.sampler import TreeDistributions, logprobs
from paceline.sampling.sequence import Sequence
from paceline.verifiers.base import Verifier

_LOG = logging.getLogger(__name__)

# Sources of drafts that come with a request. Policies learn nothing from them.
_CLIENT = "client"
_FOREIGN = (_CLIENT, SOURCE)

# Kept after an error, which ends its sequence: one `keep` follows each forward.
_NOTHING = Verdict((), -1)


class AutoregressiveDecoder(Described):
    """Decode a batch of sequences with one target, drafter, verifier and controller.

    Errors are raised. After `isolate` those of one sequence are in its commit, and those of the
    drafter cost nothing but drafts.
    """

    name = "autoregressive"
    guarantee = "that of its verifier"

    autoregressive: ClassVar[bool] = True

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        controller: Controller,
        stops: StopRules,
    ) -> None:
        self.target = target
        self._drafting = IsolatedDrafter(drafter)
        self.verifier = verifier
        self.controller = controller
        self.stops = stops
        self.memory = memory_of(target)
        self._prefiller = Prefiller(target)
        self._watches: dict[int, TextWatch] = {}
        self._errors: dict[int, Exception] = {}
        self._followers: dict[int, Follower] = {}

    @property
    def drafter(self) -> Drafter:
        return self._drafting.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter) -> None:
        self._drafting.drafter = drafter

    @property
    def costs(self) -> CostModel | None:
        return self.controller.costs

    @property
    def rule(self) -> str:
        return self.verifier.name

    def isolate(self) -> None:
        """From now on report the error of a sequence in its commit."""
        self._drafting.strict = False

    def check(
        self, params: SamplingParams, denoising: Denoising | None, constrained: bool = False
    ) -> None:
        if denoising is not None:
            raise InvalidOption(
                "denoising is for models that fill a canvas, loaded with a sampler: leave it out"
            )
        if not params.greedy and self.verifier.greedy_only:
            raise InvalidOption(
                f"verifier '{self.rule}' cannot sample at temperature {params.temperature}: "
                "use verifier 'coupled' or temperature 0"
            )

    def waiting(self, count: int) -> None:
        self.controller.queue = count

    def resume(self, sequence: Sequence, tokens: List[int]) -> None:
        sequence.sampler.commit(tokens)

    def admit(
        self,
        sequence: Sequence,
        watch: TextWatch | None = None,
        sibling: Sequence | None = None,
    ) -> None:
        """Open a sequence's cache. Prefill its tokens in chunks before `begin`.

        A `sibling` has read the same prompt, and shares what it has cached of it.
        """
        self._prefiller.open(sequence, self.drafter.needs, sibling)
        if watch is not None:
            self._watches[sequence.id] = watch

    def begin(self, sequence: Sequence) -> None:
        """Open the drafter of an admitted sequence once its tokens up to the root are cached."""
        self._prefiller.share(sequence, self.drafter.needs)
        if sequence.unread:
            return
        begin = perf_counter()
        self._drafting.open(sequence, self._prefiller.features(sequence))
        self._prefiller.done(sequence)
        sequence.stats.draft_seconds += perf_counter() - begin

    def open(self, sequence: Sequence, watch: TextWatch | None = None) -> None:
        """Admit a sequence, prefill its prompt and begin it; raises OutOfMemory."""
        begin = perf_counter()
        self.admit(sequence, watch)
        try:
            self._prefiller.read_all(sequence, self.drafter.needs)
            sequence.stats.prefill_seconds += perf_counter() - begin
            self.begin(sequence)
        except BaseException:
            self.close(sequence)
            raise

    def read(self, chunks: List[Chunk]) -> list[Commit]:
        """Prefill chunks of admitted sequences in a forward of their own; return errors only."""
        begin = perf_counter()
        outputs = self.target.forward(self._prefiller.passes(chunks, self.drafter.needs))
        return self._take(chunks, outputs, perf_counter() - begin)

    def step(
        self, sequences: List[Sequence], chunks: List[Chunk] = (), *, drafts: bool = True
    ) -> list[Commit]:
        """Decode one step; every sequence commits at least one token. Also prefills `chunks`.

        The caller must close sequences whose commit has a finish reason or an error. Errors of
        chunks stand last. An exception, of the forward as a whole, leaves all unchanged.
        """
        clock = Clock()
        self._errors.clear()
        self.controller.beside = sum(chunk.tokens for chunk in chunks)
        selected = [trees.EMPTY] * len(sequences)
        if drafts:
            budgets, given = self._budgets(sequences)
            with clock("draft"):
                proposed = self._drafting.propose(sequences, budgets)
                for place, draft in given.items():
                    proposed[place] = draft
                if any(each.sampler.constraint is not None for each in sequences):
                    proposed = self._constrained(sequences, proposed)
            # What comes with a request is sized already, and teaches the controller nothing.
            own = [trees.EMPTY if i in given else each for i, each in enumerate(proposed)]
            selected = self.controller.select(sequences, own)
            for place in given:
                selected[place] = proposed[place]
        shown = list(map(self.verifier.extend, selected))
        passes = self._passes(sequences, shown)
        with clock("forward"):
            passes += self._prefiller.passes(chunks, self.drafter.needs)
            outputs = self._drafting.forward(self.target, passes)
        failed = []
        if chunks:
            rows = len(sequences) + sum(map(len, shown))
            failed = self._take_chunks(chunks, outputs, rows, clock)
        verdicts = list(map(self._verify, sequences, shown, outputs))
        with clock("forward"):
            for sequence, verdict in zip(sequences, verdicts, strict=True):
                self._keep(sequence, verdict)
        commits = list(map(self._commit, sequences, selected, verdicts, outputs))
        steps = zip(sequences, selected, verdicts, outputs, strict=True)
        told = [each for each, done in zip(steps, commits, strict=True) if done.error is None]
        for sequence, _, verdict, output in told:
            self._prefiller.committed(sequence, output.features, verdict.path)
        with clock("draft"):
            self._drafting.observe(told)
        self._learn([each for each in told if each[1].source not in _FOREIGN], clock)
        for sequence in sequences:
            sequence.stats.add_step(clock, 1 / len(sequences))
        return commits + failed

    def close(self, sequence: Sequence) -> None:
        """Release a sequence; an unfinished one may be admitted again later and then continues."""
        self._watches.pop(sequence.id, None)
        self._followers.pop(sequence.id, None)
        self._drafting.close(sequence)
        self.controller.close(sequence)
        self._prefiller.close(sequence)

    def _learn(self, told: List[tuple[Sequence, TokenTree, Verdict, Output]], clock: Clock) -> None:
        if not told:
            return
        sequences, drafts, verdicts, _ = zip(*told, strict=True)
        seconds = clock.seconds["draft"] - self.drafter.tried, clock.seconds["forward"]
        try:
            self.controller.observe(sequences, drafts, verdicts, *seconds)
        except Exception as error:  # what was committed stands
            if self._drafting.strict:
                raise
            _LOG.warning("controller '%s' failed to learn: %s", self.controller.name, error)

    def _budgets(self, sequences: List[Sequence]) -> tuple[list[Budget], dict[int, TokenTree]]:
        # Budgets of the drafter, and by place the drafts that stand for its own.
        asked = list(self.controller.budgets(sequences))
        given = self._of_clients(sequences)
        for place, draft in given.items():
            asked[place] = Budget(len(draft), len(draft))
        asked = fitted(self.memory, sequences, list(map(self._cap, sequences, asked)))
        for place, draft in given.items():
            given[place] = trees.head(draft, min(asked[place].nodes, asked[place].depth))
            asked[place] = Budget(0, 0)
        return asked, given

    def _of_clients(self, sequences: List[Sequence]) -> dict[int, TokenTree]:
        out: dict[int, TokenTree] = {}
        asked = (each.speculation for each in sequences)
        if None not in self.verifier.accepts or not any(a.draft or a.prediction for a in asked):
            return out
        reach: list[list[float]] = [[]] * len(sequences)
        for place, each in enumerate(sequences):
            # A draft is of the beginning: once a token is committed, it has stood or fallen.
            if each.speculation.draft and not each.stats.committed_tokens:
                out[place] = trees.chain(each.speculation.draft, _CLIENT)
            elif each.speculation.prediction:
                reach[place] = self._follower(each).reach()
        for place, count in enumerate(depths(reach, self.costs, self.controller.beside)):
            if count:
                ahead = self._followers[sequences[place].id].next(count)
                out[place] = trees.chain(ahead, SOURCE)
        return out

    def _follower(self, sequence: Sequence) -> Follower:
        if sequence.id not in self._followers:
            self._followers[sequence.id] = Follower(sequence.speculation.prediction)
        self._followers[sequence.id].read(sequence.tokens, sequence.prompt_length)
        return self._followers[sequence.id]

    def _constrained(self, sequences: List[Sequence], drafts: List[TokenTree]) -> list[TokenTree]:
        # Forced runs may exceed budgets, which are for guesses, but not memory.
        nothing, whole = Budget(0, 0), self.target.capabilities.max_context
        runs = None in self.verifier.accepts
        most = [self._cap(s, Budget(whole, whole)) if runs else nothing for s in sequences]
        branches = self.verifier.shape == "tree" and self.target.capabilities.tree
        out = [
            constrained(sequence, draft, each, branches)
            for sequence, draft, each in zip(sequences, drafts, most, strict=True)
        ]
        sizes = [Budget(len(draft), len(draft)) for draft in out]
        if fitted(self.memory, sequences, sizes) == sizes:
            return out
        return [
            constrained(s, d, nothing, branches) for s, d in zip(sequences, drafts, strict=True)
        ]

    def _passes(self, sequences: List[Sequence], shown: List[TokenTree]) -> list[Pass]:
        needs = self._drafting.needs_of(sequences)
        asked = needs.hidden or self.verifier.needs.hidden
        out = []
        for s, draft in zip(sequences, shown, strict=True):
            hidden, argmax = asked or s.pooled is not None, s.sampler.greedy_argmax
            out.append(Pass(s.cache, s.tokens[-1:], draft, hidden, needs.features, argmax))
        return out

    def _take_chunks(
        self, chunks: List[Chunk], outputs: list[Output], rows: int, clock: Clock
    ) -> list[Commit]:
        # Chunks stand last in the outputs, and take their share of the forward's time by rows.
        first = len(outputs) - len(chunks)
        share = self.controller.beside / (self.controller.beside + rows)
        prefill = clock.move("forward", "prefill", share)
        failed = self._take(chunks, outputs[first:], prefill)
        del outputs[first:]
        return failed

    def _take(self, chunks: List[Chunk], outputs: List[Output], seconds: float) -> list[Commit]:
        failed = []
        total = sum(chunk.tokens for chunk in chunks)
        for chunk, output in zip(chunks, outputs, strict=True):
            try:
                self._prefiller.take(chunk, output, seconds * chunk.tokens / total)
            except Exception as error:
                self._blame(chunk.sequence, error)
                failed.append(Commit(chunk.sequence, error=error))
        return failed

    def _cap(self, sequence: Sequence, budget: Budget) -> Budget:
        # The last token of a request always comes from the target, so drafts leave room for it.
        budget = sequence.speculation.cap(budget)
        context = self.target.capabilities.max_context - len(sequence.tokens)
        depth = max(0, min(budget.depth, sequence.room - 1, context - 1))
        if depth == budget.depth:
            return budget
        return replace(budget, nodes=budget.nodes if depth else 0, depth=depth)

    def _blame(self, sequence: Sequence, error: Exception) -> None:
        if self._drafting.strict:
            raise error
        self._errors[sequence.id] = error

    def _verify(self, sequence: Sequence, draft: TokenTree, output: Output) -> Verdict:
        rule, position = self.verifier.name, len(sequence.tokens)
        distributions = TreeDistributions(sequence.sampler, draft, output, position, rule)
        try:
            verdict = self.verifier.verify(draft, distributions, sequence.randomness)
            distributions.settle(verdict)
            return verdict
        except Exception as error:
            self._blame(sequence, error)
            return _NOTHING

    def _keep(self, sequence: Sequence, verdict: Verdict) -> None:
        try:
            self.target.keep(sequence.cache, 1, verdict.path)
        except Exception as error:
            self._blame(sequence, error)

    def _commit(
        self, sequence: Sequence, draft: TokenTree, verdict: Verdict, output: Output
    ) -> Commit:
        if sequence.id not in self._errors:
            try:
                return self._committed(sequence, draft, verdict, output)
            except Exception as error:
                self._blame(sequence, error)
        return Commit(sequence, error=self._errors[sequence.id])

    def _committed(
        self, sequence: Sequence, draft: TokenTree, verdict: Verdict, output: Output
    ) -> Commit:
        run = [*map(draft.tokens.item, verdict.path), verdict.next_token]
        kept, reason = self.stops.cut(sequence, run, self._watches.get(sequence.id))
        if sequence.pooled is not None and output.hidden is not None:
            sequence.pooled.end(output.hidden[0])
        if sequence.speculation.once:
            reason = reason or "length"
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

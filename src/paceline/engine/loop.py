"""Decode loop of speculative decoding: draft, verify in one target forward, commit.

Batches are ragged: each sequence accepts its own number of tokens, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.metrics import Clock
from paceline.core.target import Output, Rows, Target
from paceline.core.types import CanvasParams, Described, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.engine.decoder import Commit, Decoder
from paceline.engine.prefill import Chunk, Prefiller
from paceline.engine.speculator import Speculator
from paceline.engine.stopping import StopRules, TextWatch
from paceline.errors import InvalidOption
from paceline.policy.controller import Controller
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.sampler import TreeDistributions, logprobs
from paceline.verifiers.base import Verifier


class AutoregressiveDecoder(Decoder, Described):
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
        super().__init__(target, stops)
        self.verifier = verifier
        self.speculator = Speculator(target, drafter, controller)
        self._prefiller = Prefiller(target)

    def step(
        self, sequences: Sequence[Generation], chunks: Sequence[Chunk] = (), *, drafts: bool = True
    ) -> list[Commit]:
        """Decode one step; every sequence commits at least one token. Also prefills `chunks`.

        The caller must close sequences whose commit has a finish reason or an error. Errors of
        chunks stand last. An exception, of the forward as a whole, leaves all unchanged.
        """
        clock, prefill_rows = Clock(), sum(chunk.tokens for chunk in chunks)
        with clock("forward"):
            self._prefiller.slide([*sequences, *(chunk.sequence for chunk in chunks)])
        drafted = [trees.EMPTY] * len(sequences)
        if drafts:
            drafted = self.speculator.draft(sequences, self.verifier, prefill_rows, clock)
        shown = list(map(self.verifier.extend, drafted))
        rows = self._rows(sequences, shown)
        count = sum(map(len, rows))
        with clock("forward"):
            rows += self._prefiller.rows(chunks, self.drafter.needs)
            outputs = self.speculator.forward(self.target, rows)
        seconds = clock.move("forward", "prefill", prefill_rows / (prefill_rows + count))
        failed = self._prefilled(chunks, outputs[len(sequences) :], seconds)
        commits, verified = [], []
        for sequence, draft, tree, output in zip(sequences, drafted, shown, outputs, strict=False):
            try:
                verdict = self._verify(sequence, tree, output, clock)
                commits.append(self._commit(sequence, draft, verdict, output))
                verified.append(VerifiedDraft(sequence, draft, verdict, output))
            except Exception as error:
                commits.append(self._failed(sequence, error))
        self.speculator.learn(verified, clock)
        for sequence in sequences:
            sequence.stats.add_step(clock, 1 / len(sequences))
        return commits + failed

    def _rows(self, sequences: Sequence[Generation], shown: Sequence[TokenTree]) -> list[Rows]:
        needs = self.speculator.needs_of(sequences)
        asked = needs.hidden or self.verifier.needs.hidden
        out = []
        for s, draft in zip(sequences, shown, strict=True):
            hidden, argmax = asked or s.pooled is not None, s.sampler.greedy_argmax
            out.append(
                Rows.draft(
                    s.cache,
                    s.tokens[-1:],
                    draft,
                    hidden=hidden,
                    features=needs.features,
                    argmax=argmax,
                )
            )
        return out

    def _verify(
        self, sequence: Generation, draft: TokenTree, output: Output, clock: Clock
    ) -> Verdict:
        # Whatever happens, one `keep` follows each forward.
        path: tuple[int, ...] = ()
        rule, position = self.verifier.name, len(sequence.tokens)
        distributions = TreeDistributions(sequence.sampler, draft, output, position, rule)
        try:
            verdict = self.verifier.verify(draft, distributions, sequence.randomness)
            distributions.settle(verdict)
            path = verdict.path
        finally:
            with clock("forward"):
                self.target.keep(sequence.cache, 1, path)
        return verdict

    def _commit(
        self, sequence: Generation, draft: TokenTree, verdict: Verdict, output: Output
    ) -> Commit:
        if sequence.pooled is not None and output.hidden is not None:
            sequence.pooled.end(output.hidden[0])
        run = [*map(draft.tokens.item, verdict.path), verdict.next_token]
        rows = (0, *(node + 1 for node in verdict.path))
        commit = self._extend(
            sequence,
            run,
            [*map(draft.origin, verdict.path), None],
            lambda at: logprobs(output.logits[rows[at]], run[at], sequence.params.logprobs or 0),
            last=sequence.speculation.once,
        )
        sequence.sampler.commit(commit.tokens)
        accepted = min(len(commit.tokens), len(verdict.path))
        sequence.stats.record(trees.deepest(draft), len(draft), accepted)
        self._prefiller.committed(sequence, output.features, verdict.path)
        return commit

    @property
    def drafter(self) -> Drafter:
        return self.speculator.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter) -> None:
        self.speculator.drafter = drafter

    @property
    def controller(self) -> Controller:
        return self.speculator.controller

    @controller.setter
    def controller(self, controller: Controller) -> None:
        self.speculator.controller = controller

    @property
    def costs(self) -> CostModel | None:
        return self.controller.costs

    @property
    def rule(self) -> str:
        return self.verifier.name

    def isolate(self) -> None:
        self.strict = self.speculator.strict = False

    def check(
        self, params: SamplingParams, denoising: CanvasParams | None, constrained: bool = False
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

    def reset(self) -> None:
        self.drafter.reset()

    def notes(self) -> list[str]:
        return self.drafter.notes()

    def resume(self, sequence: Generation, tokens: Sequence[int]) -> None:
        sequence.sampler.commit(tokens)

    def open(self, sequence: Generation, watch: TextWatch | None = None) -> None:
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

    def begin(self, sequence: Generation) -> None:
        """Open the drafter of an admitted sequence once its tokens up to the root are cached.

        Not of an open one, whose last token may become another.
        """
        self._prefiller.share(sequence, self.drafter.needs)
        if sequence.unread or sequence.open:
            return
        begin = perf_counter()
        self.speculator.open(sequence, self._prefiller.features(sequence))
        self._prefiller.done(sequence)
        sequence.stats.draft_seconds += perf_counter() - begin

    def rewrite(self, old: Generation, new: Generation, watch: TextWatch) -> None:
        """Go on with another prompt in place of that of an admitted open sequence."""
        self._prefiller.rewrite(old, new, self.drafter.needs)
        self._watches[new.id] = watch

    def read(self, chunks: Sequence[Chunk]) -> list[Commit]:
        begin = perf_counter()
        self._prefiller.slide(chunk.sequence for chunk in chunks)
        outputs = self.target.forward(self._prefiller.rows(chunks, self.drafter.needs))
        return self._prefilled(chunks, outputs, perf_counter() - begin)

    def _prefilled(
        self, chunks: Sequence[Chunk], outputs: Sequence[Output], seconds: float
    ) -> list[Commit]:
        # Chunks take their share of a forward's seconds by rows; those that fail are returned.
        failed, total = [], sum(chunk.tokens for chunk in chunks)
        for chunk, output in zip(chunks, outputs, strict=True):
            try:
                self._prefiller.take(chunk, output, seconds * chunk.tokens / total)
            except Exception as error:
                failed.append(self._failed(chunk.sequence, error))
        return failed

    def _open(self, sequence: Generation, sibling: Generation | None) -> None:
        self._prefiller.open(sequence, self.drafter.needs, sibling)

    def _release(self, sequence: Generation) -> None:
        self.speculator.close(sequence)
        self._prefiller.close(sequence)

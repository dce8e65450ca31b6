"""Speculation of a step: who drafts, how much, under which constraint, and what is learned.

An error of a drafter costs its sequences their drafts, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from paceline.core import tree as trees
from paceline.core.metrics import Clock
from paceline.core.target import Output, Rows, Target, room_of
from paceline.core.types import Budget, LogitArray, Needs, TokenTree
from paceline.drafters.base import Drafter
from paceline.engine.client_drafts import SOURCES, ClientDrafts
from paceline.engine.memory import fitted, memory_of
from paceline.policy.controller import Controller
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.union import constrained
from paceline.verifiers.base import Verifier

_LOG = logging.getLogger(__name__)


class IsolatedDrafter:
    """Call a drafter, and switch it off for the sequences that it fails on.

    They go on with empty drafts, so seeded texts stay the same. The next admission of a sequence
    tries again. `strict` raises the errors instead.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.strict = True
        self._off: set[int] = set()

    def open(self, sequence: Generation, features: LogitArray | None) -> None:
        try:
            self.drafter.open(sequence)
            if features is not None:
                self.drafter.read(sequence, features)
        except BaseException as error:
            self._close(sequence)
            if self.strict or not isinstance(error, Exception):
                raise
            self._switch_off([sequence], error)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        """Return drafts as `Drafter.propose`; empty ones where the drafter is off."""
        if not self._off:
            return self._propose(sequences, budgets)
        on = [place for place, each in enumerate(sequences) if each.id not in self._off]
        drafts = [trees.EMPTY] * len(sequences)
        if on:
            some = self._propose([sequences[i] for i in on], [budgets[i] for i in on])
            for place, draft in zip(on, some, strict=True):
                drafts[place] = draft
        return drafts

    def needs_of(self, sequences: Sequence[Generation]) -> Needs:
        on = [each for each in sequences if each.id not in self._off] if self._off else sequences
        try:
            return self.drafter.needs_of(on) if on else Needs()
        except Exception as error:
            self._give_up(on, error)
            return Needs()

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        """Verify as `Drafter.forward`; without the drafter if that fails."""
        try:
            return self.drafter.forward(target, rows)
        except Exception as error:
            if self.strict or type(self.drafter).forward is Drafter.forward:
                raise
            _LOG.warning("drafter '%s' failed to verify: %s", self.drafter.name, error)
            return target.forward(rows)

    def observe(self, verified: Sequence[VerifiedDraft]) -> None:
        """Show the drafter its sequences' steps."""
        mine = [each for each in verified if each.sequence.id not in self._off]
        if not mine:
            return
        try:
            self.drafter.observe(mine)
        except Exception as error:
            self._give_up([each.sequence for each in mine], error)

    def close(self, sequence: Generation) -> None:
        if sequence.id in self._off:
            self._off.discard(sequence.id)
        else:
            self._close(sequence)

    def _propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        try:
            return self.drafter.propose(sequences, budgets)
        except Exception as error:
            if self.strict or len(sequences) == 1:
                self._give_up(sequences, error)
                return [trees.EMPTY]
        # Alone, each shows whether the error is its own.
        return [self._propose([s], [b])[0] for s, b in zip(sequences, budgets, strict=True)]

    def _give_up(self, sequences: Sequence[Generation], error: Exception) -> None:
        if self.strict:
            raise error
        for sequence in sequences:
            self._close(sequence)
        self._switch_off(sequences, error)

    def _switch_off(self, sequences: Sequence[Generation], error: Exception) -> None:
        for sequence in sequences:
            self._off.add(sequence.id)
            sequence.stats.drafter_errors += 1
        requests, fault = [each.id for each in sequences], f"{type(error).__name__}: {error}"
        _LOG.warning(
            "drafter '%s' failed and is off for requests %s: %s", self.drafter.name, requests, fault
        )

    def _close(self, sequence: Generation) -> None:
        try:
            self.drafter.close(sequence)
        except Exception as error:
            if self.strict:
                raise
            _LOG.warning("drafter '%s' failed to close: %s", self.drafter.name, error)


class Speculator(IsolatedDrafter):
    """Make the drafts of each step, and learn what became of them.

    Of a sequence it takes, in this order: the draft that its client sent, what follows in its
    client's prediction, or what the drafter proposes within the controller's budget. A constraint
    cuts the draft, and adds what it forces.
    """

    def __init__(self, target: Target, drafter: Drafter, controller: Controller) -> None:
        super().__init__(drafter)
        self.controller = controller
        self._capabilities = target.capabilities
        self._memory = memory_of(target)
        self._clients = ClientDrafts()

    def draft(
        self, sequences: Sequence[Generation], verifier: Verifier, prefill_rows: int, clock: Clock
    ) -> list[TokenTree]:
        """Return a draft for each sequence that `verifier` takes, beside so many rows of prefill.

        Errors are those of the controller.
        """
        self.controller.beside = prefill_rows
        deterministic = None in verifier.accepts
        budgets = list(self.controller.budgets(sequences))
        given = self._clients.drafts(sequences, self.controller) if deterministic else {}
        for place, draft in given.items():
            budgets[place] = Budget(len(draft), len(draft))
        budgets = fitted(self._memory, sequences, list(map(self._cap, sequences, budgets)))
        for place, draft in given.items():
            given[place] = trees.head(draft, min(budgets[place].nodes, budgets[place].depth))
            budgets[place] = Budget(0, 0)
        with clock("draft"):
            drafts = self.propose(sequences, budgets)
            for place, draft in given.items():
                drafts[place] = draft
            if any(each.sampler.constraint is not None for each in sequences):
                drafts = self._constrained(sequences, drafts, verifier)
        # What comes with a request is sized already, and teaches the controller nothing.
        own = [trees.EMPTY if i in given else each for i, each in enumerate(drafts)]
        selected = self.controller.select(sequences, own)
        for place in given:
            selected[place] = drafts[place]
        return selected

    def learn(self, verified: Sequence[VerifiedDraft], clock: Clock) -> None:
        """Show drafter and controller what was committed, and what it took."""
        with clock("draft"):
            self.observe(verified)
        own = [each for each in verified if each.draft.source not in SOURCES]
        if not own:
            return
        seconds = clock.seconds["draft"] - self.drafter.tried, clock.seconds["forward"]
        try:
            self.controller.observe(own, *seconds)
        except Exception as error:  # what was committed stands
            if self.strict:
                raise
            _LOG.warning("controller '%s' failed to learn: %s", self.controller.name, error)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._clients.close(sequence)
        self.controller.close(sequence)

    def _cap(self, sequence: Generation, budget: Budget) -> Budget:
        # The last token of a request always comes from the target, so drafts leave room for it.
        budget = sequence.speculation.cap(budget)
        # No draft lets tokens leave an endless text.
        context = self._capabilities.max_context - len(sequence.tokens)
        context = room_of(sequence.cache) if sequence.window else context
        depth = max(0, min(budget.depth, sequence.room - 1, context - 1))
        if depth == budget.depth:
            return budget
        return replace(budget, nodes=budget.nodes if depth else 0, depth=depth)

    def _constrained(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree], verifier: Verifier
    ) -> list[TokenTree]:
        # Forced runs may exceed budgets, which are for guesses, but not memory.
        nothing, whole = Budget(0, 0), self._capabilities.max_context
        runs = None in verifier.accepts
        most = [self._cap(s, Budget(whole, whole)) if runs else nothing for s in sequences]
        branches = verifier.shape == "tree" and self._capabilities.tree
        out = [
            constrained(sequence, draft, each, branches)
            for sequence, draft, each in zip(sequences, drafts, most, strict=True)
        ]
        sizes = [Budget(len(draft), len(draft)) for draft in out]
        if fitted(self._memory, sequences, sizes) == sizes:
            return out
        return [
            constrained(s, d, nothing, branches) for s, d in zip(sequences, drafts, strict=True)
        ]

"""Speculation of a step: who drafts, how much, under which constraint, and what is learned."""

from __future__ import annotations

import logging
from collections.abc import Sequence as List
from dataclasses import replace

from paceline.core import tree as trees
from paceline.core.metrics import Clock
from paceline.core.target import Target
from paceline.core.types import Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.engine.client_drafts import SOURCES, ClientDrafts
from paceline.engine.constrained import constrained
from paceline.engine.isolation import IsolatedDrafter, Outcome
from paceline.engine.memory import fitted, memory_of
from paceline.policy.controller import Controller
from paceline.sampling.sequence import Sequence
from paceline.verifiers.base import Verifier

_LOG = logging.getLogger(__name__)


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
        self, sequences: List[Sequence], verifier: Verifier, prefill_rows: int, clock: Clock
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

    def learn(self, outcomes: List[Outcome], clock: Clock) -> None:
        """Show drafter and controller what was committed, and what it took."""
        with clock("draft"):
            self.observe(outcomes)
        own = [each for each in outcomes if each.draft.source not in SOURCES]
        if not own:
            return
        sequences, drafts, verdicts, _ = zip(*own, strict=True)
        seconds = clock.seconds["draft"] - self.drafter.tried, clock.seconds["forward"]
        try:
            self.controller.observe(sequences, drafts, verdicts, *seconds)
        except Exception as error:  # what was committed stands
            if self.strict:
                raise
            _LOG.warning("controller '%s' failed to learn: %s", self.controller.name, error)

    def close(self, sequence: Sequence) -> None:
        super().close(sequence)
        self._clients.close(sequence)
        self.controller.close(sequence)

    def _cap(self, sequence: Sequence, budget: Budget) -> Budget:
        # The last token of a request always comes from the target, so drafts leave room for it.
        budget = sequence.speculation.cap(budget)
        context = self._capabilities.max_context - len(sequence.tokens)
        depth = max(0, min(budget.depth, sequence.room - 1, context - 1))
        if depth == budget.depth:
            return budget
        return replace(budget, nodes=budget.nodes if depth else 0, depth=depth)

    def _constrained(
        self, sequences: List[Sequence], drafts: List[TokenTree], verifier: Verifier
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

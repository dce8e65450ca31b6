"""Errors that belong to one sequence: a drafter's cost it its drafts, all others end it alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence as List
from typing import NamedTuple

from paceline.core import tree as trees
from paceline.core.target import Output, Pass, Target
from paceline.core.types import Budget, LogitArray, Needs, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.sampling.sequence import Sequence

_LOG = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What became of the draft of a sequence; `output` has its rows first."""

    sequence: Sequence
    draft: TokenTree
    verdict: Verdict
    output: Output


class IsolatedDrafter:
    """Call a drafter, and switch it off for the sequences that it fails on.

    They go on with empty drafts, so seeded texts stay the same. The next admission of a sequence
    tries again. `strict` raises the errors instead.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.strict = True
        self._off: set[int] = set()

    def open(self, sequence: Sequence, features: LogitArray | None) -> None:
        try:
            self.drafter.open(sequence)
            if features is not None:
                self.drafter.read(sequence, features)
        except BaseException as error:
            self._close(sequence)
            if self.strict or not isinstance(error, Exception):
                raise
            self._switch_off([sequence], error)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
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

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        on = [each for each in sequences if each.id not in self._off] if self._off else sequences
        try:
            return self.drafter.needs_of(on) if on else Needs()
        except Exception as error:
            self._give_up(on, error)
            return Needs()

    def forward(self, target: Target, passes: List[Pass]) -> list[Output]:
        """Verify as `Drafter.forward`; without the drafter if that fails."""
        try:
            return self.drafter.forward(target, passes)
        except Exception as error:
            if self.strict or type(self.drafter).forward is Drafter.forward:
                raise
            _LOG.warning("drafter '%s' failed to verify: %s", self.drafter.name, error)
            return target.forward(passes)

    def observe(self, outcomes: List[Outcome]) -> None:
        """Show the drafter its sequences' steps."""
        mine = [each for each in outcomes if each.sequence.id not in self._off]
        if not mine:
            return
        sequences, drafts, verdicts, outputs = zip(*mine, strict=True)
        try:
            self.drafter.observe(sequences, drafts, verdicts, outputs)
        except Exception as error:
            self._give_up(sequences, error)

    def close(self, sequence: Sequence) -> None:
        if sequence.id in self._off:
            self._off.discard(sequence.id)
        else:
            self._close(sequence)

    def _propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        try:
            return self.drafter.propose(sequences, budgets)
        except Exception as error:
            if self.strict or len(sequences) == 1:
                self._give_up(sequences, error)
                return [trees.EMPTY]
        # Alone, each shows whether the error is its own.
        return [self._propose([s], [b])[0] for s, b in zip(sequences, budgets, strict=True)]

    def _give_up(self, sequences: List[Sequence], error: Exception) -> None:
        if self.strict:
            raise error
        for sequence in sequences:
            self._close(sequence)
        self._switch_off(sequences, error)

    def _switch_off(self, sequences: List[Sequence], error: Exception) -> None:
        for sequence in sequences:
            self._off.add(sequence.id)
            sequence.stats.drafter_errors += 1
        requests, fault = [each.id for each in sequences], f"{type(error).__name__}: {error}"
        _LOG.warning(
            "drafter '%s' failed and is off for requests %s: %s", self.drafter.name, requests, fault
        )

    def _close(self, sequence: Sequence) -> None:
        try:
            self.drafter.close(sequence)
        except Exception as error:
            if self.strict:
                raise
            _LOG.warning("drafter '%s' failed to close: %s", self.drafter.name, error)

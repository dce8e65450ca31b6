"""Drafter interface. Only `draft` is required, or `propose`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.target import Output, Rows, Target
from paceline.core.types import (
    Budget,
    Capabilities,
    Described,
    LogitArray,
    Needs,
    SamplingScheme,
    TokenTree,
)
from paceline.drafters.resources import Resources
from paceline.errors import RuntimeUnavailable
from paceline.models.source import without_adapters
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.verifiers.base import Shape


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter is built from.

    Attributes:
        resources: the loaded target, and what can be loaded beside it.
        accepts: draft kinds that the verifier takes; None stands for deterministic drafts.
        shape: whether the verifier takes trees or chains only.
        gumbel_coupled: whether drafts made with the target's Gumbel noise are accepted more often.
        embeddings: whether nodes may hold embeddings: the runtime takes them, and neither the
            verifier nor another drafter would take them for tokens.
        options: the user's options, as text.
    """

    resources: Resources
    accepts: frozenset[SamplingScheme | None] = frozenset({None})
    shape: Shape = "tree"
    gumbel_coupled: bool = True
    embeddings: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Capabilities:
        return self.resources.loaded.target.capabilities

    @property
    def model(self) -> str:
        """Fingerprint of the target's weights without adapters, which drafters are trained for."""
        return without_adapters(self.resources.loaded.source).fingerprint

    @property
    def needs_q(self) -> bool:
        """True if the verifier needs sampled drafts with their q rows."""
        return None not in self.accepts


def check_layers(name: str, what: str, model: Capabilities) -> None:
    """Raise RuntimeUnavailable unless layers of a model run apart; `what` a drafter does so."""
    if not model.blocks:
        raise RuntimeUnavailable(
            f"drafter '{name}' {what}, which runtime '{model.runtime}' cannot: use runtime cpu or "
            "torch, and a model without recurrent layers"
        )


class Drafter(Described, ABC):
    """Proposes tokens ahead of the target.

    Call order: `open` and `read` on admission; per step `propose`, `needs_of` and `observe` with
    the same sequences in the same order; `close` at the end.
    """

    needs: Needs = Needs()
    # Sampling kind of its drafts; None for deterministic drafts.
    kind: SamplingScheme | None = None

    # True if drafts for sampled requests use the target's Gumbel noise.
    gumbel_coupled: bool = False
    # Seconds of the last proposal that went into drafts which should not pay, to learn whether they
    # would: they say nothing of what the next will take.
    tried: float = 0.0
    # True if its drafts come out of its own `forward`, which combined drafters have none of.
    alone: ClassVar[bool] = False

    @property
    def tolerates_gaps(self) -> bool:
        """True if steps may be withheld from it entirely, so that its context lacks some tokens."""
        return False

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build the drafter. Raises InvalidOption if an option is unknown or out of range."""
        return cls(**arguments(cls, "drafter", context.options))

    def open(self, sequence: Generation) -> None:
        """Admit a sequence: the prompt, plus generated tokens if it was preempted before."""

    def read(self, sequence: Generation, features: LogitArray) -> None:
        """Take the features of a sequence just opened, if needed.

        float32 `[rows, 4 * hidden_size]` of its last tokens except the very last: `needs.recent` or
        more, as far as there are any. See `Output.features`.
        """

    def needs_of(self, sequences: Sequence[Generation]) -> Needs:
        """Return the needs of the next forward: at most `needs`; `observe` may lack the rest."""
        return self.needs

    def unread(self, sequence: Generation) -> int:
        """Return the number of tokens that it must read before it can draft for the sequence."""
        return 0

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        """Draft one tree per sequence, each within its budget: by default those of `draft`."""
        return [self.draft(*each) for each in zip(sequences, budgets, strict=True)]

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        """Draft for one sequence."""
        raise NotImplementedError(f"drafter '{self.name}' has neither propose nor draft")

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        """Run the forward that verifies the drafts, prompts beside them included.

        Override it to go on from layers that were run for drafting. What it returns must be what
        `target.forward` would, to the last bit where that is bit-exact.
        """
        return target.forward(rows)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        """Learn from a committed step: by default, calls `learn` for each sequence."""
        for each in step:
            self.learn(each)

    def learn(self, verified: VerifiedDraft) -> None:
        """Learn from what a step committed of one sequence."""

    def close(self, sequence: Generation) -> None: ...

    def notes(self) -> list[str]:
        """Return lines on which of its parts drafted, and why; none if it has no parts."""
        return []

    def reset(self) -> None:
        """Forget everything learned from earlier sequences."""


class NoDrafter(Drafter):
    """Baseline without drafts: every step commits one token."""

    name: ClassVar[str] = "none"
    guarantee = "plain decoding"

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        return trees.EMPTY

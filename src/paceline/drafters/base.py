"""The contract of a drafter. Everything but `propose` has a default."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import ClassVar, Self

from paceline.controllers.cost import CostModel
from paceline.models.source import ModelSource
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.options import arguments
from paceline.sequence import Sequence
from paceline.target import Output, Target
from paceline.types import Budget, Capabilities, LawKind, LogitArray, Needs, TokenTree, Verdict
from paceline.verifiers.base import Shape


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter may be built from.

    Attributes:
        target: capabilities of the target it drafts for.
        draft_model: loads the draft model that the user named; raises InvalidOption if none was.
        accepts: draft laws that the verifier takes; None stands for deterministic drafts.
        shape: whether it takes drafts with branches.
        follows_noise: whether drafts that are drawn with the target's noise agree oftener with it.
        options: what the user set, as text.
        model: fingerprint of the target's weights.
        run_network: makes a drafter network ready to run beside the target; None if the runtime
            cannot.
        add_embeddings: lets nodes carry embeddings in place of tokens, and returns the id of the
            first; None if the runtime cannot, or the verifier or another drafter would take such
            nodes for tokens.
        costs: what the target's forwards cost, measured when first asked for.
        source: where the target's weights can be read, for drafters that learn while they serve.
        coarser: loads the target's weights once more, at int8; None where it is as coarse itself,
            or the runtime has no int8.
    """

    target: Capabilities
    draft_model: Callable[[], Target]
    accepts: frozenset[LawKind | None] = frozenset({None})
    shape: Shape = "tree"
    follows_noise: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    run_network: Callable[[Trained], Runner] | None = None
    add_embeddings: Callable[[LogitArray], int] | None = None
    costs: Callable[[], CostModel] | None = None
    source: ModelSource | None = None
    coarser: Callable[[], Target] | None = None

    @property
    def report_law(self) -> bool:
        """Whether the verifier needs sampled drafts with their q rows."""
        return None not in self.accepts


class Drafter(ABC):
    """Proposes tokens ahead of the target.

    The decoder calls `open` and `read` when a sequence is admitted, then per step `propose`,
    `needs_of` and `observe` with the same sequences in the same order, and `close` when it ends.
    """

    name: ClassVar[str]
    needs: Needs = Needs()
    kind: LawKind | None = None
    """How its drafts are drawn, as their law says; None if they have none."""

    follows_noise: bool = False
    """Whether drafts for sampled requests follow the noise that their tokens are drawn with."""

    @property
    def bears_gaps(self) -> bool:
        """Whether steps may be kept from it wholly, so that it is asked for no draft and observes
        nothing. It then drafts behind a text of which it lacks some tokens."""
        return False

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """A drafter for a target, with the options that the user set.

        Raises:
            InvalidOption: an option is unknown or out of range.
        """
        return cls(**arguments(cls, "drafter", context.options))

    def open(self, sequence: Sequence) -> None:
        """A sequence is admitted; its tokens are the prompt, and what was generated already if it
        gave way to others before."""

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        """Features of a sequence just opened, if they are needed.

        Args:
            sequence: the sequence.
            features: float32 `[rows, 4 * hidden_size]` of its last tokens but the very last, see
                `Output.features`: of `needs.recent` or more of them, as far as there are any.
        """

    def needs_of(self, sequences: List[Sequence]) -> Needs:
        """What it needs of the next step's forward, over these sequences: `needs` or less. Rows of
        `outputs` that it can do without may be missing in the `observe` of that step."""
        return self.needs

    @abstractmethod
    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One draft per sequence, none larger or deeper than its budget."""

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """A step is committed: `sequences` hold the new tokens; rows of `outputs` belong to
        `drafts`, which may be smaller than what was proposed; further rows, if any, belong to
        what the verifier added."""

    def close(self, sequence: Sequence) -> None:
        """A sequence has ended."""

    def reset(self) -> None:
        """Forget everything learned from earlier sequences."""

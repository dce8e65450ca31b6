"""Base of rules with a trained head on the hidden state at a drafted token."""

from __future__ import annotations

from typing import ClassVar, Self

from paceline.errors import RuntimeUnavailable
from paceline.options import arguments, require
from paceline.types import Needs
from paceline.verifiers.context import VerifierContext
from paceline.verifiers.heads import load_head
from paceline.verifiers.pardon import Pardoning


class Headed(Pardoning):
    """Accept drafts of every kind, from targets that give hidden states."""

    needs: ClassVar[Needs] = Needs(hidden=True)

    def __init__(self, threshold: float = 0.5, head: str = "") -> None:
        """Set the threshold, and load the head; empty is the one that ships for the default model.

        Raises:
            InvalidOption: the threshold is out of [0, 1], or the file holds no head of this rule.
        """
        require(0 <= threshold <= 1, "threshold", threshold, "in [0, 1]")
        self.threshold = threshold
        self.head = load_head(self.name, head)

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """Build the rule. RuntimeUnavailable: no hidden states. InvalidOption: foreign head."""
        rule = cls(**arguments(cls, "verifier", context.options))
        if not context.target.hidden_states:
            raise RuntimeUnavailable(
                f"verifier '{cls.name}' reads hidden states, which runtime "
                f"'{context.target.runtime}' does not give: use runtime openvino or torch"
            )
        rule.head.check_model(context)
        return rule

"""What the rules share that ask a trained head about the hidden state at a drafted token."""

from __future__ import annotations

from typing import ClassVar, Self

from paceline.errors import RuntimeUnavailable
from paceline.options import arguments, require
from paceline.types import Needs
from paceline.verifiers.context import VerifierContext
from paceline.verifiers.heads import load_head
from paceline.verifiers.pardon import Pardoning


class Headed(Pardoning):
    """Takes drafts of every kind, chains and trees, from targets that give hidden states."""

    needs: ClassVar[Needs] = Needs(hidden=True)

    def __init__(self, threshold: float = 0.5, head: str = "") -> None:
        """Set the threshold and load the head.

        Args:
            threshold: what the head's probability is compared with, in [0, 1].
            head: safetensors file; empty for the one that ships for the default model.

        Raises:
            InvalidOption: the threshold is out of range, or the file holds no head of this rule.
        """
        require(0 <= threshold <= 1, "threshold", threshold, "in [0, 1]")
        self.threshold = threshold
        self.head = load_head(self.name, head)

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """A verifier whose head was trained for the target.

        Raises:
            RuntimeUnavailable: the runtime gives no hidden states.
            InvalidOption: the head was trained for another model.
        """
        rule = cls(**arguments(cls, "verifier", context.options))
        if not context.target.hidden_states:
            raise RuntimeUnavailable(
                f"verifier '{cls.name}' reads hidden states, which runtime "
                f"'{context.target.runtime}' does not give: use runtime openvino or torch"
            )
        rule.head.check_model(context)
        return rule

"""A drafter made of several drafters: what does not depend on how they work together."""

from __future__ import annotations

from collections.abc import Sequence as List

from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import LogitArray, Needs, TokenTree, Verdict

MOST_PARTS = 6


class Parts(Drafter):
    """Tells all parts everything, and needs what any of them needs.

    Attributes:
        parts: the drafters.
    """

    def __init__(self, parts: List[Drafter]) -> None:
        """Hold the parts.

        Raises:
            InvalidOption: fewer than two, or too many.
        """
        if not 2 <= len(parts) <= MOST_PARTS:
            raise InvalidOption(f"combine 2 to {MOST_PARTS} drafters, not {len(parts)}")
        self.parts = tuple(parts)
        self.needs = together([part.needs for part in parts])

    def reset(self) -> None:
        """Forget everything learned, in all parts."""
        for part in self.parts:
            part.reset()

    def open(self, sequence: Sequence) -> None:
        """Tell all parts."""
        for part in self.parts:
            part.open(sequence)

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        """Tell the parts that need it."""
        for part in self.parts:
            if part.needs.features:
                part.read(sequence, features)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """All parts learn from the one draft that was verified, whoever made it."""
        for part in self.parts:
            part.observe(sequences, drafts, verdicts, outputs)

    def close(self, sequence: Sequence) -> None:
        """Tell all parts."""
        for part in self.parts:
            part.close(sequence)


def together(needs: List[Needs]) -> Needs:
    """What satisfies all."""
    return Needs(
        hidden=any(each.hidden for each in needs),
        node_logits=any(each.node_logits for each in needs),
        features=any(each.features for each in needs),
        recent=_widest([each.recent for each in needs if each.features]),
    )


def _widest(wanted: List[int | None]) -> int | None:
    """What satisfies all; None stands for the most."""
    return None if None in wanted else max(filter(None, wanted), default=None)

"""Base of drafters that combine several drafters."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.types import LogitArray, Needs
from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.sampling.generation import Generation, VerifiedDraft

MOST_PARTS = 6


class CompositeDrafter(Drafter):
    """Combination of drafters: forwards every event to all parts and unites their needs."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        # Raises InvalidOption: fewer than two parts, too many, or one that drafts alone.
        if not 2 <= len(parts) <= MOST_PARTS:
            raise InvalidOption(f"combine 2 to {MOST_PARTS} drafters, not {len(parts)}")
        for part in parts:
            if part.alone:
                raise InvalidOption(f"drafter '{part.name}' cannot be combined: use it alone")
        self.parts = tuple(parts)
        self.needs = union_needs([part.needs for part in parts])

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def open(self, sequence: Generation) -> None:
        for part in self.parts:
            part.open(sequence)

    def read(self, sequence: Generation, features: LogitArray) -> None:
        for part in self.parts:
            if part.needs.features:
                part.read(sequence, features)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        for part in self.parts:
            part.observe(step)

    def close(self, sequence: Generation) -> None:
        for part in self.parts:
            part.close(sequence)

    def notes(self) -> list[str]:
        return [line for part in self.parts for line in part.notes()]


def refuse_drawn(parts: Sequence[Drafter], joined: str) -> None:
    """Raise InvalidOption if a part draws its drafts: a choice after the draw would bias them."""
    for part in parts:
        if part.kind is not None:
            raise InvalidOption(
                f"drafter '{part.name}' draws {part.kind} drafts for this verifier, and drawn "
                f"drafts cannot be {joined}: use verifier 'coupled'"
            )


def union_needs(needs: Sequence[Needs]) -> Needs:
    """Return needs that satisfy all."""
    return Needs(
        hidden=any(each.hidden for each in needs),
        node_logits=any(each.node_logits for each in needs),
        features=any(each.features for each in needs),
        recent=_widest([each.recent for each in needs if each.features]),
    )


def _widest(wanted: Sequence[int | None]) -> int | None:
    # None stands for the most.
    return None if None in wanted else max(filter(None, wanted), default=None)

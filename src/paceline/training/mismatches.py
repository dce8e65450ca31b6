"""Mismatches as verification meets them: drafted tokens where no draft held the target's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.randomness import Randomness
from paceline.types import ROOT, LawKind, LogitArray, Needs, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier
from paceline.verifiers.greedy import Greedy
from paceline.verifiers.pardon import entropy
from paceline.verifiers.pivot import features


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A drafted token that is not the target's own.

    Attributes:
        position: absolute position of the token.
        token: what was drafted.
        own: what the target wrote instead.
        logprob: of the drafted token under the target, in nats.
        features: float32 `[4 + hidden_size]`, as `paceline.verifiers.pivot.features` makes them;
            the hidden state stands last.
    """

    position: int
    token: int
    own: int
    logprob: float
    features: LogitArray


class Recorder(Verifier):
    """Greedy verification that notes the mismatches at which each walk ended."""

    name: ClassVar[str] = "recorder"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = Greedy.accepts
    needs: ClassVar[Needs] = Needs(hidden=True)

    def __init__(self) -> None:
        """Start with an empty list."""
        self._rule = Greedy()
        self.found: list[Mismatch] = []

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Verify, then note the children of the last node that was reached."""
        verdict = self._rule.verify(draft, target, randomness)
        last = verdict.path[-1] if verdict.path else ROOT
        children = np.flatnonzero(draft.parents == last).tolist()
        if children:
            law, own = target.soft(last), verdict.next_token
            unsure = entropy(law)
            for child in children:
                token = int(draft.tokens[child])
                seen = features(law, unsure, own, token, target.hidden(child))
                position = target.position + len(verdict.path)
                self.found.append(Mismatch(position, token, own, float(seen[0]), seen))
        return verdict

"""Drafts of forced tokens and of the fixed parts of a template (such as JSON keys and brackets).

Forced tokens (`SamplingParams.forced_tokens`) are certain. A template does not constrain the
output: it is a prediction whose hit rate is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.policy.acceptance import HitRates
from paceline.sampling.generation import Generation, VerifiedDraft


class Standing(NamedTuple):
    part: int
    matched: int
    fresh: bool


START = Standing(0, 0, True)


class Template:
    """Fixed parts in order; a part ends at its first complete occurrence after the one before."""

    def __init__(self, parts: Sequence[Sequence[int]], *, anchored: bool = True) -> None:
        """Set the parts; the text begins with the first if `anchored`. Raises InvalidOption."""
        if not all(parts):
            raise InvalidOption("a part of a template is empty: leave it out")
        self._parts = [tuple(part) for part in parts]
        self._borders = [_borders(part) for part in self._parts]
        self._anchored = anchored

    def read(self, standing: Standing, token: int) -> Standing:
        """Advance by one token (Knuth-Morris-Pratt)."""
        part, matched, _ = standing
        if part == len(self._parts):
            return Standing(part, 0, False)
        tokens, borders = self._parts[part], self._borders[part]
        while matched and tokens[matched] != token:
            matched = borders[matched - 1]
        matched += tokens[matched] == token
        if matched == len(tokens):
            return Standing(part + 1, 0, False)
        return Standing(part, matched, False)

    def expected(self, standing: Standing) -> int | None:
        """Return the next token of a part that has begun; None in free text."""
        part, matched, fresh = standing
        begun = matched > 0 or (fresh and self._anchored)
        return self._parts[part][matched] if begun and part < len(self._parts) else None


NOTHING_FIXED = Template([])


class _Expectation(NamedTuple):
    # A token drafted from a template, and its absolute position.

    position: int
    token: int
    kind: int


class Forced(Drafter):
    """Drafts forced tokens and fixed template parts as a chain."""

    name: ClassVar[str] = "forced"
    requires = "forced tokens in the request, or a template (in Python)"

    def __init__(self, template: Template = NOTHING_FIXED) -> None:
        self._template = template
        self._standings: dict[int, tuple[int, Standing]] = {}
        self._expectations: dict[int, list[_Expectation]] = {}
        self.reset()

    def reset(self) -> None:
        # By how many tokens of the part have appeared; none at the beginning of the text.
        self._rates = HitRates(np.array([0.9, 0.5, 0.8, 0.95]))

    def open(self, sequence: Generation) -> None:
        self._standings[sequence.id] = (0, START)
        self._read(sequence)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence = verified.sequence
        for expected in self._expectations.pop(sequence.id):
            if expected.position >= len(sequence.tokens):
                break
            hit = sequence.tokens[expected.position] == expected.token
            self._rates.add((expected.kind,), hit)
            if not hit:
                break
        self._read(sequence)

    def close(self, sequence: Generation) -> None:
        self._standings.pop(sequence.id, None)
        self._expectations.pop(sequence.id, None)

    def _read(self, sequence: Generation) -> None:
        known, standing = self._standings[sequence.id]
        new = sequence.tokens[sequence.prompt_length + known :]
        for token in new:
            standing = self._template.read(standing, token)
        self._standings[sequence.id] = (known + len(new), standing)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        rates = self._rates.table
        begin, standing = self._standings[sequence.id]
        forced = sequence.params.forced_tokens
        tokens: list[int] = []
        scores: list[float] = []
        expectations: list[_Expectation] = []
        reach = 1.0
        for index in range(begin, begin + min(budget.nodes, budget.depth)):
            token = forced.get(index)
            if token is None:
                token = self._template.expected(standing)
                if token is None:
                    break
                kind = min(standing.matched, len(rates) - 1)
                expectations.append(_Expectation(sequence.prompt_length + index, token, kind))
                reach *= rates[kind]
            tokens.append(token)
            scores.append(reach)
            standing = self._template.read(standing, token)
        self._expectations[sequence.id] = expectations
        return trees.chain(tokens, self.name, scores=np.array(scores, dtype=np.float64))


def _borders(tokens: tuple[int, ...]) -> list[int]:
    # KMP failure function: per prefix, the length of its longest proper border.
    borders = [0] * len(tokens)
    for end in range(1, len(tokens)):
        length = borders[end - 1]
        while length and tokens[length] != tokens[end]:
            length = borders[length - 1]
        borders[end] = length + (tokens[length] == tokens[end])
    return borders

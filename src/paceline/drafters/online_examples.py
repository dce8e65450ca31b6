"""What a drafter may learn from while it serves: committed text, and where drafts missed it.

Committed tokens alone are noted, and the target's features of them, which hold the hidden state
that its LM head reads: the target's law at every position comes with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np

from paceline import tree as trees
from paceline.sequence import Sequence
from paceline.types import ROOT, BoolArray, IntArray, LogitArray, TokenTree, Verdict

_CONTEXT = 64
"""Rows before a stretch that are kept for networks to look back at."""

_ROWS = 1024
"""Most rows of new examples in an update, and of older ones: some ten seconds of a core."""

_SPAN = 192
"""Rows of the longest stretch, its context left out."""


@dataclass(frozen=True, slots=True)
class Example:
    """A stretch of committed text.

    Attributes:
        features: float32 `[rows, 4 * width]` of each token, see `Output.features`.
        tokens: int64 `[rows]`.
        missed: bool `[rows]`, the tokens that the target wrote where drafts had others.
    """

    features: LogitArray
    tokens: IntArray
    missed: BoolArray

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self.features.nbytes


@dataclass(slots=True)
class Trace:
    """A sequence's newest stretch: the last token is the root, whose features are not known yet."""

    features: list[LogitArray] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)
    known: int = 0
    """Tokens of the sequence that were noted."""

    def read(self, tokens: list[int], features: LogitArray) -> None:
        """Begin with a prompt, of which the end is kept: features stand for all but the root."""
        kept = len(features[-_CONTEXT:])
        self.features = [features[len(features) - kept :].copy()]
        self.tokens = tokens[len(tokens) - kept - 1 :]
        self.missed = [False] * len(self.tokens)
        self.known = len(tokens)

    def note(self, sequence: Sequence, draft: TokenTree, verdict: Verdict, rows: LogitArray) -> int:
        """Take in a step that was committed.

        Args:
            sequence: holds the new tokens.
            draft: what was verified.
            verdict: what became of it.
            rows: float32 `[1 + path, 4 * width]`, features of the root and of the accepted path.

        Returns:
            How many tokens were missed: one or none.
        """
        new = sequence.tokens[self.known :]  # fewer than were accepted if the text ended there
        last = verdict.path[-1] if verdict.path else ROOT
        missed = len(new) > len(verdict.path) and last in trees.children(draft)
        self.features.append(rows[: len(new)].copy())
        self.tokens += new
        self.missed += [False] * len(new)
        self.known += len(new)
        if missed:
            self.missed[-1] = True
        return int(missed)

    @property
    def full(self) -> bool:
        """Whether the stretch should be cut."""
        return len(self.tokens) > _CONTEXT + _SPAN

    def cut(self) -> Example | None:
        """What was noted, if a token of it was missed; its end stays, as context."""
        if not any(self.missed[:-1]):
            return None
        features = np.concatenate(self.features)
        tokens = np.array(self.tokens[:-1], dtype=np.int64)
        example = Example(features, tokens, np.array(self.missed[:-1]))
        kept = len(features[-_CONTEXT:])
        self.features = [features[len(features) - kept :].copy()]
        self.tokens = self.tokens[-kept - 1 :]
        self.missed = [False] * kept + self.missed[-1:]
        return example


class Examples:
    """The newest examples, up to a limit of memory."""

    def __init__(self, limit: int) -> None:
        """Hold at most `limit` bytes, or one example."""
        self._limit = limit
        self._kept: deque[Example] = deque()
        self._bytes = 0
        self._fresh = 0

    def add(self, example: Example) -> None:
        """Take one in; the oldest make room."""
        self._kept.append(example)
        self._bytes += example.size
        self._fresh += 1
        while self._bytes > self._limit and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().size
        self._fresh = min(self._fresh, len(self._kept))

    def draw(self, generator: np.random.Generator) -> list[Example]:
        """Those that came since the last call, the newest first, and as many older ones; none if
        none came. Of a flood, the newest that an update has time for."""
        old = len(self._kept) - self._fresh
        fresh = [self._kept[i] for i in range(len(self._kept) - 1, old - 1, -1)]
        again = [self._kept[i] for i in generator.permutation(old)[: self._fresh].tolist()]
        self._fresh = 0
        return [*_up_to(fresh, _ROWS), *_up_to(again, _ROWS)]


def _up_to(examples: List[Example], rows: int) -> list[Example]:
    """The first of them, one at least, with so many rows together at most."""
    sizes = np.cumsum([len(each.tokens) for each in examples])
    return list(examples[: max(1, int((sizes <= rows).sum()))])

"""Training examples for online distillation: committed text, the target's features of it, and the
tokens where drafts missed it. Features hold the hidden state that the LM head reads, so the
target's distribution at every position comes with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np

from paceline import tree as trees
from paceline.sequence import Sequence
from paceline.types import ROOT, BoolArray, IntArray, LogitArray, TokenTree, Verdict

# Rows before a stretch, as context for the network.
_CONTEXT = 64

# Most rows of new examples in an update, and of older ones: bounds its time.
_ROWS = 1024

# Rows of the longest stretch, without its context.
_SPAN = 192


@dataclass(frozen=True, slots=True)
class Example:
    """Stretch of committed text.

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
        """Return bytes, about."""
        return self.features.nbytes


@dataclass(slots=True)
class Trace:
    """Newest stretch of a sequence; the features of its last token, the root, are not known yet."""

    features: list[LogitArray] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)
    # Tokens of the sequence that were noted.
    known: int = 0

    def read(self, tokens: list[int], features: LogitArray) -> None:
        """Begin with the end of a prompt; features cover all tokens but the root."""
        kept = len(features[-_CONTEXT:])
        self.features = [features[len(features) - kept :].copy()]
        self.tokens = tokens[len(tokens) - kept - 1 :]
        self.missed = [False] * len(self.tokens)
        self.known = len(tokens)

    def note(self, sequence: Sequence, draft: TokenTree, verdict: Verdict, rows: LogitArray) -> int:
        """Add a committed step; return the missed tokens, 1 or 0.

        `rows` is float32 `[1 + path, 4 * width]`, features of the root and of the accepted path.
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
        """Return whether the stretch is due to be cut."""
        return len(self.tokens) > _CONTEXT + _SPAN

    def cut(self) -> Example | None:
        """Return the stretch if a token of it was missed; its end stays as context."""
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
    """Queue of the newest examples, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: deque[Example] = deque()
        self._bytes = 0
        self._fresh = 0

    def add(self, example: Example) -> None:
        self._kept.append(example)
        self._bytes += example.size
        self._fresh += 1
        while self._bytes > self._limit and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().size
        self._fresh = min(self._fresh, len(self._kept))

    def draw(self, generator: np.random.Generator) -> list[Example]:
        """Return the examples added since the last call, newest first, and as many older ones.

        Both are limited to what an update has time for. Empty if none were added.
        """
        old = len(self._kept) - self._fresh
        fresh = [self._kept[i] for i in range(len(self._kept) - 1, old - 1, -1)]
        again = [self._kept[i] for i in generator.permutation(old)[: self._fresh].tolist()]
        self._fresh = 0
        return [*_up_to(fresh, _ROWS), *_up_to(again, _ROWS)]


def _up_to(examples: List[Example], rows: int) -> list[Example]:
    # The first examples, one at least, with so many rows together at most.
    sizes = np.cumsum([len(each.tokens) for each in examples])
    return list(examples[: max(1, int((sizes <= rows).sum()))])

"""StreamingThinker (Tong et al. 2025, arXiv:2510.17238): think of a sentence while others come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.core.options import require
from paceline.core.target import Target
from paceline.core.types import Described
from paceline.errors import InvalidOption
from paceline.lab.measure.streams import Piece
from paceline.methods.streams.groups import TwoStreams


@dataclass(frozen=True, slots=True)
class Cues:
    """Tokens that a model was trained with.

    Attributes:
        thought: in front of what it thinks of a sentence, at least one.
        end: behind a thought, and behind an answer.
        closing: in front of each part that follows the question: one for an answer alone (D1), two
            where all is thought of together before it (D2), three where that is checked (D3).
    """

    thought: Sequence[int]
    end: int
    closing: Sequence[Sequence[int]]


class Passage:
    """What a model writes from a cue to the end token, greedily, at most so many tokens."""

    def __init__(self, cue: Sequence[int], end: int, most: int) -> None:
        self.rows, self.tokens = list(cue), list[int]()  # rows that are not run yet; what it says
        self._end, self._most = end, most
        self.ended = False

    def take(self, token: int) -> None:
        """Go on by a token; behind the last, the end token is a row in any case."""
        self.rows, self.ended = [], token == self._end
        if not self.ended:
            self.tokens.append(token)
            self.rows.append(token)
            self.ended = len(self.tokens) == self._most
        if self.ended:
            self.rows.append(self._end)


class StreamingThinker(Described):
    """Reads sentences, thinks of each, and answers: a system of `lab.measure.streams`.

    Thought j sees the sentences up to j and the thoughts before it. Rows of later sentences ride in
    the passes that write it; a sentence sees no thought.

    Attributes:
        thoughts: tokens of those that have ended, the closing ones behind the others.
        read_first: source tokens that were read when the first token was thought; None before.
        passes: forwards so far.
    """

    name: ClassVar[str] = "streaming-thinker"
    guarantee: ClassVar[str] = "lossy: a model of another kind; equal to its masked forward"
    requires: ClassVar[str] = "a model trained to think so; none ships"
    paper: ClassVar[str] = "after StreamingThinker, Tong et al. 2025, arXiv:2510.17238"

    def __init__(
        self, target: Target, cues: Cues, *, most: int = 32, ride: int = 16, waits: bool = False
    ) -> None:
        """Bind a model.

        Args:
            target: a model that was trained with group positions.
            cues: its tokens.
            most: tokens of a thought or answer.
            ride: source tokens that are read in a pass that writes, at most.
            waits: read everything first, and let every thought see it: what this is measured by.

        InvalidOption: a number is out of range, a cue is empty, or as for `TwoStreams`.
        """
        require(most >= 1, "most", most, "1 or more")
        require(ride >= 0, "ride", ride, "0 or more")
        if not cues.closing or not all([cues.thought, *cues.closing]):
            raise InvalidOption("a cue is empty, or none leads to an answer: name tokens for each")
        self._groups, self._cues = TwoStreams(target), cues
        self._most, self._ride, self._waits = most, ride, waits
        self._unread: list[int] = []
        self._ends: list[int] = []  # of sentences, in source rows
        self._asked = False
        self._now: Passage | None = None
        self._seen = 0
        self._left: list[int] = []  # rows of the last passage that are not run yet
        self._left_seen = 0
        self.thoughts: list[list[int]] = []
        self.read_first: int | None = None
        self.passes = 0

    def hear(self, piece: Piece) -> None:
        """Take the tokens of a sentence; InvalidOption for one that would take others back."""
        if piece.change:
            raise InvalidOption("what was thought of a sentence stands: send others behind it")
        self._unread += piece.what
        self._ends.append(len(self._groups.source) + len(self._unread))

    def ask(self) -> None:
        self._asked = True

    def work(self) -> bool:
        groups = self._groups
        self._now = self._now or self._next()
        source = self._unread[: self._ride] if self._now else self._unread[:]
        rows = self._left + self._now.rows if self._now else []
        seen = [self._left_seen] * len(self._left) + [self._seen] * (len(rows) - len(self._left))
        if not source and not rows:
            return False
        logits = groups.forward(source, rows, seen[: len(rows)])
        groups.keep()
        self.passes += 1
        del self._unread[: len(source)]
        if self._now:
            self._now.take(int(logits[-1].argmax()))
            self._left = self._now.rows if self._now.ended else []
            self._left_seen = self._seen
            if self.read_first is None:
                self.read_first = len(groups.source) - len(source)
            if self._now.ended:
                self.thoughts.append(self._now.tokens)
                self._now = None
        return True

    def _next(self) -> Passage | None:
        read, count, thought = len(self._groups.source), len(self._ends), len(self.thoughts)
        cues, ready = self._cues, self._asked and not self._unread
        if thought < count and (ready or (read >= self._ends[thought] and not self._waits)):
            self._seen = read if self._waits else self._ends[thought]
            return Passage(cues.thought, cues.end, self._most)
        if ready and count <= thought < count + len(cues.closing):
            self._seen = read
            return Passage(cues.closing[thought - count], cues.end, self._most)
        return None

    def said(self) -> Any:
        """Return the tokens of the answer so far, None before the first."""
        last = len(self._ends) + len(self._cues.closing) - 1
        if self.done:
            return self.thoughts[-1]
        return (self._now.tokens or None) if self._now and len(self.thoughts) == last else None

    @property
    def done(self) -> bool:
        parts = len(self._ends) + len(self._cues.closing)
        return self._asked and not self._unread and len(self.thoughts) == parts

    def close(self) -> None:
        self._groups.close()

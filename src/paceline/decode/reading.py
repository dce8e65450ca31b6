"""Tokens on their way into the target's cache before a sequence decodes: its prompt, or after a
preemption all that it had.

They come in chunks, which ride as passes without drafts in the forwards of other sequences' steps
(where a chunk ends does not change a bit of the cache). A sequence begins with what others have
cached of its head, but for tokens whose features its drafter needs: those come from reading.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np

from paceline.scheduling.chunks import Chunk
from paceline.scheduling.memory import memory_of
from paceline.sequence import Sequence
from paceline.target import Output, Pass, Target
from paceline.types import LogitArray, Needs


class Reader:
    """Opens, fills and releases the caches of sequences in one target."""

    def __init__(self, target: Target) -> None:
        """Read nothing yet."""
        self._target = target
        self._paged = memory_of(target) is not None
        self._features: dict[int, list[LogitArray]] = {}

    def open(self, sequence: Sequence, needs: Needs) -> None:
        """Give a sequence a cache, which may hold the head of its tokens already."""
        sequence.cache = self._target.open()
        sequence.reading = True
        self.share(sequence, needs)

    def share(self, sequence: Sequence, needs: Needs) -> None:
        """Go on from what others have cached of a sequence's head meanwhile."""
        if not self._paged:
            return
        read = sequence.cache.length
        sequence.cache.share(sequence.tokens[: _featureless(sequence, needs)])
        if sequence.cache.length != read:
            self._features.pop(sequence.id, None)  # they are of tokens before a gap

    def read_all(self, sequence: Sequence, needs: Needs) -> None:
        """Read what is unread at once; raises OutOfMemory."""
        rest = sequence.tokens[sequence.cache.length : -1]
        seen = self._target.prefill(sequence.cache, rest, needs.features)
        self._note(sequence, seen)

    def passes(self, chunks: List[Chunk], needs: Needs) -> list[Pass]:
        """What `chunks` bring into a forward."""
        out = []
        for sequence, tokens in chunks:
            start = sequence.cache.length
            end = start + tokens
            out.append(Pass(sequence.cache, sequence.tokens[start:end], features=needs.features))
        return out

    def take(self, chunks: List[Chunk], outputs: List[Output], seconds: float) -> None:
        """Keep what a forward has read in so many seconds."""
        total = sum(chunk.tokens for chunk in chunks)
        for (sequence, tokens), output in zip(chunks, outputs, strict=True):
            self._target.keep(sequence.cache, tokens, ())
            features = output.features
            self._note(sequence, None if features is None else features.copy())
            sequence.stats.prefill_seconds += seconds * tokens / total

    def features(self, sequence: Sequence) -> LogitArray | None:
        """Features of the last tokens before the root, if they were asked for."""
        seen = self._features.get(sequence.id)
        if seen is None:
            return None
        return seen[0] if len(seen) == 1 else np.concatenate(seen)

    def done(self, sequence: Sequence) -> None:
        """The sequence decodes from now on."""
        self._features.pop(sequence.id, None)
        sequence.reading = False

    def close(self, sequence: Sequence) -> None:
        """Release a sequence's cache; others may still begin with what it held."""
        self.done(sequence)
        if sequence.cache is not None:
            if self._paged:
                sequence.cache.publish(sequence.tokens)
            self._target.release(sequence.cache)
            sequence.cache = None

    def _note(self, sequence: Sequence, features: LogitArray | None) -> None:
        if self._paged:
            sequence.cache.publish(sequence.tokens)
        if features is not None:
            self._features.setdefault(sequence.id, []).append(features)


def _featureless(sequence: Sequence, needs: Needs) -> int:
    """How many tokens the sequence begins with whose features nobody needs."""
    before = len(sequence.tokens) - 1
    if not needs.features:
        return before
    return 0 if needs.recent is None else max(0, before - needs.recent)

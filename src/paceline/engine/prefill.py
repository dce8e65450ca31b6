"""Chunked prefill of a sequence's tokens: its prompt, or after preemption all it had.

Chunks are passes without drafts in other sequences' forwards; their boundaries change no result.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import NamedTuple

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Output, Pass, Target
from paceline.core.types import LogitArray, Needs
from paceline.engine.memory import memory_of
from paceline.policy.cost import CostModel
from paceline.sampling.sampler import logprobs
from paceline.sampling.sequence import Sequence

# Chunked prefill:

# Chunk size while no request decodes; larger ones are no cheaper.
ALONE = 512

# Most seconds of such a chunk, by those before: so long cancelling and stopping wait.
PIECE_SECONDS = 0.5

# Smallest chunk under a user's limit: prefill must always progress.
LEAST = 16

# Chunk size beside decoding if costs are unknown, else the smallest. Slower prefill would leave
# the batch below its full size for longer.
BESIDE = 64

# Longest step with a chunk, as a multiple of the step without.
_SLOWER = 3.0

# Largest chunk whose rows all give logits: of 151,000 tokens they take 37 MiB.
SCORED = 64

# Common tokens from which waiting for another's prefill beats prefilling them twice.
_WORTH_WAITING = 64


class Chunk(NamedTuple):
    """The next `tokens` tokens of a sequence to prefill."""

    sequence: Sequence
    tokens: int


def beside(rows: int, costs: CostModel | None, limit: int | None = None) -> int:
    """Return the number of prompt tokens to prefill in one forward beside `rows` running requests.

    `limit` is the user's maximum of rows per forward; None goes by measured `costs`.
    """
    if not rows:
        return ALONE if limit is None else min(limit, ALONE)
    if limit is not None:
        return max(LEAST, limit - rows)
    if costs is None:
        return BESIDE
    longest = _SLOWER * costs.time(rows, rows)
    low, high = BESIDE, ALONE  # times never decrease with rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if costs.time(rows + middle, rows) <= longest else (low, middle - 1)
        )
    return low


def shared_out(reading: List[Sequence], tokens: int, block: int | None = None) -> list[Chunk]:
    """Distribute `tokens` over sequences in prefill, first come, first served.

    With a prefix cache of `block` tokens a sequence waits for another that prefills its prefix.
    """
    chunks: list[Chunk] = []
    for sequence in reading:
        if block and any(_reads_for(chunk.sequence, sequence, block) for chunk in chunks):
            continue
        size = min(sequence.unread, tokens, SCORED if sequence.unscored else tokens)
        if size:
            chunks.append(Chunk(sequence, size))
        tokens -= size
    return chunks


def _reads_for(first: Sequence, second: Sequence, block: int) -> bool:
    common = 0
    for end in range(block, min(len(first.tokens), len(second.tokens)), block):
        if first.tokens[end - block : end] != second.tokens[end - block : end]:
            break
        common = end
    cached: int = max(first.cache.length, second.cache.length)
    return common - cached >= _WORTH_WAITING


class Prefiller:
    """Open, prefill and release the caches of sequences in one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._paged = memory_of(target) is not None
        self._features: dict[int, list[LogitArray]] = {}

    def open(self, sequence: Sequence, needs: Needs, sibling: Sequence | None = None) -> None:
        """Open a cache, which may already hold what a sibling or others have cached."""
        known = 0 if sibling is None else self._adopted(sequence, sibling, needs)
        if sibling is not None and known:
            sequence.cache = self._target.fork(sibling.cache)
            self._target.truncate(sequence.cache, known)
        else:
            sequence.cache = self._target.open()
        sequence.reading = True
        if not sequence.generated:
            sequence.stats.cached_tokens = known
        self.share(sequence, needs)

    def _adopted(self, sequence: Sequence, sibling: Sequence, needs: Needs) -> int:
        # Returns how many tokens a sequence may take from a sibling, with their numbers.
        if sequence.params.prompt_logprobs == sibling.params.prompt_logprobs:
            sequence.prompt_logprobs = list(sibling.prompt_logprobs)
        cached: int = sibling.cache.length
        return min(cached, sequence.prompt_length - 1, _shareable(sequence, needs))

    def share(self, sequence: Sequence, needs: Needs) -> None:
        if not self._paged:
            return
        read = sequence.cache.length
        sequence.cache.share(sequence.tokens[: _shareable(sequence, needs)])
        if sequence.cache.length != read:
            self._features.pop(sequence.id, None)  # features must be contiguous
            if not sequence.generated:
                sequence.stats.cached_tokens += sequence.cache.length - read

    def read_all(self, sequence: Sequence, needs: Needs) -> None:
        """Prefill all unread tokens at once; raises OutOfMemory."""
        while sequence.unscored and sequence.unread:
            chunk = Chunk(sequence, min(sequence.unread, SCORED))
            [output] = self._target.forward(self.passes([chunk], needs))
            self.take(chunk, output, 0.0)
        rest = sequence.tokens[sequence.cache.length : -1]
        seen = self._target.prefill(sequence.cache, rest, needs.features)
        self._note(sequence, seen)

    def passes(self, chunks: List[Chunk], needs: Needs) -> list[Pass]:
        out = []
        for sequence, size in chunks:
            start = sequence.cache.length
            pending, draft = sequence.tokens[start : start + size], None
            if sequence.unscored:  # all rows of a draft have logits
                pending, draft = pending[:1], trees.chain(pending[1:])
            pools = sequence.unscored and sequence.pooled is not None
            out.append(Pass(sequence.cache, pending, draft, pools, needs.features))
        return out

    def take(self, chunk: Chunk, output: Output, seconds: float) -> None:
        """Commit a chunk of a forward that took `seconds` for it."""
        sequence, size = chunk
        if sequence.unscored:
            self._score(sequence, output)
            self._target.keep(sequence.cache, 1, range(size - 1))
        else:
            self._target.keep(sequence.cache, size, ())
        features = output.features
        self._note(sequence, None if features is None else features.copy())
        sequence.stats.prefill_seconds += seconds

    def _score(self, sequence: Sequence, output: Output) -> None:
        # Row i follows the token at `start + i`. Some may be known, from before a preemption.
        top, start = sequence.params.prompt_logprobs, sequence.cache.length
        if sequence.pooled is not None and output.hidden is not None:
            for state in output.hidden[sequence.scored - start :]:
                sequence.pooled.add(state)
            return
        assert top is not None
        rows = output.logits
        done = 1 + len(sequence.prompt_logprobs)
        for place in range(done, min(start + len(rows) + 1, sequence.prompt_length)):
            row, token = rows[place - 1 - start], sequence.tokens[place]
            sequence.prompt_logprobs.append(logprobs(row, token, top))

    def features(self, sequence: Sequence) -> LogitArray | None:
        """Return features of the last tokens before the root, if needed by the drafter."""
        seen = self._features.get(sequence.id)
        if seen is None:
            return None
        return seen[0] if len(seen) == 1 else np.concatenate(seen)

    def done(self, sequence: Sequence) -> None:
        self._features.pop(sequence.id, None)
        sequence.reading = False

    def close(self, sequence: Sequence) -> None:
        """Release a sequence's cache; its tokens stay in the prefix cache."""
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


def _shareable(sequence: Sequence, needs: Needs) -> int:
    # Shared tokens get no features and no logits: sharing ends where either is needed.
    before = len(sequence.tokens) - 1
    if sequence.unscored:
        before = sequence.scored
    if not needs.features:
        return before
    return (
        0 if needs.recent is None else max(0, min(before, len(sequence.tokens) - 1 - needs.recent))
    )

"""Chunked prefill of a sequence's tokens: its prompt, or after preemption all it had.

Chunks are rows without drafts in other sequences' forwards; their boundaries change no result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple, cast

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import (
    LEAVING,
    SINKS,
    Listens,
    Output,
    Rows,
    Slides,
    Target,
    room_of,
    whole,
)
from paceline.core.types import BoolArray, LogitArray, Needs
from paceline.engine.memory import memory_of
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation
from paceline.sampling.sampler import logprobs

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
SLOWER = 3.0

# Largest chunk whose rows all give logits: of 151,000 tokens they take 37 MiB.
SCORED = 64

# Common tokens from which waiting for another's prefill beats prefilling them twice.
_WORTH_WAITING = 64


class Chunk(NamedTuple):
    """The next `tokens` tokens of a sequence to prefill."""

    sequence: Generation
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
    longest = SLOWER * costs.time(rows, rows)
    low, high = BESIDE, ALONE  # times never decrease with rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if costs.time(rows + middle, rows) <= longest else (low, middle - 1)
        )
    return low


def shared_out(reading: Sequence[Generation], tokens: int, block: int | None = None) -> list[Chunk]:
    """Distribute `tokens` over sequences in prefill, first come, first served.

    With a prefix cache of `block` tokens a sequence waits for another that prefills its prefix.
    """
    chunks: list[Chunk] = []
    for sequence in reading:
        known = None if sequence.speech is not None else block
        if known and any(_reads_for(chunks, at, sequence, known) for at in range(len(chunks))):
            continue
        size = min(sequence.unread, tokens, SCORED if sequence.unscored else tokens)
        size = sequence.cache.unmarked(size) if block else size
        size = uncut(sequence, before_leaving(sequence, size))
        if size:
            chunks.append(Chunk(sequence, size))
        tokens = max(tokens - size, 0)
    return chunks


def before_leaving(sequence: Generation, tokens: int) -> int:
    """Return how many of the next tokens one forward may take: of an endless text those that come
    before others leave it."""
    return min(tokens, room_of(sequence.cache) or LEAVING) if sequence.window else tokens


def uncut(sequence: Generation, tokens: int) -> int:
    """Return how many of the next tokens one forward takes so that it cuts no span.

    They are fewer, or all that is left of a span which begins with them.
    """
    begin: int = sequence.cache.length
    for span in sequence.spans if tokens else ():
        if span.start < begin + tokens < span.stop:
            return (span.start if span.start > begin else span.stop) - begin
    return tokens


def _seen(sequence: Generation, begin: int, size: int) -> BoolArray | None:
    # What the rows of a chunk see of one another; None if it is as always.
    sees: BoolArray | None = None
    for span in sequence.spans:
        own = slice(max(span.start - begin, 0), max(min(span.stop - begin, size), 0))
        if own.start < own.stop:
            sees = np.tri(size, dtype=np.bool_) if sees is None else sees
            sees[own, own] = True
    return sees


def _reads_for(chunks: list[Chunk], at: int, second: Generation, block: int) -> bool:
    (first, size), common = chunks[at], 0
    ids, others = first.inputs, second.inputs
    most = min(len(ids), len(others))
    for each in (first, second):  # what endless texts have behind is their own
        most = min(most, whole(each.window)) if each.window else most
    for end in range(block, most, block):
        if ids[end - block : end] != others[end - block : end]:
            break
        common = end
    cached: int = max(first.cache.length, second.cache.length)
    if common - cached < _WORTH_WAITING:
        return False
    first.cache.mark(common)
    chunks[at] = Chunk(first, first.cache.unmarked(size))
    return True


# Bytes of features that are kept for later sequences.
FEATURE_BYTES = 64 << 20


class KeptFeatures:
    """Features of full blocks of tokens, for drafters of later sequences with the same prefix.

    The least recently used go first.
    """

    def __init__(self, block: int, most: int = FEATURE_BYTES) -> None:
        """Keep at most so many bytes, in blocks of so many tokens."""
        self.block, self._most = block, most
        self._blocks: OrderedDict[bytes, LogitArray] = OrderedDict()

    def add(self, tokens: Sequence[int], features: LogitArray) -> LogitArray:
        """Keep the full blocks of features of the last of `tokens`; return the rows behind them."""
        features = features[-(self._most // features[0].nbytes) :]
        first = len(tokens) - len(features)
        begin = -(-first // self.block) * self.block
        for end, key in self._keys(tokens, begin):
            rows = features[end - self.block - first : end - first]
            self._blocks[key] = rows.copy()
            self._blocks.move_to_end(key)
            begin = end
        while len(self._blocks) * self.block * features[0].nbytes > self._most:
            self._blocks.popitem(last=False)
        return features[max(0, begin - first) :].copy()

    def behind(self, tokens: Sequence[int], begin: int) -> tuple[int, LogitArray | None]:
        """Return where the block of `begin` begins, and features from there on, as far as kept."""
        found = []
        begin -= begin % self.block
        for _, key in self._keys(tokens, begin):
            if key not in self._blocks:
                break
            self._blocks.move_to_end(key)
            found.append(self._blocks[key])
        return begin, _joined(found) if found else None

    def _keys(self, tokens: Sequence[int], begin: int) -> Iterator[tuple[int, bytes]]:
        # End and name of each full block: features depend on all tokens before.
        name = blake2b(np.array(tokens[:begin]).tobytes(), digest_size=16)
        for end in range(begin + self.block, len(tokens) + 1, self.block):
            name.update(np.array(tokens[end - self.block : end]).tobytes())
            yield end, name.digest()


def shared_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts begin with that are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _joined(parts: Sequence[LogitArray]) -> LogitArray:
    # Boundaries that the target was told to read since then come last: all have the first columns.
    width = min(part.shape[1] for part in parts)
    return parts[0] if len(parts) == 1 else np.concatenate([part[:, :width] for part in parts])


class Prefiller:
    """Open, prefill and release the caches of sequences in one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        memory = memory_of(target)
        self._paged = memory is not None
        self._features: dict[int, list[LogitArray]] = {}
        self._kept = KeptFeatures(1 if memory is None else memory.block)
        self._tails: dict[int, list[LogitArray]] = {}  # features of blocks that are not full yet

    def open(self, sequence: Generation, needs: Needs, sibling: Generation | None = None) -> None:
        """Open a cache, which may already hold what a sibling or others have cached."""
        known = 0 if sibling is None else self._adopted(sequence, sibling, needs)
        if sibling is not None and known:
            sequence.cache = self._target.fork(sibling.cache)
            self._target.truncate(sequence.cache, known)
            known = sequence.cache.length  # a state may have gone back further
        elif sequence.speech is not None:
            assert isinstance(self._target, Listens)
            sequence.cache = self._target.open_to(sequence.speech.memory)
        else:
            sequence.cache = self._target.open()
            if sequence.window:
                sequence.cache.window = sequence.window
        sequence.reading = True
        if not sequence.generated:
            sequence.stats.cached_tokens = known
        self.share(sequence, needs)

    def _adopted(self, sequence: Generation, sibling: Generation, needs: Needs) -> int:
        # Returns how many tokens a sequence may take from a sibling, with their numbers.
        if sequence.params.prompt_logprobs == sibling.params.prompt_logprobs:
            sequence.prompt_logprobs = list(sibling.prompt_logprobs)
        if sequence.window != sibling.window:
            return 0
        cached: int = sibling.cache.length
        return min(cached, sequence.prompt_length - 1, _shareable(sequence, needs))

    def share(self, sequence: Generation, needs: Needs) -> None:
        if not self._paged or sequence.speech is not None:  # of another sound all is different
            return
        read, limit, ids = sequence.cache.length, _shareable(sequence, needs), sequence.inputs
        begin, known = limit, None
        if needs.features and needs.recent is not None:
            begin, known = self._kept.behind(ids[: _unasked(sequence)], limit)
        sequence.cache.share(ids[: limit if known is None else begin + len(known)])
        if sequence.cache.length != read:
            self._forget(sequence)  # features must be contiguous
            if known is not None and sequence.cache.length > begin:
                self._features[sequence.id] = [known[: sequence.cache.length - begin]]
            if not sequence.generated:
                sequence.stats.cached_tokens += sequence.cache.length - read

    def read_all(self, sequence: Generation, needs: Needs) -> None:
        """Prefill all unread tokens at once; raises OutOfMemory."""
        while sequence.unread and (sequence.unscored or sequence.window or sequence.spans):
            self.slide([sequence])
            size = min(sequence.unread, SCORED if sequence.unscored else ALONE)
            chunk = Chunk(sequence, uncut(sequence, before_leaving(sequence, size)))
            [output] = self._target.forward(self.rows([chunk], needs))
            self.take(chunk, output, 0.0)
        rest = sequence.inputs[sequence.cache.length : -1]
        seen = self._target.prefill(sequence.cache, rest, needs.features)
        self._note(sequence, seen)

    def slide(self, sequences: Iterable[Generation]) -> None:
        """Let the oldest tokens leave endless texts that are full; raises OutOfMemory."""
        for each in sequences:
            if each.window and not room_of(each.cache):
                cast(Slides, self._target).slide(each.cache, each.tokens[:SINKS])

    def rows(self, chunks: Sequence[Chunk], needs: Needs) -> list[Rows]:
        out = []
        for sequence, size in chunks:
            start = sequence.cache.length
            tokens, draft = sequence.inputs[start : start + size], None
            if sequence.unscored:  # all rows of a draft have logits
                tokens, draft = tokens[:1], trees.chain(tokens[1:])
            sees = _seen(sequence, start, size)
            if sees is not None:
                at = np.arange(start, start + size)
                block = Rows.block(sequence.cache, tokens, at, sees, num_new=size)
                out.append(replace(block, features=needs.features))
                continue
            pools = sequence.unscored and sequence.pooled is not None
            out.append(
                Rows.draft(sequence.cache, tokens, draft, hidden=pools, features=needs.features)
            )
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

    def _score(self, sequence: Generation, output: Output) -> None:
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

    def rewrite(self, old: Generation, new: Generation, needs: Needs) -> None:
        """Hand the cache of an open sequence to one with another prompt.

        What both begin with stays, but for the root, if nothing is asked for of it that it lacks.
        """
        before = old.cache.length
        kept = min(before, shared_prefix(old.tokens, new.tokens), len(new.tokens) - 1)
        if new.unscored:
            same = old.params.prompt_logprobs == new.params.prompt_logprobs
            kept = min(max(kept - 1, 0), len(old.prompt_logprobs)) if same else 0
        begin = before - sum(map(len, self._features.get(old.id, ())))
        if needs.features and begin > _shareable(new, needs):
            kept = min(kept, _shareable(new, needs))  # features of all behind are wanted
        if old.window != new.window:
            kept = 0
        new.cache, new.reading = old.cache, True
        if kept < before:
            self._target.truncate(new.cache, kept)
            kept = new.cache.length  # a state may have gone back further
            self._tails.pop(old.id, None)
            rows = self.features(old)
            self._features.pop(old.id, None)
            if rows is not None and kept > begin:
                self._features[new.id] = [rows[: kept - begin].copy()]
        if old.window != new.window:
            new.cache.window = new.window
        new.prompt_logprobs = old.prompt_logprobs[:kept] if new.unscored else []
        new.stats.cached_tokens = kept

    def features(self, sequence: Generation) -> LogitArray | None:
        """Return features of the last tokens before the root, if needed by the drafter."""
        seen = self._features.get(sequence.id)
        if seen is None:
            return None
        return _joined(seen)

    def done(self, sequence: Generation) -> None:
        self._features.pop(sequence.id, None)
        sequence.reading = False

    def committed(
        self, sequence: Generation, features: LogitArray | None, path: Sequence[int]
    ) -> None:
        """Keep the features of a step, of the root and of a path of its draft."""
        if features is not None:
            features = features[[0, *(node + 1 for node in path)]]
        self._keep(sequence, features)

    def _keep(self, sequence: Generation, features: LogitArray | None) -> None:
        # Features of the last cached tokens, for later sequences; None makes a gap.
        parts = self._tails.pop(sequence.id, [])
        if features is None or not self._paged or sequence.speech is not None:
            return
        if sequence.window and sequence.cache.gone:
            return
        # A stop may have cut tokens that are cached.
        end = min(sequence.cache.length, len(sequence.tokens))
        parts.append(features[: len(features) - (sequence.cache.length - end)])
        if end // self._kept.block > (end - sum(map(len, parts))) // self._kept.block:
            parts = [self._kept.add(sequence.inputs[:end], _joined(parts))]
        self._tails[sequence.id] = parts

    def _forget(self, sequence: Generation) -> None:
        self._features.pop(sequence.id, None)
        self._tails.pop(sequence.id, None)

    def close(self, sequence: Generation) -> None:
        """Release a sequence's cache; its tokens stay in the prefix cache."""
        self.done(sequence)
        self._forget(sequence)
        if sequence.cache is not None:
            if self._paged:
                sequence.cache.publish(sequence.inputs, ended=True)
            self._target.release(sequence.cache)
            sequence.cache = None

    def _note(self, sequence: Generation, features: LogitArray | None) -> None:
        if self._paged:
            sequence.cache.publish(sequence.inputs)
        if features is not None:
            self._features.setdefault(sequence.id, []).append(features)
        self._keep(sequence, features)


def _unasked(sequence: Generation) -> int:
    # Tokens in front whose logits nobody asks for: shared ones get none.
    return sequence.scored if sequence.unscored else len(sequence.tokens) - 1


def _shareable(sequence: Generation, needs: Needs) -> int:
    # Shared tokens get no features either, but for those that are kept.
    if not needs.features:
        return _unasked(sequence)
    recent = len(sequence.tokens) if needs.recent is None else needs.recent
    return max(0, min(_unasked(sequence), len(sequence.tokens) - 1 - recent))

"""Attention over keys that lie on several ranks, to the bits of the engine's own.

Ring attention (Liu et al. 2023, arXiv:2310.01889) sends keys and values round. TokenRing (Wang et
al. 2024, arXiv:2412.20501) sends queries round, and results straight back to their owner, so that
links carry data both ways.

Results that are merged as they come are the engine's within a bound, and their last bits are those
of the order. In the order of keys they are the engine's to the bit: ranks hold whole chunks, the
highest score of all is found first, in any order, then the sum of weights goes from chunk to chunk,
then that of values. Who sends keys round does so at home; queries go on two tours more.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.core.options import require
from paceline.core.types import LogitArray
from paceline.runtimes.reference.arithmetic import CHUNK, ChunkSums, attention_parts, fma, relative

Sent = Literal["keys", "queries"]

Tour: TypeAlias = Iterator[tuple[int, Sequence[LogitArray], int]]
"""What goes from rank to rank: yields the next one, the arrays that it carries there, and which of
`Ring.sent` they are."""

ROUND, BACK = 0, 1


class Partial(NamedTuple):
    """Attention over some of the keys.

    Attributes:
        out: `[rows, heads, width]`, the mean of their values.
        lse: `[rows, heads]`, the logarithm of the sum of e to their scores.
    """

    out: LogitArray
    lse: LogitArray


def merged(first: Partial, second: Partial) -> Partial:
    """Return attention over the keys of both."""
    lse = np.logaddexp(first.lse, second.lse)
    shares = (relative(each.lse, lse)[..., None] for each in (first, second))
    out = next(shares) * first.out + next(shares) * second.out
    return Partial(out, lse)


class Sums:
    """Weights and values of chunks, summed in the order in which they are added.

    Attributes:
        highest: score over all keys, `[rows, heads]`.
        total: of the weights, likewise.
        mean: of the values, `[rows, heads, width]`.
    """

    def __init__(self, highest: LogitArray, width: int) -> None:
        self.highest = highest
        self.total = np.zeros_like(highest)
        self.mean = np.zeros((*highest.shape, width), np.float32)

    def weigh(self, part: ChunkSums) -> None:
        self.total = fma(part.weight, relative(part.highest, self.highest), self.total)

    def add(self, part: ChunkSums) -> None:
        """Add values, once all parts are weighed; those of rows that see nothing stay 0."""
        some = np.where(self.total > 0, self.total, np.float32(1))
        share = relative(part.highest, self.highest) / some
        self.mean = fma(part.values, share[..., None], self.mean)


def in_order(parts: Sequence[ChunkSums]) -> Sums:
    """Return the sums of chunks, which stand in the order of their keys."""
    sums = Sums(np.max([part.highest for part in parts], axis=0), parts[0].values.shape[-1])
    for part in parts:
        sums.weigh(part)
    for part in parts:
        sums.add(part)
    return sums


def chunks_of(count: int, ranks: int, zigzag: bool) -> list[list[int]]:
    """Return the numbers of the chunks of each rank, ascending.

    With `zigzag` a rank has a piece of the first half and its mirror image in the second, so that
    causal work is even.
    """
    pieces = np.array_split(np.arange(count), 2 * ranks if zigzag else ranks)
    own = [[at, len(pieces) - 1 - at] if zigzag else [at] for at in range(ranks)]
    return [np.concatenate([pieces[at] for at in pair]).tolist() for pair in own]


class Ring:
    """Attention of rows that lie where their keys do, on simulated ranks with links between all.

    Attributes:
        sent: int64 `[ranks, 2]`, bytes that each sent in the last run: keys or queries to the next
            rank, and results to where they are wanted.
    """

    def __init__(
        self,
        queries: LogitArray,
        keys: LogitArray,
        values: LogitArray,
        ranks: int,
        *,
        causal: bool = True,
        zigzag: bool = True,
        merge: Callable[[Partial, Partial], Partial] = merged,
    ) -> None:
        """Spread rows over ranks.

        Args:
            queries: float32 `[rows, heads, width]`, rotated and scaled.
            keys: float32 `[rows, kv heads, width]`, rotated.
            values: likewise.
            ranks: at most one a chunk; with `zigzag` one for two.
            causal: rows see those up to their own; else all.
            zigzag: see `chunks_of`.
            merge: of results that come in any order.

        Raises InvalidOption for another number of ranks.
        """
        chunks = -(-len(queries) // CHUNK)
        most = chunks // 2 if zigzag else chunks
        require(1 <= ranks <= most, "ranks", ranks, f"from 1 to {most} ranks for {chunks} chunks")
        self._own = chunks_of(chunks, ranks, zigzag)
        # Of each chunk its rank.
        self._holders = {each: rank for rank, own in enumerate(self._own) for each in own}
        places = np.arange(len(queries))
        self._rows = [places[np.isin(places // CHUNK, own)] for own in self._own]
        self._queries, self._keys, self._values = queries, keys, values
        self._causal, self._merge = causal, merge
        self.sent: npt.NDArray[np.int64] = np.zeros((ranks, 2), np.int64)

    def run(self, send: Sent, *, ordered: bool, seed: int = 0) -> LogitArray:
        """Return `[rows, heads, width]`.

        Args:
            send: what goes round.
            ordered: sums are made in the order of keys; else as results come.
            seed: of how fast links are.
        """
        self.sent[:] = 0
        self._out = np.zeros_like(self._queries)
        self._found: dict[int, Partial] = {}  # by owner, what was merged so far
        self._parts: list[dict[int, ChunkSums]] = [{} for _ in self._own]  # by owner and chunk
        way = self._queries_round if send == "queries" else self._keys_round
        self._moving = [(rank, way(rank, ordered)) for rank in range(len(self._own))]
        speeds = random.Random(seed)
        while self._moving:
            rank, tour = self._moving.pop(speeds.randrange(len(self._moving)))
            for to, carried, kind in itertools.islice(tour, 1):
                if to != rank:
                    self.sent[rank, kind] += sum(each.nbytes for each in carried)
                self._moving.append((to, tour))
        return self._out

    def _round(self, rank: int) -> list[int]:
        return [(rank + each) % len(self._own) for each in range(len(self._own))]

    def _keys_round(self, origin: int, ordered: bool) -> Tour:
        rows = self._rows[origin]
        for rank in self._round(origin):
            yield rank, (self._keys[rows], self._values[rows]), ROUND
            parts = self._attend(rank, origin)
            if not ordered:
                self._merge_in(rank, _partial(parts))
            elif len(self._parts[rank]) == len(self._holders):
                self._out[self._rows[rank]] = in_order(self._parts_of(rank)).mean

    def _queries_round(self, owner: int, ordered: bool) -> Tour:
        queries = self._queries[self._rows[owner]]
        highest = np.full(queries.shape[:2], -np.inf, np.float32)
        for rank in self._round(owner):
            yield rank, (queries, highest) if ordered else (queries,), ROUND
            parts = self._attend(owner, rank)
            highest = np.max([highest, *(part.highest for part in parts)], axis=0)
            if not ordered:
                self._moving.append((rank, self._result(owner, _partial(parts))))
        if ordered:
            sums = Sums(highest, queries.shape[2])
            for chunk, part in enumerate(self._parts_of(owner)):
                yield self._holders[chunk], (highest, sums.total), BACK
                sums.weigh(part)
            for chunk, part in enumerate(self._parts_of(owner)):
                yield self._holders[chunk], (highest, sums.total, sums.mean), BACK
                sums.add(part)
            yield owner, (sums.mean,), BACK
            self._out[self._rows[owner]] = sums.mean

    def _result(self, owner: int, partial: Partial) -> Tour:
        yield owner, partial, BACK
        self._merge_in(owner, partial)

    def _attend(self, owner: int, holder: int) -> list[ChunkSums]:
        # Of an owner's rows over the chunks of a rank, where they stay.
        rows, queries = self._rows[owner], self._queries[self._rows[owner]]
        found = {}
        for chunk in self._own[holder]:
            own = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            keys, values = (
                each[own].repeat(queries.shape[1] // each.shape[1], axis=1)
                for each in (self._keys, self._values)
            )
            seen = np.minimum(len(keys), rows + 1 - own.start) if self._causal else len(keys)
            places = np.arange(CHUNK)
            paths = np.where(places < np.broadcast_to(seen, len(rows))[:, None], places, -1)
            [found[chunk]] = attention_parts(queries, keys, values, paths)
        self._parts[owner] |= found
        return list(found.values())

    def _parts_of(self, owner: int) -> list[ChunkSums]:
        return [part for _, part in sorted(self._parts[owner].items())]

    def _merge_in(self, owner: int, partial: Partial) -> None:
        before = self._found.get(owner)
        self._found[owner] = partial if before is None else self._merge(before, partial)
        self._out[self._rows[owner]] = self._found[owner].out


def _partial(parts: Sequence[ChunkSums]) -> Partial:
    sums = in_order(parts)
    with np.errstate(divide="ignore"):
        return Partial(sums.mean, sums.highest + np.log(sums.total))

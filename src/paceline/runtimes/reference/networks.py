"""Drafter networks in NumPy, sequence by sequence: what other runners draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from paceline.core.types import LogitArray
from paceline.models.families.base import heads_of
from paceline.models.ops import KV, Sight
from paceline.native.packed import Packed
from paceline.networks.runner import Branch, Chain, ContextUpdate, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Matrices, NetworkMatrices
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import ReferenceCache, ReferenceOps, Seen


@dataclass(eq=False, slots=True)
class ReferenceNetworkCache:
    """Context rows of one sequence.

    Attributes:
        rows: keys and values of the network's layers.
        tail: last context rows.
        behind: rows that the first step wrote after the context.
        branched: rows of branches after those.
        lent: the target's cache, where the network reads it; its own without a target.
    """

    rows: ReferenceCache
    tail: Tail
    behind: int = 0
    branched: int = 0
    lent: ReferenceCache | None = None


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """State of a branch: the network's, and the places of the rows that its steps wrote."""

    value: LogitArray
    places: tuple[int, ...] = ()


class DraftSights:
    """New context rows of a network, and drafts after the last."""

    def __init__(
        self, cache: ReferenceCache, rows: int, lent: ReferenceCache | None = None
    ) -> None:
        self.cache, self.lent = cache, lent
        self.context = cache.length + rows
        self._drafted: defaultdict[int | KV, int] = defaultdict(int)

    @property
    def drafted(self) -> int:
        return max(self._drafted.values(), default=0)

    def see(self, kv: int | KV, rows: int, sees: Sight) -> Seen:
        begin = self.context - rows if isinstance(kv, KV) else self.cache.length
        if sees in ("draft", "block"):
            begin = self.context + self._drafted[kv]
            self._drafted[kv] += rows
        if isinstance(kv, KV):
            mask = np.ones((rows, self.context), np.bool_)
            return Seen(np.arange(begin, begin + rows), begin, mask)
        mask = np.tri(rows, begin + rows, begin, dtype=np.bool_)
        mask[:, begin:] |= sees == "block"
        return Seen(np.arange(begin, begin + rows), begin, mask)


class StepSights:
    """Rows of one step of a branch: they see the context, `above` and themselves."""

    def __init__(
        self, cache: ReferenceNetworkCache, context: int, above: Sequence[int], end: int
    ) -> None:
        """Bind places in the cache; the new rows begin at `end`."""
        self.cache, self.lent, self.context = cache.rows, cache.lent, context
        self._above, self._end = list(above), end

    def see(self, kv: int | KV, rows: int, sees: Sight) -> Seen:
        begin, first = self._end, self.context + len(self._above)
        if isinstance(kv, KV):
            mask = np.ones((rows, self.context), np.bool_)
            return Seen(np.arange(first, first + rows), begin, mask)
        mask = np.tri(rows, begin + rows, begin, dtype=np.bool_)
        mask[:, begin:] |= sees == "block"
        mask[:, self.context : begin] = False
        mask[:, self._above] = True
        return Seen(np.arange(first, first + rows), begin, mask)


class ReferenceRunner:
    """A network in NumPy, without noise or head preview. Implements `networks.runner.Runner`."""

    ops = ReferenceOps

    def __init__(self, trained: Trained, target: Matrices, precision: str) -> None:
        """Bind weights; arguments and errors are those of `NetworkMatrices`."""
        self._network, self._ids = trained.network, [*trained.draft_ids.tolist(), -1]
        self._formats = NetworkMatrices(trained, target, precision, Packed())
        self._matrix = cache(lambda part: matrix(*self._formats.blocks(part)))
        self._dtype = np.float32 if precision == "fp32" else np.float16

    @property
    def depth(self) -> int:
        return self._network.depth

    def open(self) -> ReferenceNetworkCache:
        rows, tail = self._rows(self._network.layers), Tail(self._network)
        return ReferenceNetworkCache(rows, tail, lent=self._rows(self._network.above))

    def _rows(self, layers: int) -> ReferenceCache:
        shape = self._network.config
        sizes = max(layers, 1), 2, 0, shape.kv_heads, shape.head_dim
        return ReferenceCache(np.zeros(sizes, self._dtype))

    def release(self, cache: ReferenceNetworkCache) -> None:
        cache.rows.data, cache.rows.length = cache.rows.data[:, :, :0].copy(), 0

    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        found = [self._chain(each, depth) for each in context_update]
        return [chain for each in found for chain in each]

    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        out = []
        for each in context_update:
            ops, state = self._start(each)
            cache: ReferenceNetworkCache = each.cache
            begin = cache.rows.length
            places = tuple(range(begin, begin + cache.behind))
            logits = self._network.logits(ops, state, 0)
            out.append(Branch(cache, None, (), ReferenceState(state, places), logits))
        return out

    def advance(self, asked: Sequence[tuple[Branch, Sequence[int]]]) -> list[Branch]:
        return [self._advance(*each) for each in asked]

    def hidden(self, branch: Branch) -> LogitArray:
        state: ReferenceState = branch.state
        return state.value

    def _ops(self, sights: DraftSights | StepSights) -> ReferenceOps:
        return self.ops(self._formats, self._matrix, self._network.config.norm_eps, sights)

    def _start(self, update: ContextUpdate) -> tuple[ReferenceOps, LogitArray]:
        cache: ReferenceNetworkCache = update.cache
        read, again = cache.tail.again(update)
        cache.rows.length -= again
        if update.target is not None:
            cache.lent = update.target
        elif self._network.reads_target:
            self._lend(cache, read.features)
        sights = DraftSights(cache.rows, len(read.tokens), cache.lent)
        ops = self._ops(sights)
        state: LogitArray = self._network.start(ops, read.features, np.array(read.tokens))
        cache.rows.length = sights.context
        cache.behind, cache.branched = sights.drafted, 0
        cache.tail.extend(read)
        return ops, state

    def _lend(self, cache: ReferenceNetworkCache, features: LogitArray) -> None:
        # Computes the target's keys and values of new rows.
        network, lent = self._network, cache.lent
        assert lent is not None
        sights = DraftSights(lent, len(features))
        ops = self._ops(sights)
        rows, heads = network.target_rows(ops, features), heads_of(network.config, 0)
        ops.attend(len(lent.data) - 1, rows, heads)
        lent.length = sights.context

    def _chain(self, update: ContextUpdate, depth: int) -> list[Chain]:
        network = self._network
        ops, state = self._start(update)
        picked: list[list[int]] = []
        sure: list[list[float]] = []
        for step in range(-(-depth // network.width)):
            if step:
                drafted = [first for first, _ in picked[-network.width :]]
                state = network.advance(ops, state, np.array(drafted), step)
            logits = network.logits(ops, state, step)
            best = np.argsort(-logits, axis=-1, kind="stable")[:, :2]
            chances = np.exp(logits - logits.max(-1, keepdims=True))
            chances /= chances.sum(-1, keepdims=True)
            picked += [[self._ids[each] for each in row] for row in best.tolist()]
            sure += np.take_along_axis(chances, best, axis=-1).tolist()
        return chains(np.array([picked]), np.array([sure]), depth) if picked else []

    def _advance(self, branch: Branch, tokens: Sequence[int]) -> Branch:
        cache: ReferenceNetworkCache = branch.cache
        state: ReferenceState = branch.state
        end = cache.rows.length + cache.behind + cache.branched
        sights = StepSights(cache, cache.rows.length, state.places, end)
        ops = self._ops(sights)
        value = self._network.advance(ops, state.value, np.array(tokens), 1)
        places = state.places
        if self._network.layers:
            cache.branched += len(tokens)
            places = (*places, *range(end, end + len(tokens)))
        logits = self._network.logits(ops, value, 1)
        return Branch(cache, branch, tokens, ReferenceState(value, places), logits)

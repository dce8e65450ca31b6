"""Drafter networks in NumPy, sequence by sequence: the definition of what other runners draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.models.families.base import heads_of
from paceline.models.ops import KV, Sight
from paceline.networks.runner import Branch, Chain, ContextUpdate, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Formats, NetworkFormats
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import ReferenceCache, ReferenceOps, Seen


@dataclass(eq=False, slots=True)
class ReferenceNetworkCache:
    """Context rows of one sequence.

    Attributes:
        rows: keys and values of the network's layers.
        tail: last context rows.
        drafted: rows of drafts behind those of the context.
        lent: the target's cache, where the network reads it; its own without a target.
    """

    rows: ReferenceCache
    tail: Tail
    lent: ReferenceCache
    drafted: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceState:
    """State of a branch: the network's, and the places of the rows that its steps wrote."""

    value: LogitArray
    places: Sequence[int]


class NetworkRows:
    """New context rows of a network and drafts after the last, or drafts after those of a branch.

    Implements `runtimes.reference.ops.SeenRows`.
    """

    def __init__(
        self,
        cache: ReferenceCache,
        lent: ReferenceCache | None = None,
        rows: int = 0,
        above: Sequence[int] = (),
        drafted: int = 0,
    ) -> None:
        """Bind caches, and so many new context rows.

        Drafts see the context and the rows at places `above`, and are stored behind `drafted` rows.
        """
        self.cache, self.lent, self.context = cache, lent, cache.length + rows
        self.memory = None if lent is None else lent.memory  # of the sound that it writes down
        self.neighbours: Mapping[int, IntArray] = {}
        self._above, self._end = above, self.context + drafted - len(above)
        self._paths: defaultdict[int | KV, list[int]] = defaultdict(lambda: [*above])

    @property
    def places(self) -> Sequence[int]:
        """Places of the drafted rows, those above first."""
        return max(self._paths.values(), key=len, default=self._above)

    @property
    def drafted(self) -> int:
        """Rows drafted here."""
        return len(self.places) - len(self._above)

    def see(self, kv: int | KV, rows: int, sees: Sight) -> Seen:
        if sees == "root":
            looks = isinstance(kv, KV) and kv.memory
            read = self.memory if looks else self.lent
            assert read is not None
            known = read.length
            return Seen(np.full(rows, known), known, np.ones((rows, known), np.bool_))
        path, drafts = self._paths[kv], sees in ("draft", "block")
        begin = self._end + len(path) if drafts else self.context - rows
        place = self.context + len(path) if drafts else begin
        mask = np.ones((rows, self.context), np.bool_)
        if not isinstance(kv, KV):
            mask = np.tri(rows, begin + rows, begin, dtype=np.bool_)
            mask[:, begin:] |= sees == "block"
            if drafts:
                mask[:, self.context : begin] = False
                mask[:, path] = True
        if drafts:
            path += range(begin, begin + rows)
        return Seen(np.arange(place, place + rows), begin, mask)


class ReferenceRunner:
    """A network in NumPy, without noise or head preview. Implements `networks.runner.Runner`."""

    ops = ReferenceOps

    def __init__(self, trained: Trained, target: Formats, precision: str) -> None:
        """Bind weights; arguments and errors are those of `NetworkFormats`."""
        self._network, self._ids = trained.network, np.array([*trained.draft_ids, -1])
        self._formats = NetworkFormats(trained, target, precision)
        self._matrix = cache(lambda part: matrix(*self._formats.blocks(part)))
        self._dtype = np.float32 if precision == "fp32" else np.float16

    @property
    def depth(self) -> int:
        return self._network.depth

    def open(self) -> ReferenceNetworkCache:
        network = self._network
        return ReferenceNetworkCache(
            self._rows(network.layers), Tail(network), self._rows(network.above)
        )

    def _rows(self, layers: int) -> ReferenceCache:
        shape = self._network.config
        sizes = max(layers, 1), 2, 0, shape.kv_heads, shape.head_dim
        return ReferenceCache(np.zeros(sizes, self._dtype))

    def release(self, cache: ReferenceNetworkCache) -> None:
        cache.rows.data, cache.rows.length = cache.rows.data[:, :, :0].copy(), 0

    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        roots = self.start(context_update)
        return [self._chain(root, depth) for root in roots] if depth else []

    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        return [self._start(each) for each in context_update]

    def advance(self, asked: Sequence[tuple[Branch, Sequence[int]]]) -> list[Branch]:
        return [self._advance(*each) for each in asked]

    def hidden(self, branch: Branch) -> LogitArray:
        state: ReferenceState = branch.state
        return state.value

    def digest(self, rows: LogitArray) -> LogitArray:
        nothing = NetworkRows(self._rows(0))
        [out] = self._network.digest(self._ops(nothing), rows)
        made: LogitArray = out
        return made

    def _chain(self, root: Branch, depth: int) -> Chain:
        path = [root]
        while len(path) * self._network.width < depth:
            path += self.advance([(path[-1], self._ids[path[-1].logits.argmax(-1)].tolist())])
        logits = np.concatenate([branch.logits for branch in path])
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :2]
        chances = np.exp(logits - logits.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        sure = np.take_along_axis(chances, best, axis=-1)
        [chain] = chains(self._ids[best][None], sure[None], depth)
        return chain

    def _start(self, update: ContextUpdate) -> Branch:
        cache: ReferenceNetworkCache = update.cache
        read, again = cache.tail.again(update)
        cache.rows.length -= again
        if update.target is not None:
            cache.lent = update.target
        elif self._network.reads_target:
            self._lend(cache.lent, read.features)
        rows = NetworkRows(cache.rows, cache.lent, len(read.tokens))
        ops = self._ops(rows)
        value: LogitArray = self._network.start(ops, read.features, np.array(read.tokens))
        cache.rows.length, cache.drafted = rows.context, rows.drafted
        cache.tail.extend(read)
        logits = self._network.logits(ops, value, 0)
        return Branch(cache, None, (), ReferenceState(value, rows.places), logits)

    def _lend(self, lent: ReferenceCache, features: LogitArray) -> None:
        # Computes the target's keys and values of new rows.
        network, rows = self._network, NetworkRows(lent, rows=len(features))
        ops = self._ops(rows)
        made = network.target_rows(ops, features)
        ops.attend(len(lent.data) - 1, made, heads_of(network.config, 0))
        lent.length = rows.context

    def _advance(self, branch: Branch, tokens: Sequence[int]) -> Branch:
        cache: ReferenceNetworkCache = branch.cache
        state: ReferenceState = branch.state
        rows = NetworkRows(cache.rows, cache.lent, 0, state.places, cache.drafted)
        ops = self._ops(rows)
        step = branch.step + 1
        value = self._network.advance(ops, state.value, np.array(tokens), step)
        cache.drafted += rows.drafted
        logits = self._network.logits(ops, value, step)
        return Branch(cache, branch, tokens, ReferenceState(value, rows.places), logits)

    def _ops(self, rows: NetworkRows) -> ReferenceOps:
        return self.ops(self._formats, self._matrix, self._network.config.norm_eps, rows)

"""Drafter networks as native programs: a whole draft, token by token, in one call.

Drafts do not depend on batch composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import RuntimeUnavailable
from paceline.native.draft_program import DraftProgram
from paceline.native.library import KV_DTYPES, Heads
from paceline.native.packed import Packed
from paceline.native.program import Columns
from paceline.networks.base import Network
from paceline.networks.head_preview import SCREEN
from paceline.networks.runner import Tail
from paceline.runtimes.cpu.networks.lowering import (
    Attended,
    Embedded,
    Lasts,
    Linear,
    Normed,
    Rescored,
    Rows,
    Silu,
    Unfolded,
    Weight,
    Writing,
    join,
    part,
)
from paceline.runtimes.cpu.networks.weights import NetworkWeights
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache

# What native runners keep of a sequence.


def pool_for(network: Network, tokens: int, precision: str) -> BlockPool:
    """Reserve keys and values for `tokens` of all sequences; fp32 only if matrices are.

    Raises:
        MemoryError: there is no memory for them.
    """
    shape = network.geometry
    return BlockPool(
        max(network.layers, 1),
        shape.kv_heads,
        shape.head_dim,
        tokens // BLOCK,
        keep=0,
        dtype=np.float32 if precision == "fp32" else np.float16,
    )


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: last context tokens.
        branched: rows of branches stored after the context until the next draft.
    """

    paged: PagedCache
    tail: Tail
    branched: int = 0

    def prune(self) -> None:
        """Drop all branches and release their blocks."""
        if self.branched:
            self.paged.truncate(self.paged.length)
            self.branched = 0


class NativeOps:
    """Lower a network to a program. Implements `networks.ops.Ops`.

    Attention and its inputs are emitted at once, since the order of cache writes matters; the rest
    when it is read.
    """

    def __init__(
        self,
        network: Network,
        weights: NetworkWeights,
        packed: Packed,
        pool: BlockPool,
        angles: LogitArray,
        vocabulary: int,
        *,
        previewed: bool = False,
    ) -> None:
        """Start a program.

        Args:
            network: to lower.
            weights: of the network.
            packed: keeps what programs read.
            pool: keys and values of the network's layers.
            angles: `[positions, head_dim]` cosines, then sines.
            vocabulary: size of the draft vocabulary.
            previewed: use the head preview, if the network has one.
        """
        shape = network.geometry
        kept = KV_DTYPES["fp32" if pool.memory.dtype == np.float32 else "fp16"]
        heads = Heads(
            *(shape.heads, shape.kv_heads, shape.head_dim, kept),
            *(shape.norm_eps, shape.head_dim**-0.5, network.reach, shape.head_dim),
        )
        self.program = DraftProgram(packed, heads, len(angles))
        self.writing = Writing(self.program, weights, shape.norm_eps)
        self._weights, self._vocabulary = weights, vocabulary
        self._previewed = previewed and weights.previews
        self._pool = pool
        self._angles = angles
        self._drafted = [0] * network.layers
        self._seen: tuple[int, int] | None = None
        self.last = Lasts()
        # Operations until all context rows are in the caches.
        self.taken_in = 0

    @property
    def drafted(self) -> int:
        """Draft rows written so far, of each sequence."""
        return max(self._drafted, default=0)

    def weight(self, name: str) -> Weight:
        return Weight(self._weights.vector(name))

    def linear(self, x: Rows, name: str) -> Rows:
        width = self._vocabulary if name == "head" else self._weights.outputs(name)
        return Linear(x.slots, width, of=x, name=name)

    def norm(self, x: Rows, name: str) -> Rows:
        return Normed(x.slots, x.width, of=x, name=name)

    def silu(self, x: Rows) -> Rows:
        return Silu(x.slots, x.width, of=x)

    def concat(self, parts: Sequence[Rows]) -> Rows:
        return join(parts)

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]:
        ends = np.cumsum(sizes).tolist()
        return [part(x, end - size, size) for end, size in zip(ends, sizes, strict=True)]

    def embed(self, tokens: Embedded) -> Rows:
        return tokens

    def embed_windows(self, tokens: Embedded) -> Rows:
        window, width = tokens.stride, tokens.width
        return join(
            [
                Embedded(0, width, ids=tokens.ids, stride=window, offset=offset)
                for offset in range(window)
            ]
        )

    def head(self, x: Rows) -> Rows:
        if not self._previewed:
            return self.linear(x, "head")
        down, up = SCREEN
        size = self._vocabulary
        previewed = Linear(x.slots, size, of=self.linear(x, down), name=up)
        return Rescored(x.slots, size, of=previewed, hidden=x)

    def slots(self, x: Rows, count: int) -> Rows:
        return Unfolded(count, x.width // count, of=x)

    def attend_context(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        if self._seen != (0, 0):
            self._seen = 0, 0
            self.program.runs("slots1")
        whole = np.zeros(1, dtype=np.int32)
        out = self._attend(layer, queries, keys, values, whole)
        self.taken_in = self.writing.operations
        return Attended(out.slots, out.width, out.written, whole=whole)

    def attend_draft(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        slots, before = queries.slots, self._drafted[layer]
        self._drafted[layer] += slots
        self._see(before, slots)
        return self._attend(layer, queries, keys, values)

    def know_target(self, make: Callable[[], tuple[Rows, Rows]]) -> None:
        raise RuntimeUnavailable(
            "a network that reads keys and values of its target needs a runtime that lends them: "
            "use --runtime torch, or weights of a network that does not"
        )

    def attend_target(self, queries: Rows) -> Rows:
        raise NotImplementedError

    def attend_slots(self, queries: Rows, keys: Rows, values: Rows) -> Rows:
        at, to = self._qkv(queries, keys, values)
        self.program.attend_slots(at, queries.slots, to)
        return Rows(queries.slots, to.width, to)

    def _see(self, before: int, slots: int) -> None:
        if self._seen != (before, slots):
            self._seen = before, slots
            self.program.runs("slots1", before, slots)

    def _attend(
        self,
        layer: int,
        queries: Rows,
        keys: Rows,
        values: Rows,
        whole: npt.NDArray[np.int32] | None = None,
    ) -> Rows:
        at, to = self._qkv(queries, keys, values)
        memory = self._pool.memory[2 * layer : 2 * layer + 2]
        self.program.attention(memory, self._angles, (None, None), at, to, whole)
        return Rows(queries.slots, to.width, to)

    def _qkv(self, queries: Rows, keys: Rows, values: Rows) -> tuple[Columns, Columns]:
        at = self.writing.columns(join([queries, keys, values]))
        return at, self.writing.buffer(queries.slots, queries.width)

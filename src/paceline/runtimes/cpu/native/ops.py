"""Drafter networks as native programs: a whole draft, token by token, in one call.

Drafts do not depend on batch composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.native.draft_program import DraftProgram
from paceline.native.library import KV_DTYPES, Heads, KvDtype, has_bf16_dot
from paceline.native.packed import Packed, Tensors
from paceline.native.program import Columns
from paceline.networks.base import Network
from paceline.networks.head_preview import SCREEN
from paceline.networks.runner import Tail
from paceline.runtimes.cpu.native.lowering import (
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
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache

# What native runners keep of a sequence.


def pool_for(network: Network, tokens: int, precision: str) -> BlockPool:
    """Reserve keys and values for `tokens` of all sequences; fp32 only if matrices are.

    Raises:
        MemoryError: there is no memory for them.
    """
    shape, paired = network.geometry, precision != "fp32" and has_bf16_dot()
    return BlockPool(
        max(network.layers, 1),
        shape.kv_heads,
        shape.head_dim,
        tokens // BLOCK,
        keep=0,
        dtype=np.uint16 if paired else np.float32,
        layout="pairs" if paired else "numbers",
    )


def kv_dtype_of(pool: BlockPool) -> KvDtype:
    """Return the kv dtype of a pool."""
    return "bf16" if pool.memory.dtype == np.uint16 else "fp32"


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
        tensors: Tensors,
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
            tensors: parameters by name, shared target weights, "embed" and "head"; matrices padded
                to whole blocks of rows.
            packed: matrices packed before by other programs of the network.
            pool: keys and values of the network's layers.
            angles: `[positions, head_dim]` cosines, then sines.
            vocabulary: size of the draft vocabulary.
            previewed: use the head preview, if the network has one.
        """
        shape = network.geometry
        kept = KV_DTYPES[kv_dtype_of(pool)]
        heads = Heads(shape.heads, shape.kv_heads, shape.head_dim, kept, shape.norm_eps)
        self.program = DraftProgram(packed, heads, len(angles))
        self.writing = Writing(self.program, tensors, packed, shape.norm_eps)
        self._shapes = {**network.shapes(), "head": (vocabulary, shape.width)}
        self._tensors = tensors
        self._previewed = previewed and f"{SCREEN[0]}.weight" in tensors
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
        return Weight(self._tensors[name])

    def linear(self, x: Rows, name: str) -> Rows:
        shape = self._shapes.get(name) or self._tensors[f"{name}.weight"].shape
        return Linear(x.slots, shape[0], of=x, name=name)

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
        size = self._shapes["head"][0]
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
        # Unreachable: `fit.takes` excludes such networks.
        raise NotImplementedError

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

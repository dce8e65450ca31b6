"""Our own attention: the bits of the reference, and the same in any company."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.native import formats

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import ROOT, TokenTree
from paceline.models import ops
from paceline.native.library import KV_DTYPES, CHeads, KvDtype
from paceline.native.packed import Packed, rotary_table
from paceline.native.program import ALL, LAST, LENT, Columns, Program
from paceline.runtimes.cpu.forward import ForwardBatch
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.runtimes.reference.ops import AskedRows, ReferenceCache, ReferenceOps

LONGEST = 1024
RNG = np.random.default_rng(5)
FORMATS = ["fp32", "fp16"]
NEAR = {"fp32": 5e-6, "fp16": 2e-2}
TREE = TokenTree(np.arange(8), np.array([ROOT, ROOT, 0, 0, 2, 1, 5, 3]))


@dataclass
class Sizes:
    """Of one layer."""

    heads: int = 6
    kv_heads: int = 2
    width: int = 32
    base: float = 10_000.0
    eps: float = 1e-5
    norms: dict[str, Any] = field(default_factory=dict)
    window: int = 0
    turned: int | None = None
    """Numbers of a head that are rotated; None for all."""
    scale: float | None = None
    sinks: Any = None
    value_norm: bool = False

    def bias(self, name: str) -> None:
        """Norms here have none."""

    @property
    def frequencies(self) -> Any:
        rotated = self.width if self.turned is None else self.turned
        return self.base ** -(np.arange(rotated // 2) * 2 / max(rotated, 1))

    @property
    def shape(self) -> ops.Heads:
        scale = self.width**-0.5 if self.scale is None else self.scale
        rotary = ops.Rotary(tuple(self.frequencies)) if len(self.frequencies) else None
        parts = self.heads, self.kv_heads, self.width, scale, rotary, self.window
        norms = self.norms or (None, None)
        named = None if self.sinks is None else "sinks"
        return ops.Heads(*parts, *norms, sinks=named, value_norm=self.value_norm)

    def required(self, name: str) -> Any:
        """A norm or the sinks, for the reference."""
        return self.sinks if name == "sinks" else self.norms[name]


@dataclass
class Layer:
    """The operation alone, with memory of its own."""

    sizes: Sizes
    pool: BlockPool
    program: Program
    into: Columns
    out: Columns
    threads: int
    packed: Packed

    def run(self, batch: ForwardBatch, qkv: Any) -> Any:
        """float32 `[rows, heads * width]`."""
        rows = {"rows": len(qkv)}
        self.program.run(rows, batch.inputs(), self.threads)  # makes room for the rows
        self.program.read(self.into, len(qkv))[:] = qkv
        self.program.run(rows, batch.inputs(), self.threads)
        return self.program.read(self.out, len(qkv)).copy()


def layer(
    sizes: Sizes,
    kept: KvDtype = "fp32",
    threads: int = 2,
    asked: int = ALL,
    rounded: bool = False,
    pool: BlockPool | None = None,
) -> Layer:
    width = (sizes.heads + 2 * sizes.kv_heads) * sizes.width
    table = rotary_table(sizes.frequencies, LONGEST) if len(sizes.frequencies) else None
    vectors = [*(sizes.norms.values() or (None, None)), sizes.sinks]
    dtype = np.float32 if kept == "fp32" else np.float16
    if pool is None:
        pool = BlockPool(1, sizes.kv_heads, sizes.width, 200, keep=0, dtype=dtype)
    heads = CHeads(
        sizes.heads,
        sizes.kv_heads,
        sizes.width,
        KV_DTYPES[kept],
        sizes.eps,
        sizes.shape.scale,
        window=sizes.window,
        rotated=2 * len(sizes.frequencies),
        value_norm=sizes.value_norm,
    )
    packed = Packed()
    program = Program(packed, heads, LONGEST)
    into = program.buffer("rows", width)
    out = program.buffer("rows", sizes.heads * sizes.width, rounded=rounded)
    program.paths("rows")
    program.attention(pool.layer(0), table, vectors, into, out, asked)
    return Layer(sizes, pool, program, into, out, threads, packed)


def random_rows(sizes: Sizes, count: int, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    shape = (count, (sizes.heads + 2 * sizes.kv_heads) * sizes.width)
    return rng.standard_normal(shape).astype(np.float32) * 1.5


def committed(made: Layer, rows: Any) -> PagedCache:
    """A sequence of those rows."""
    cache = PagedCache(made.pool)
    batch = ForwardBatch()
    batch.add(Rows.draft(cache, [0] * len(rows)))
    made.run(batch, rows)
    cache.length = len(rows)
    return cache


def drafted(made: Layer, cache: PagedCache, draft: TokenTree, rows: Any) -> Any:
    """One committed row and a draft behind it."""
    batch = ForwardBatch()
    batch.add(Rows.draft(cache, [0], draft))
    return made.run(batch, rows)


def reference(
    sizes: Sizes, rows: Any, num_new: int, draft: TokenTree, kept: KvDtype
) -> tuple[Any, Any]:
    """What all rows of a sequence see whose last ones are drafted; its keys, and its values."""
    dtype = np.float32 if kept == "fp32" else np.float16
    cache = ReferenceCache(np.zeros((1, 2, 0, sizes.kv_heads, sizes.width), dtype))
    asked = Rows.draft(cache, [0] * num_new, draft)
    made: Any = ReferenceOps(sizes, None, sizes.eps, AskedRows(asked))
    return made.attend(0, rows, sizes.shape), cache.data[0]


NORMS = 1 + 0.1 * RNG.standard_normal((2, 32)).astype(np.float32)
SINKS = np.array([2, -1, 0.5, 40, -300, 7], np.float32)
SHAPES = {
    "grouped": Sizes(),
    "narrow": Sizes(heads=4, kv_heads=4, width=16),
    "many to one": Sizes(heads=48, kv_heads=1, width=16),
    "odd": Sizes(heads=5, kv_heads=1, width=80),
    "wide": Sizes(heads=2, kv_heads=1, width=128),
    "widest": Sizes(heads=2, kv_heads=1, width=512, value_norm=True),
    "window": Sizes(window=37),
    "partly rotated": Sizes(turned=16, scale=0.3),
    "not rotated": Sizes(turned=0),
    "normed": Sizes(norms=dict(zip(("query", "key"), NORMS, strict=True))),
    "sinks": Sizes(sinks=SINKS),
    "window and sinks": Sizes(window=37, sinks=SINKS),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [1, 31, 127, 300])
@pytest.mark.parametrize("kept", FORMATS)
def test_it_is_the_reference(name: str, length: int, kept: KvDtype) -> None:
    sizes = SHAPES[name]
    made = layer(sizes, kept)
    rows = random_rows(sizes, length + 1 + len(TREE))
    expected, _ = reference(sizes, rows, length + 1, TREE, kept)
    cache = PagedCache(made.pool)
    batch = ForwardBatch()
    batch.add(Rows.draft(cache, [0] * length))
    first = made.run(batch, rows[:length])
    cache.length = length
    found = np.concatenate([first, drafted(made, cache, TREE, rows[length:])])
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("kept", FORMATS)
def test_of_last_rows_alone_it_is_the_same(kept: KvDtype) -> None:
    """And keys and values of the others are there for whoever comes behind."""
    sizes = SHAPES["grouped"]
    made = layer(sizes, kept)
    short = layer(sizes, kept, asked=LAST, pool=made.pool)
    lengths = (1, 40, 300, 3, 2)
    ends = np.cumsum(lengths)
    prompts, more = random_rows(sizes, ends[-1]), random_rows(sizes, 1 + len(TREE), seed=2)

    def run(asked: Layer) -> tuple[Any, Any]:
        caches, batch = [PagedCache(made.pool) for _ in lengths], ForwardBatch()
        for cache, length in zip(caches, lengths, strict=True):
            batch.add(Rows.draft(cache, [0] * length))
        asked.run(batch, random_rows(sizes, ends[-1], seed=7))  # what is left is not these results
        first = asked.run(batch, prompts)
        for cache, length in zip(caches, lengths, strict=True):
            cache.length = length
        behind = [drafted(made, cache, TREE, more) for cache in caches]
        for cache in caches:
            cache.release()
        return first, np.concatenate(behind)

    (every, behind), (last, later) = run(made), run(short)
    assert np.array_equal(last[ends - 1], every[ends - 1])
    assert np.array_equal(later, behind)
    others = np.setdiff1d(np.arange(ends[-1]), ends - 1)
    assert (last[others] != every[others]).any(axis=1).all()


@pytest.mark.parametrize("name", ["grouped", "window", "normed"])
def test_queries_of_a_later_layer_read_what_this_one_stored(name: str) -> None:
    """With a `KV` nothing is stored, and other queries ask; of keys of their own they would not."""
    sizes, count = SHAPES[name], 140
    made = layer(sizes)
    lent = layer(sizes, asked=LENT, pool=made.pool)
    rows, others = random_rows(sizes, count), random_rows(sizes, count, seed=2)
    batch, cache = ForwardBatch(), ReferenceCache(np.zeros((1, 2, 0, sizes.kv_heads, sizes.width)))
    batch.add(Rows.draft(PagedCache(made.pool), [0] * count))
    asked = AskedRows(Rows.draft(cache, [0] * count))
    reading: Any = ReferenceOps(sizes, None, sizes.eps, asked)
    made.run(batch, rows)
    own = reading.attend(0, rows, sizes.shape)
    queries = others[:, : sizes.heads * sizes.width]
    expected = reading.attend(ops.KV(0), queries, sizes.shape)
    assert np.array_equal(lent.run(batch, others), expected)
    assert not np.array_equal(own, expected)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("length", [5, 200])
def test_what_threads_round_for_a_product_is_the_same(length: int, threads: int) -> None:
    sizes = Sizes(heads=6, kv_heads=3, width=32)
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((64, 192)).astype(np.float32)

    def behind(rounded: bool) -> Any:
        made = layer(sizes, "fp32", threads, rounded=rounded)
        product = made.program.buffer("rows", 64)
        matrix = formats.packed(made.packed, "Q8_0", weights)
        made.program.product("m", [matrix], made.out, product)
        made.out = product
        cache = committed(made, random_rows(sizes, length))
        return drafted(made, cache, TREE, random_rows(sizes, 1 + len(TREE), seed=2))

    assert np.array_equal(behind(True), behind(False))


@pytest.mark.parametrize("kept", FORMATS)
@pytest.mark.parametrize("length", [5, 30, 31, 127, 128, 290])
def test_a_node_is_the_same_bits_in_a_tree_as_alone(length: int, kept: KvDtype) -> None:
    sizes = SHAPES["grouped"]
    made = layer(sizes, kept)
    prompt, more = random_rows(sizes, length), random_rows(sizes, 1 + len(TREE), seed=2)
    together = drafted(made, committed(made, prompt), TREE, more)
    for path in trees.leaf_paths(TREE):
        cache = committed(made, prompt)
        for row in (0, *(node + 1 for node in path)):
            alone = drafted(made, cache, trees.EMPTY, more[row : row + 1])
            assert np.array_equal(alone[0], together[row])
            cache.length += 1


@pytest.mark.parametrize("kept", FORMATS)
def test_company_threads_and_chunks_change_no_bit(kept: KvDtype) -> None:
    sizes = SHAPES["grouped"]
    lengths = (3, 40, 129, 400)
    prompts = [random_rows(sizes, length, seed=length) for length in lengths]
    more = random_rows(sizes, 1 + len(TREE), seed=2)
    found = []
    for threads in (1, 2, 3, 4):
        made = layer(sizes, kept, threads)
        alone = [drafted(made, committed(made, prompt), TREE, more) for prompt in prompts]
        batch = ForwardBatch()
        for prompt in prompts:
            batch.add(Rows.draft(committed(made, prompt), [0], TREE))
        company = made.run(batch, np.concatenate([more] * len(prompts)))
        assert np.array_equal(company, np.concatenate(alone))
        pieces = PagedCache(made.pool)
        for begin, end in ((0, 1), (1, 38), (38, 290), (290, 399), (399, 400)):
            batch = ForwardBatch()
            batch.add(Rows.draft(pieces, [0] * (end - begin)))
            made.run(batch, prompts[-1][begin:end])
            pieces.length = end
        assert np.array_equal(drafted(made, pieces, TREE, more), alone[-1])
        found.append(company)
    assert all(np.array_equal(found[0], each) for each in found[1:])


@pytest.mark.parametrize("kept", FORMATS)
def test_the_order_of_keys_matters_to_the_last_bit(kept: KvDtype) -> None:
    """Negative control: were sums not in the order of the path, equality above would be luck."""
    sizes = SHAPES["grouped"]
    made = layer(sizes, kept)
    prompt, more = random_rows(sizes, 200), random_rows(sizes, 1 + len(TREE), seed=2)
    honest = drafted(made, committed(made, prompt), TREE, more)
    swapped = ForwardBatch()
    swapped.add(Rows.draft(committed(made, prompt), [0], TREE))
    node = 6  # on a path apart from the one that is stored first
    begin = swapped._rows[6 * (node + 1) + 4]
    swapped._singles[begin : begin + 3] = swapped._singles[begin : begin + 3][::-1]
    found = made.run(swapped, more)
    assert not np.array_equal(found[node + 1], honest[node + 1])
    np.testing.assert_allclose(found[node + 1], honest[node + 1], atol=NEAR[kept])


@pytest.mark.parametrize("kept", FORMATS)
def test_keys_and_values_lie_where_the_pool_says(kept: KvDtype) -> None:
    sizes = SHAPES["grouped"]
    made = layer(sizes, kept)
    rows = random_rows(sizes, 45)
    cache = committed(made, rows)
    _, expected = reference(sizes, rows, 45, trees.EMPTY, kept)
    for place in range(45):
        for found, own in zip(
            made.pool.slabs[0].token(cache.blocks[place // 32], place % 32), expected, strict=True
        ):
            assert np.array_equal(found[0].reshape(own[place].shape), own[place])


def test_a_row_behind_the_longest_context_is_refused() -> None:
    """It would be rotated by what lies behind the table."""
    made = layer(SHAPES["grouped"])
    cache = committed(made, random_rows(made.sizes, LONGEST))
    with pytest.raises(ValueError, match="longest context of 1024 tokens"):
        drafted(made, cache, trees.EMPTY, random_rows(made.sizes, 1))

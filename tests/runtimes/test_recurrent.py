"""States of hybrid models: every way to read a text gives the bits of reading it row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.core.target import Rows
from paceline.core.types import ROOT, TokenTree
from paceline.errors import InvalidOption, ModelError, OutOfMemory
from paceline.lab.measure.fingerprint import RandomWeights, TinyModel
from paceline.models.ops import StateHeads
from paceline.runtimes import states
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.kv_cache import cache_bytes
from paceline.runtimes.reference.target import ReferenceTarget

KINDS = ("F32", "Q8_0", "Q4_K")
DELTA, SCAN = (TinyModel(family, KINDS) for family in ("qwen3_5_text", "nemotron_h"))
MODEL = DELTA  # of the tests that run
TEXT = np.random.default_rng(5).integers(320, size=700).tolist()
BLOCK = 32


def target(**options: Any) -> CpuTarget:
    weights = RandomWeights(MODEL.config, MODEL.kinds)
    return CpuTarget(MODEL.config, weights, **{"kv_tokens": 4096, "threads": 2, **options})


@pytest.fixture(
    scope="module", autouse=True, params=["qwen3_5_text", "lfm2", "nemotron_h", "falcon_h1"]
)
def family(request: pytest.FixtureRequest) -> str:
    """States with sums, by the delta rule or a scan, and with the last rows alone."""
    global MODEL
    MODEL = TinyModel(request.param, KINDS)
    return MODEL.family


@pytest.fixture(scope="module")
def model(family: str) -> CpuTarget:
    return target()


@pytest.fixture(scope="module")
def plain(model: CpuTarget) -> Any:
    """Logits by row of `TEXT`, read row by row."""
    return one_by_one(model, model.open(), TEXT[:300])


def one_by_one(model: Any, cache: Any, tokens: Sequence[int]) -> Any:
    return np.array([step(model, cache, [token])[0] for token in tokens])


def step(
    model: Any,
    cache: Any,
    new: Sequence[int],
    draft: TokenTree | None = None,
    path: Sequence[int] = (),
) -> Any:
    """Logits from the root on; the new tokens and a path are kept."""
    found = model.forward([Rows.draft(cache, new, draft)])[0].logits.copy()
    model.keep(cache, len(new), path)
    return found


def tree(tokens: Sequence[int], parents: Sequence[int]) -> TokenTree:
    return TokenTree(np.array(tokens), np.array(parents))


def goes_on(model: Any, cache: Any, plain: Any, rows: int = 3) -> None:
    """The next rows of `TEXT` are those of plain decoding."""
    begin = cache.length
    found = one_by_one(model, cache, TEXT[begin : begin + rows])
    assert np.array_equal(found, plain[begin : begin + rows])


@pytest.mark.parametrize("chunk", [1, 7, 32, 200])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_chunks_and_threads_change_no_bit(chunk: int, threads: int, plain: Any) -> None:
    model = target(threads=threads)
    cache = model.open()
    for begin in range(0, 200, chunk):
        tokens = TEXT[begin : min(begin + chunk, 200)]
        last = step(model, cache, tokens)[0]
        assert np.array_equal(last, plain[cache.length - 1])
    goes_on(model, cache, plain)


def test_prefill_is_the_same(model: CpuTarget, plain: Any) -> None:
    cache = model.open()
    model.prefill(cache, TEXT[:250])
    goes_on(model, cache, plain)


def test_a_row_of_a_tree_is_that_of_its_path(model: CpuTarget, plain: Any) -> None:
    """Branches beside the text, deep ones, and one that comes back to the same parent."""
    a, b, c, d = TEXT[41:45]
    draft = tree([a, 9, b, 8, c, 7, d, 6], [ROOT, ROOT, 0, 1, 2, 2, 4, 3])
    cache = model.open()
    model.prefill(cache, TEXT[:40])
    found = step(model, cache, [TEXT[40]], draft, [0, 2, 4, 6])
    assert np.array_equal(found[[0, 1, 3, 5, 7]], plain[40:45])
    goes_on(model, cache, plain)
    other = model.open()
    model.prefill(other, TEXT[:41])
    assert np.array_equal(found[[2, 4, 8]], one_by_one(model, other, [9, 8, 6]))


@pytest.mark.parametrize("kept", range(5))
def test_what_is_kept_of_a_chain(model: CpuTarget, plain: Any, kept: int) -> None:
    """The tail of the convolution too, across steps of 1 and 2 rows."""
    cache = model.open()
    model.prefill(cache, TEXT[:1])
    for _ in range(6):
        at = cache.length
        draft = tree(TEXT[at + 1 : at + 5], [ROOT, 0, 1, 2])
        found = step(model, cache, [TEXT[at]], draft, range(kept))
        assert np.array_equal(found, plain[at : at + 5])
    goes_on(model, cache, plain)


def test_a_step_without_a_draft_between_drafted_ones(model: CpuTarget, plain: Any) -> None:
    cache = model.open()
    model.prefill(cache, TEXT[:33])
    for wrong in (True, False, False, True):
        at = cache.length
        chain = [TEXT[at + 1], 3 if wrong else TEXT[at + 2], TEXT[at + 3]]
        step(model, cache, [TEXT[at]], tree(chain, [ROOT, 0, 1]), [0] if wrong else [0, 1, 2])
        goes_on(model, cache, plain, 1)
    goes_on(model, cache, plain)


def test_sequences_of_different_acceptance_in_a_batch(model: CpuTarget, plain: Any) -> None:
    first, second, third = (model.open() for _ in range(3))
    model.prefill(first, TEXT[:50])
    model.prefill(third, TEXT[:77])
    for accepted in ((3, 0, 1), (0, 2, 3), (1, 1, 0), (2, 3, 2)):
        caches = [first, second, third]
        rows = []
        for cache in caches:
            at = cache.length
            draft = tree([*TEXT[at + 1 : at + 4], 5], [ROOT, 0, 1, ROOT])
            rows.append(Rows.draft(cache, [TEXT[at]], draft))
        outputs = model.forward(rows)
        for cache, output in zip(caches, outputs, strict=True):
            at = cache.length
            assert np.array_equal(output.logits[:4], plain[at : at + 4])
        for cache, count in zip(caches, accepted, strict=True):
            model.keep(cache, 1, range(count))
    for cache in (first, second, third):
        goes_on(model, cache, plain)


def test_branches_accepted_in_turn(model: CpuTarget, plain: Any) -> None:
    cache = model.open()
    model.prefill(cache, TEXT[:20])
    for turn in range(8):
        at = cache.length
        a, b = TEXT[at + 1 : at + 3]
        if turn % 2:
            draft, path = tree([a, 7, b, 7], [ROOT, ROOT, 0, 1]), [0, 2]
        else:
            draft, path = tree([7, a, 7, b], [ROOT, ROOT, 0, 1]), [1, 3]
        found = step(model, cache, [TEXT[at]], draft, path)
        assert np.array_equal(found[[0, *(1 + node for node in path)]], plain[at : at + 3])
    goes_on(model, cache, plain)


def test_without_keep_nothing_has_changed(model: CpuTarget, plain: Any) -> None:
    cache = model.open()
    model.prefill(cache, TEXT[:30])
    step(model, cache, [TEXT[30]], tree(TEXT[31:34], [ROOT, 0, 1]), [0, 1])
    for draft in (None, tree([1, 2], [ROOT, ROOT])):
        model.forward([Rows.draft(cache, [5, 6, 7], draft)])
    goes_on(model, cache, plain)


def test_fork_then_keep_on_both(model: CpuTarget, plain: Any) -> None:
    cache = model.open()
    model.prefill(cache, TEXT[:60])
    step(model, cache, [TEXT[60]], tree(TEXT[61:64], [ROOT, 0, 1]), [0, 1])
    other = model.fork(cache)
    step(model, cache, [5], tree([6], [ROOT]), [0])
    goes_on(model, other, plain)
    step(model, other, [7])
    again = model.open()
    model.prefill(again, [*TEXT[:63], 5, 6])
    found, expected = (step(model, each, [8]) for each in (cache, again))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("back", [1, 2, 63, 64, 65])
def test_going_back(back: int, plain: Any) -> None:
    """What the cache says that it has is what it has."""
    model = target()
    cache = model.open()
    model.prefill(cache, TEXT[:100])
    at = cache.length
    step(model, cache, [TEXT[at]], tree(TEXT[at + 1 : at + 4], [ROOT, 0, 1]), [0, 1, 2])
    wanted = cache.length - back
    model.truncate(cache, wanted)
    assert cache.length == wanted if back <= 3 else cache.length in (0, 32, 64, 96)
    assert cache.length <= wanted
    goes_on(model, cache, plain)


@pytest.mark.parametrize("back", [1, 63, 64, 65])
def test_going_back_as_far_as_was_asked_for(back: int, model: CpuTarget, plain: Any) -> None:
    cache = model.open_to_go_back(64)
    model.prefill(cache, TEXT[:20])
    for _ in range(2):
        while cache.length < 200:
            at = cache.length
            draft = tree([*TEXT[at + 1 : at + 3], 4], [ROOT, 0, 0])
            found = step(model, cache, [TEXT[at]], draft, [0, 1])
            assert np.array_equal(found[:3], plain[at : at + 3])
        wanted = cache.length - back
        model.truncate(cache, wanted)
        assert cache.length == wanted if back <= 64 else cache.length <= wanted
        goes_on(model, cache, plain)


def test_prefix_hits_below_the_match_of_keys(plain: Any) -> None:
    model = target()
    cache = model.open()
    cache.share(TEXT[:150])  # wants a checkpoint near its end
    model.prefill(cache, TEXT[:150])
    cache.publish(TEXT[:150])
    model.release(cache)
    other = model.open()
    other.share(TEXT[:149])
    assert other.length == 128
    goes_on(model, other, plain)
    model.release(other)
    # Known blocks that end elsewhere: the next to come finds a state there.
    for expected in (0, 64):
        other = model.open()
        other.share([*TEXT[:70], *TEXT[:40]])
        assert other.length == expected
        rest = [*TEXT[other.length : 70], *TEXT[:40]]
        model.prefill(other, rest)
        other.publish([*TEXT[:70], *TEXT[:40]])
        found = step(model, other, [1])
        model.release(other)
    again = model.open()
    for token in [*TEXT[:70], *TEXT[:40]]:
        step(model, again, [token])
    assert np.array_equal(step(model, again, [1]), found)


def test_no_checkpoint_no_prefix(plain: Any) -> None:
    model = target()
    cache = model.open()
    model.prefill(cache, TEXT[:50])
    cache.publish(TEXT[:50])
    model.release(cache)
    other = model.open()
    other.share(TEXT[:50])
    assert other.length == 0
    goes_on(model, other, plain)


def test_checkpoints_go_before_sequences_wait(plain: Any) -> None:
    model = target(kv_tokens=64 * BLOCK)
    pool = model.memory.states
    assert pool is not None
    slots = len(pool.memory)
    for begin in range(2 * slots):
        text = TEXT[begin : begin + 80]
        cache = model.open()
        cache.share(text)
        model.prefill(cache, text)
        cache.publish(text)
        model.release(cache)
    assert 0 < pool.checkpoints < slots
    held = [model.open() for _ in range(slots)]
    for cache in held:
        model.prefill(cache, TEXT[:1])
    assert pool.checkpoints == 0
    with pytest.raises(OutOfMemory, match="states"):
        step(model, held[0], [1])
    for cache in held[:3]:
        model.release(cache)
    cache = model.open()
    model.prefill(cache, TEXT[:9])
    goes_on(model, cache, plain)


def test_all_that_was_held_is_free_again() -> None:
    model = target()
    pool = model.memory.states
    assert pool is not None
    cache = model.open()
    cache.share(TEXT[:100])
    model.prefill(cache, TEXT[:100])
    forks = [model.fork(cache) for _ in range(3)]
    step(model, forks[0], [1], tree([2, 3], [ROOT, 0]), [0])
    model.forward([Rows.draft(forks[1], [4])])
    model.truncate(forks[2], 97)
    for each in (cache, *forks):
        model.release(each)
    assert len(pool._free) == len(pool.memory)


def test_keep_is_of_the_last_forward(model: CpuTarget) -> None:
    first, second = model.open(), model.open()
    model.forward([Rows.draft(first, [1])])
    model.forward([Rows.draft(second, [2])])
    with pytest.raises(InvalidOption, match="keep"):
        model.keep(first, 1, ())


def test_the_reference_agrees() -> None:
    """It holds a state for each row, and no records."""
    weights = RandomWeights(MODEL.config, MODEL.kinds)
    found = []
    for each in (target(), ReferenceTarget(MODEL.config, weights)):
        cache = each.open()
        each.prefill(cache, TEXT[:40])
        draft = tree([1, 2, 3, 4, 5], [ROOT, 0, ROOT, 2, 2])
        rows = [step(each, cache, TEXT[40:43], draft, [2, 4])]
        other = each.fork(cache)
        rows.append(step(each, cache, [7, 8]))
        rows.append(step(each, other, [9], tree([1], [ROOT]), [0]))
        each.truncate(cache, 0)
        rows.append(step(each, cache, [11]))
        found.append(np.concatenate(rows))
    assert np.array_equal(*found)


@pytest.mark.parametrize("hybrid", [DELTA, SCAN], ids=lambda each: each.family)
def test_small_numbers_are_kept(hybrid: TinyModel) -> None:
    """A state that fades to subnormal numbers is that of the reference; with zeros it is not."""

    class Fading(RandomWeights):
        def __getitem__(self, name: str) -> Any:
            values = super().__getitem__(name)
            return 10 * values if name.endswith("_rate") else values

    weights = Fading(hybrid.config, KINDS)
    found = []
    for each in (CpuTarget(hybrid.config, weights), ReferenceTarget(hybrid.config, weights)):
        cache = each.open()
        found.append([step(each, cache, [token])[0] for token in TEXT[:40]])
    assert np.array_equal(*found)


def test_a_state_is_never_written_again(model: CpuTarget, plain: Any) -> None:
    """Negative control of what forks rely on: writing one is seen."""
    cache = model.open()
    model.prefill(cache, TEXT[:10])
    fork = model.fork(cache)
    pool, state = model.memory.states, cache.state
    assert pool is not None
    assert state is not None
    held = pool.memory[state.slot].copy()
    goes_on(model, cache, plain)
    assert fork.state is not None
    assert np.array_equal(pool.memory[fork.state.slot], held)
    pool.memory[fork.state.slot] += 1e-3
    assert not np.array_equal(step(model, fork, [TEXT[10]])[0], plain[10])


def test_what_drafts_nothing_is_refused(model: CpuTarget) -> None:
    rows = [Rows.block(model.open(), [1, 2], np.arange(2), np.ones((2, 2), bool))]
    rows.append(Rows.draft(model.open(), [1], inputs=np.zeros((1, 256), np.float32)))
    reference = ReferenceTarget(MODEL.config, RandomWeights(MODEL.config, MODEL.kinds))
    for each in (model, reference):
        assert not each.capabilities.blocks
        for odd in rows:
            with pytest.raises(InvalidOption, match="recurrent layers"):
                each.forward([odd])
        with pytest.raises(InvalidOption, match="recurrent layers"):
            each.forward([Rows.draft(each.open(), [1])], [0])


@pytest.mark.parametrize(("layers", "value_heads", "ratio"), [(24, 16, 27), (32, 32, 38)])
def test_a_record_is_small(layers: int, value_heads: int, ratio: int) -> None:
    """That of a row of a draft, beside a state: the shapes of 0.8B and 4B."""
    rule = StateHeads(16, value_heads, 128, 128, 4)
    recurrent = tuple(index for index in range(layers) if (index + 1) % 4)
    config = replace(DELTA.config, layers=layers, state_heads=rule, recurrent=recurrent)
    shape = states.StateShape.of(config)
    assert shape is not None
    assert shape.size // shape.record_size == ratio


def test_a_short_convolution_has_few_rows() -> None:
    """Its state is the inputs that the next row reads, a record is one of them."""
    config = TinyModel("lfm2", KINDS).config
    shape = states.StateShape.of(replace(config, short_taps=4))
    assert shape == states.StateShape(1, 256, 3 * 256, 0, 256)
    assert states.StateShape.of(TinyModel("llama", KINDS).config) is None
    with pytest.raises(ModelError, match="short convolutions of width 256 over 9 rows"):
        CpuTarget(replace(config, short_taps=9), RandomWeights(config, KINDS))


@pytest.mark.parametrize("tokens", [64, 4096])
def test_the_size_of_a_full_cache_is_known_before(model: CpuTarget, tokens: int) -> None:
    pool = target(kv_tokens=tokens).memory
    assert pool.states is not None
    whole = pool.states.memory.nbytes + sum(each.memory.nbytes for each in pool.slabs)
    assert cache_bytes(model.config, tokens, np.float16) == whole

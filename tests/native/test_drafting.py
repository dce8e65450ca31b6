"""Operations that networks need beside products and attention: right against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.native import formats

from paceline.native import program as native_program
from paceline.native.library import KV_DTYPES, CHeads
from paceline.native.packed import Packed
from paceline.native.program import PICKED, ChainNoise, Columns, Operand, Program, noise_records
from paceline.runtimes.reference.arithmetic import active, exact_gelu
from paceline.sampling.gumbel import GumbelNoise

RNG = np.random.default_rng(7)
WIDTH = 32


def program(heads: CHeads | None = None) -> Program:
    return Program(Packed(), heads or CHeads(2, 1, 16, KV_DTYPES["fp32"], 1e-5, 0.25, 0, 16), 64)


def loaded(made: Program, name: str, rows: str, width: int) -> Columns:
    """A buffer that holds what a run gives it."""
    out = made.buffer(rows, width)
    made.load(name, out)
    return out


def bits(rows: Any) -> Any:
    return np.ascontiguousarray(rows, dtype=np.float32).reshape(-1).view(np.int32)


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_gelus_are_those_of_the_reference_and_of_torch() -> None:
    """Within 3e-7, to the same bits at every level; the one by its tanh is another."""
    functional = pytest.importorskip("torch.nn.functional")
    ends = np.array([0, 1e-30, 14, 50, 1e4], np.float32)
    given = np.concatenate([np.linspace(-14, 14, 4097, dtype=np.float32), ends, -ends])
    made, width = program(), len(given)
    x, to = loaded(made, "x", "rows", width), made.buffer("rows", width)
    made.join(native_program.EXACT_GELU, Operand(x), Operand(x), to)
    made.run({"rows": 1}, {"x": bits(given)}, 1)
    found = made.read(to, 1)[0]
    np.testing.assert_array_equal(found, exact_gelu(given))
    exact = functional.gelu(functional.torch.from_numpy(given.astype(float))).numpy()
    np.testing.assert_allclose(found, exact, rtol=2e-7, atol=3e-7)
    assert np.abs(active(given, "gelu") - exact).max() > 1e-4


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("width", [32, 40])
def test_rows_are_put_together_number_by_number(rows: int, width: int) -> None:
    """Rows of one slot stand for all slots of theirs, and weights for all rows."""
    slots = 3
    one, many = random(rows, width), random(rows * slots, width)
    each, all_slots = random(width), random(slots, width)
    made = program()
    a = loaded(made, "one", "rows", width)
    b = loaded(made, "many", "wide", width)
    repeated = np.repeat(one, slots, axis=0)
    cases = [
        (native_program.SUM, Operand(a, repeat=slots), Operand(b), repeated + many),
        (native_program.PRODUCT, Operand(b), Operand(None, weights=each), many * each),
        (
            native_program.SUM,
            Operand(a, repeat=slots),
            Operand(None, weights=all_slots),
            repeated + np.tile(all_slots, (rows, 1)),
        ),
        (native_program.TANH, Operand(b), Operand(b), np.tanh(many)),
        (native_program.SILU, Operand(b), Operand(b), many / (1 + np.exp(-many.astype(float)))),
        (native_program.EXACT_GELU, Operand(b), Operand(b), exact_gelu(many)),
        (native_program.RELU2, Operand(b), Operand(b), np.square(np.maximum(many, 0))),
        (
            native_program.GATE,
            Operand(a, repeat=slots),
            Operand(b),
            repeated / (1 + np.exp(-many.astype(float))),
        ),
        (
            native_program.GATE,
            Operand(b),
            Operand(a, repeat=slots),
            many / (1 + np.exp(-repeated.astype(float))),
        ),
        (
            native_program.GATE_ROW,
            Operand(b),
            Operand(a, repeat=slots),
            many / (1 + np.exp(-repeated[:, :1].astype(float))),
        ),
    ]
    places = [made.buffer("wide", width) for _ in cases]
    for (how, first, second, _), to in zip(cases, places, strict=True):
        made.join(how, first, second, to)
    counts = {"rows": rows, "wide": rows * slots}
    made.run(counts, {"one": bits(one), "many": bits(many)}, 2)
    for (*_, expected), to in zip(cases, places, strict=True):
        np.testing.assert_allclose(made.read(to, rows * slots), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 11, 16, 17, 1000])
def test_the_most_probable_tokens_are_the_first_of_the_highest(size: int) -> None:
    """Whatever stands behind the logits in their buffer, and with their shares of the softmax; what
    is impossible is second with no share."""
    logits = np.full((5, 1024), 9e9, dtype=np.float32)
    logits[:, :size] = 3 * random(5, size)
    logits[1, :size] = 2.5  # all alike
    logits[2, size - 1] = logits[2, 0] = 50
    logits[3, : size - 1] = -np.inf
    ids = np.sort(RNG.choice(10**7, size, replace=False))
    made = program()
    at = loaded(made, "logits", "rows", 1024)
    picked = made.buffer("rows", 6)
    made.pick(at.part(0, size), ids, picked.part(2, PICKED))
    made.run({"rows": 5}, {"logits": bits(logits)}, 2)
    found = made.read(picked, 5)[:, 2:].copy()
    known = logits[:, :size].astype(float)
    distribution = np.exp(known - known.max(1, keepdims=True))
    distribution /= distribution.sum(1, keepdims=True)
    first = known.argmax(1)
    assert found[:, 0].view(np.int32).tolist() == ids[first].tolist()
    np.testing.assert_allclose(found[:, 1], distribution.max(1), rtol=1e-5)
    rest = distribution.copy()
    np.put_along_axis(rest, first[:, None], 0, 1)
    np.testing.assert_allclose(found[:, 3], rest.max(1), rtol=1e-5)
    there = rest.max(1) > 0
    assert there.tolist() == [size > 1] * 3 + [False] + [size > 1]
    assert found[there, 2].view(np.int32).tolist() == ids[rest.argmax(1)][there].tolist()


@pytest.mark.parametrize("size", [1, 2, 70, 1000, 9000])
def test_tokens_are_drawn_with_the_noise_of_their_positions(size: int) -> None:
    """As `GumbelNoise` has it, among those that have a chance; chances are a softmax over scores.
    Rows without noise are picked as ever."""
    depth, first, slots, temperature = 3, 1, 2, 0.6
    keys = RNG.bytes(16 * depth)
    logits = 3 * random(2 * slots, size)
    ids = np.sort(RNG.choice(10**5, size, replace=False))
    made = program()
    at = loaded(made, "logits", "rows", size)
    drawn, plain = (made.buffer("rows", PICKED) for _ in range(2))
    made.pick(at, ids, drawn, ChainNoise("noise", depth, first, slots))
    made.pick(at, ids, plain)
    records = noise_records(keys, temperature, depth)
    noise = np.concatenate([records, np.zeros_like(records)]).ravel()
    made.run({"rows": 2 * slots}, {"logits": bits(logits), "noise": noise}, 2)
    found = made.read(drawn, 2 * slots).copy()
    assert np.array_equal(found[slots:], made.read(plain, 2 * slots)[slots:])
    for slot in range(slots):
        place = 16 * (first + slot)
        row = (logits[slot] - logits[slot].max()).astype(float) / temperature
        scores = row - np.log(GumbelNoise(keys[place : place + 16]).of(ids))
        scores[row < -7] = -np.inf
        distribution = np.exp(scores - scores.max())
        distribution /= distribution.sum()
        best = np.argsort(-scores)[:2]
        ids_found = found[slot, ::2].copy().view(np.int32)
        assert ids_found[0] == ids[best[0]]
        np.testing.assert_allclose(found[slot, 1], distribution[best[0]], rtol=1e-3)
        if size > 1:
            np.testing.assert_allclose(found[slot, 3], distribution[best[1]], rtol=1e-3)
        if size > 1 and distribution[best[1]] > 0:
            assert ids_found[1] == ids[best[1]]


def test_positions_without_a_key_are_left_alone() -> None:
    assert not noise_records(bytes(range(16)), 1.0, 3)[1:].any()
    assert noise_records(bytes(range(16)), 0.5, 3)[0, 4] == np.float32(2).view(np.int32)


def test_picked_tokens_and_windows_are_embedded() -> None:
    made = program()
    table = random(8, WIDTH)
    at = loaded(made, "logits", "rows", 16)
    picked = made.buffer("rows", PICKED)
    made.pick(at.part(0, 8), np.arange(8), picked)
    packed = formats.packed(made.packed, "F32", table)
    places = [made.buffer("rows", WIDTH) for _ in range(2)]
    made.embed(packed, picked.part(0, 1), places[0])
    made.embed(packed, "tokens", places[1])
    logits = random(2, 16)
    made.run({"rows": 2}, {"logits": bits(logits), "tokens": [5, 2]}, 1)
    best = logits[:, :8].argmax(1)
    np.testing.assert_array_equal(made.read(places[0], 2), table[best])
    np.testing.assert_array_equal(made.read(places[1], 2), table[[5, 2]])


def test_rows_are_folded_into_slots_and_back() -> None:
    made = program()
    at = loaded(made, "x", "rows", 4 * WIDTH)
    to, back = made.buffer("wide", 2 * WIDTH), made.buffer("rows", 4 * WIDTH)
    made.fold(at, 4 * WIDTH, to)
    made.fold(to, 2 * WIDTH, back)
    x = random(3, 4 * WIDTH)
    made.run({"rows": 3, "wide": 6}, {"x": bits(x)}, 1)
    np.testing.assert_array_equal(made.read(to, 6), x.reshape(6, -1))
    np.testing.assert_array_equal(made.read(back, 3), x)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (3, 3, 32), (6, 1, 80)])
def test_slots_attend_to_one_another_both_ways(heads: int, kv_heads: int, width: int) -> None:
    """Each sequence's alone."""
    sequences, slots = 3, 5
    made = program(CHeads(heads, kv_heads, width, KV_DTYPES["fp32"], 1e-5, width**-0.5, 0, width))
    columns = (heads + 2 * kv_heads) * width
    at = loaded(made, "qkv", "wide", columns)
    to = made.buffer("wide", heads * width)
    made.attend_slots(at, slots, to)
    qkv = random(sequences * slots, columns)
    made.run({"wide": sequences * slots}, {"qkv": bits(qkv)}, 2)
    x = qkv.astype(float).reshape(sequences, slots, -1, width)
    queries, keys, values = np.split(x, (heads, heads + kv_heads), axis=2)
    keys, values = (np.repeat(each, heads // kv_heads, axis=2) for each in (keys, values))
    scores = np.exp(np.einsum("sihd,sjhd->shij", queries, keys) / np.sqrt(width))
    weights = scores / scores.sum(-1, keepdims=True)
    expected = np.einsum("shij,sjhd->sihd", weights, values)
    found = made.read(to, sequences * slots).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_run_may_end_early() -> None:
    made = program()
    at = loaded(made, "x", "rows", WIDTH)
    to = made.buffer("rows", WIDTH)
    made.join(native_program.SUM, Operand(at), Operand(at), to)
    x = random(1, WIDTH)
    made.run({"rows": 1}, {"x": bits(x)}, 1)
    made.run({"rows": 1}, {"x": bits(3 * x)}, 1, operations=1)
    np.testing.assert_array_equal(made.read(at, 1), 3 * x)
    np.testing.assert_array_equal(made.read(to, 1), 2 * x)

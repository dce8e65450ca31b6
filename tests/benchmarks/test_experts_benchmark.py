"""The benchmark of mixtures of experts: foretelling, devices, and texts that are left alone."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from benchmarks.experts import __main__ as experts
from benchmarks.experts import devices as d
from benchmarks.experts.foretelling import Foretelling, Watched
from benchmarks.experts.reading import WAYS, Mixtures, times
from tests.native import formats

from paceline.models.source import EXPERTS
from paceline.native.packed import Packed
from paceline.native.program import GATES, Program
from paceline.registry.loading import load_model

RNG = np.random.default_rng(5)


def rows(*used: str, experts: int = 4) -> Any:
    """`[rows, 1, experts]`: a row is the experts in use, as digits."""
    out = np.zeros((len(used), 1, experts), dtype=np.bool_)
    for row, each in zip(out, used, strict=True):
        row[0, [int(digit) for digit in each]] = True
    return out


def test_a_table_foretells_what_a_token_used_and_counts_how_often_it_was_right() -> None:
    table = Foretelling(1, 4)
    table.learn([7, 8], rows("01", "2"))  # nothing was known
    assert (table.counters.uses, table.counters.foretold, table.counters.unknown) == (3, 0, 2)
    assert np.array_equal(table.foretell([7, 8, 7]), rows("01", "2", "01"))
    table.learn([7, 8], rows("03", "2"))
    counters = table.counters
    assert (counters.rows, counters.uses, counters.foretold, counters.right) == (4, 6, 3, 2)
    assert counters.recall == 2 / 6
    assert counters.precision == 2 / 3
    assert np.array_equal(table.foretell([7]), rows("0"))  # half of the time is not more than half
    assert table.shares([7])[0, 0].tolist() == [0.75, 0.375, 0.25, 0.375]  # half the mean's


def test_of_as_many_experts_as_rows_use_the_likeliest_are_foretold() -> None:
    table = Foretelling(1, 4, used=2)
    for used in ("01", "02", "02"):
        table.learn([7], rows(used))
    assert np.array_equal(table.foretell([7]), rows("02"))
    assert np.array_equal(table.foretell([9]), rows("02"))  # unknown: the mean over all tokens


def test_negative_control_without_tokens_a_table_foretells_less() -> None:
    tokens = RNG.integers(0, 8, 2000)
    used = np.zeros((2000, 1, 16), dtype=np.bool_)
    used[np.arange(2000), 0, tokens] = True  # a token always uses its own expert
    known, blind = Foretelling(1, 16, 1), Foretelling(1, 16, 1, tokens=False)
    for table in (known, blind):
        for begin in range(0, 2000, 10):
            table.learn(tokens[begin : begin + 10].tolist(), used[begin : begin + 10])
    assert known.counters.recall > 0.95
    assert blind.counters.recall < 0.3


def test_grouped_experts_need_no_more_devices_than_any_other_groups() -> None:
    used = RNG.random((60, 4)) < 0.4
    found = d.grouped_places(used, 2)
    assert sorted(found.tolist()) == [0, 0, 1, 1]

    def needed(places: Any) -> int:
        return int((used.astype(int) @ np.eye(2, dtype=int)[places] > 0).sum())

    every = {needed(np.array(each)) for each in permutations([0, 0, 1, 1])}
    assert needed(found) == min(every)


def test_rows_stay_where_their_experts_are_and_no_device_is_over_full() -> None:
    shares = np.zeros((6, 4))
    shares[:4, 0], shares[4:, 3] = 1, 1
    shares[3, 0] = 0.5  # loses the least elsewhere
    homes = d.foretold_homes(shares, np.array([0, 0, 1, 1]), 2)
    assert homes.tolist() == [0, 0, 0, 1, 1, 1]


def test_volume_is_counted_by_hand() -> None:
    used = rows("01", "3", "0123", "")[:, 0]
    places = np.array([0, 0, 1, 1])
    assert d.volume(used, places, np.array([0, 1, 0, 1])) == (1, 4)
    assert d.volume(used, places, np.array([1, 0, 0, 1])) == (3, 4)


def test_known_and_grouped_experts_send_less_than_plain_ones() -> None:
    pairs = np.array([[0, 5], [1, 4], [2, 7], [3, 6]])  # of experts that are used together
    tokens = RNG.integers(0, 4, 960)
    used = np.zeros((960, 1, 8), dtype=np.bool_)
    used[np.arange(960)[:, None], 0, pairs[tokens]] = True
    table = Foretelling(1, 8, 2)
    table.learn(tokens[:480].tolist(), used[:480])
    found = experts.costs(used[480:], tokens[480:].tolist(), table, used[:480], 32)
    sent = {(each["devices"], each["placement"]): each["sent"] for each in found}
    for count in (2, 4):
        assert sent[count, "both"] < sent[count, "both, experts known"] + 0.05 < 0.3
        assert sent[count, "both"] < 0.5 * sent[count, "experts grouped"]
        assert sent[count, "both"] < 0.5 * sent[count, "plain"]


class Parts:
    """A mixture whose weights are given, not routed."""

    def __init__(self, experts: int = 6, width: int = 64, inner: int = 96) -> None:
        packed = Packed()
        self.program = program = Program(packed)
        ups, downs = (
            [
                packed.matrix("Q8_0", formats.blocks("Q8_0", rows, columns, seed + e)[0], columns)
                for e in range(experts)
            ]
            for rows, columns, seed in ((inner, width, 0), (width, inner, 50))
        )
        self.x, self.more = program.buffer("rows", width), program.buffer("rows", width)
        self.weights, self.out = program.buffer("rows", experts), program.buffer("rows", width)
        shape: Any = {"activation": GATES["silu"], "residual": self.more}
        program.mix("mix", [ups, downs], self.x, self.weights, self.out, **shape)

    def __call__(self, x: Any, weights: Any, more: Any) -> Any:
        counts = {"rows": len(x)}
        self.program.run(counts, {}, 1, operations=0)  # makes room for the rows
        for columns, values in ((self.x, x), (self.weights, weights), (self.more, more)):
            self.program.read(columns, len(x))[:] = values
        self.program.run(counts, {}, 1)
        return self.program.read(self.out, len(x)).copy()


def test_experts_on_devices_give_the_bits_of_one_if_they_add_by_number() -> None:
    made = Parts()
    x, more = RNG.standard_normal((2, 12, 64)).astype(np.float32)
    weights = RNG.random((12, 6)).astype(np.float32) * (RNG.random((12, 6)) < 0.6)
    whole = made(x, weights, more)
    by_number = more
    for expert in range(6):  # wherever it is, for the rows that are sent there
        rows_ = np.flatnonzero(weights[:, expert])
        own = np.where(np.arange(6) == expert, weights[rows_], 0)
        by_number = by_number.copy()
        by_number[rows_] = made(x[rows_], own, by_number[rows_])
    assert np.array_equal(by_number, whole)
    by_device = more
    for device in (1, 0):  # negative control: a sum per device, and then the sum of those
        own = np.where(d.plain_places(6, 2) == device, weights, 0)
        by_device = by_device + made(x, own, np.zeros_like(more))
    assert not np.array_equal(by_device, whole)
    np.testing.assert_allclose(by_device, whole, atol=1e-4 * np.abs(whole).max())


def test_all_ways_of_reading_are_timed_and_give_the_same_bits() -> None:
    mixtures = Mixtures(2, 4, 64, 32)
    used = [RNG.random((16, 4)) < 0.5 for _ in range(2)]
    found = times(mixtures, used, 8, 2)
    assert set(found) == set(WAYS)
    assert all(each > 0 for each in found.values())


def test_requests_have_the_same_texts_with_a_table_watching() -> None:
    loaded = load_model(EXPERTS[0])
    table = Foretelling(4, 16)
    assert experts.served(loaded, table, 1)
    assert table.counters.rows > 500
    assert table.counters.recall > 0.5

    class Meddling(Watched):
        """Negative control: a table that decides."""

        def forward(self, passes: Any) -> Any:
            outputs = super().forward(passes)
            foretold = self.table.foretell([int(each.pending[-1]) for each in passes])
            return [
                each._replace(
                    logits=each.logits + told[0].sum() % 5 * np.arange(134, dtype=np.float32)
                )
                for each, told in zip(outputs, foretold, strict=True)
            ]

    original, experts.Watched = experts.Watched, Meddling  # type: ignore[misc]
    try:
        assert not experts.served(loaded, Foretelling(4, 16), 1)
    finally:
        experts.Watched = original  # type: ignore[misc]


def test_the_command_measures_a_model_and_names_one_without_experts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small = ["--texts", "8", "--layers", "1", "--width", "64", "--inner", "32", "--chunks", "2"]
    assert experts.main([EXPERTS[0], *small]) == 0
    [found] = json.loads(capsys.readouterr().out)["models"]
    assert found["identical"]
    assert found["shares"]["1"] < found["shares"]["32"] < 0.6
    assert found["foretold"]["by token"]["recall"] > 0.85
    sent = {(each["devices"], each["placement"]): each["sent"] for each in found["devices"]}
    assert sent[4, "both"] < sent[4, "plain"]
    assert experts.main(["lists-order", *small]) == 2
    assert "no experts" in capsys.readouterr().err

"""c(n): interpolation, refinement, measurement, and the cache on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.tiny_whisper import WhisperWeights, tiny_whisper

from paceline.core.target import Output, Rows
from paceline.policy import cost as cost_measuring
from paceline.policy.cost import SIZES, CostModel, load_or_measure, measure
from paceline.proof.tabular import TabularCache, TabularModel, TabularTarget
from paceline.runtimes.cpu.target import CpuTarget

MODEL = TabularModel(20, 1, seed=3)
KEY = {"model": "org/tiny", "threads": None}


@pytest.fixture
def few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of three sizes, to save time."""
    monkeypatch.setattr(cost_measuring, "SIZES", (1, 2, 8))


class Watched(TabularTarget):
    """Counts forwards and remembers caches."""

    def __init__(self, max_context: int = 4096) -> None:
        super().__init__(MODEL.logits, 20, max_context)
        self.caches: list[TabularCache] = []
        self.rows: list[int] = []

    def open(self) -> TabularCache:
        self.caches.append(super().open())
        return self.caches[-1]

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        outputs = super().forward(passes)
        self.rows.append(sum(len(output.logits) for output in outputs))
        assert all(
            p.cache.length + len(output.logits) <= self.capabilities.max_context
            for p, output in zip(passes, outputs, strict=True)
        )
        return outputs


curves = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=6).map(
    lambda steps: CostModel((1, 2, 4, 8, 16, 32)[: len(steps)], np.cumsum(steps).tolist())
)


@given(curves)
def test_time_meets_the_measurements_and_never_decreases(costs: CostModel) -> None:
    for size, seconds in zip(costs.sizes, costs.seconds, strict=True):
        assert costs.time(size) == pytest.approx(seconds)
    times = [costs.time(rows) for rows in range(1, 80)]
    assert np.all(np.diff(times) >= -1e-12)
    assert costs.c(1) == 1
    assert costs.curve()[1] == 1


@given(curves, st.integers(1, 40), st.integers(0, 40), st.integers(1, 4))
def test_a_span_of_times_is_that_of_each(
    costs: CostModel, rows: int, more: int, sequences: int
) -> None:
    times = [costs.time(each, sequences) for each in range(rows, rows + more + 1)]
    assert costs.span(rows, more, sequences) == times


def test_nothing_to_span() -> None:
    assert CostModel((1, 4), [1.0, 2.0]).span(3, -1) == []


def test_time_is_linear_between_and_beyond_the_measurements() -> None:
    costs = CostModel((1, 3, 5), [1.0, 2.0, 4.0])
    assert costs.time(2) == pytest.approx(1.5)
    assert costs.time(4) == pytest.approx(3.0)
    assert costs.time(6) == pytest.approx(5.0)
    assert costs.time(15) == pytest.approx(14.0)
    assert costs.c(5) == pytest.approx(4.0)


def test_what_a_row_costs_is_learned_for_each_number_of_sequences() -> None:
    """Sequences cost time beyond their rows, so that rows are cheap beside them."""
    costs = CostModel((1, 4, 8), [1.0, 2.0, 3.0])
    for _ in range(300):
        costs.observe(4, 4.0, 4)
        costs.observe(8, 4.4, 4)
    assert costs.time(8, 4) / costs.time(4, 4) == pytest.approx(1.1, rel=0.05)
    assert costs.time(12, 8) / costs.time(8, 8) == pytest.approx(1.1, rel=0.1)  # as nearby
    assert costs.time(8) / costs.time(4) < 1.6


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.9, 1.0, 1.7, 3.0, 6.0])
@pytest.mark.parametrize("used", [[8], [1], [1, 2, 8], [16, 7, 3]])
def test_a_machine_of_another_speed_has_the_same_curve(factor: float, used: list[int]) -> None:
    """Only how sizes compare matters, whichever of them happen to be used."""
    costs = CostModel((1, 2, 4, 8, 16), [1.0, 1.1, 1.3, 2.0, 3.5])
    truth = {size: costs.time(size) for size in (*costs.sizes, *used)}
    before = costs.curve()
    for step in range(600):
        rows = used[step % len(used)]
        costs.observe(rows, factor * truth[rows])
    for size, c in costs.curve().items():
        assert c == pytest.approx(before[size], rel=0.2)


def test_the_pace_is_how_long_an_estimated_second_takes() -> None:
    costs = CostModel((1, 2), [1.0, 1.5])
    assert costs.pace == 1
    for _ in range(100):
        costs.observe(2, 4.5)
    assert costs.pace == pytest.approx(3.0, rel=0.1)


def test_a_size_that_costs_more_than_measured_is_noticed() -> None:
    costs = CostModel((1, 2, 4, 8), [1.0, 1.1, 1.2, 1.3])
    truth = {1: 1.0, 2: 1.1, 8: 2.6}
    for _ in range(1500):
        for rows, seconds in truth.items():
            costs.observe(rows, seconds)
    assert costs.c(8) > 1.6
    assert costs.c(2) == pytest.approx(1.1, rel=0.1)


def test_sizes_between_those_measured_teach_both() -> None:
    costs = CostModel((1, 4, 8, 12), [1.0, 1.2, 1.4, 1.6])
    for _ in range(1500):
        costs.observe(1, 1.0)
        costs.observe(10, 2.6)
    assert costs.c(10) == pytest.approx(2.6, rel=0.1)
    assert costs.c(1) == 1.0


@pytest.mark.parametrize("factor", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("price", [0.4, 1.0, 2.0])
def test_what_rows_cost_at_the_moment_is_known_within_a_second(factor: float, price: float) -> None:
    """The machine may be in another state than when it was measured, and change again."""
    costs = CostModel((1, 2, 4, 8), [1.0, 1.1, 1.3, 1.7])
    rng = np.random.default_rng(3)
    for now in (1.0, price):
        for rows in rng.choice([1, 2, 3, 4, 6], 300).tolist():
            seconds = factor * (1 + 0.1 * now * (rows - 1)) * rng.uniform(0.95, 1.05)
            costs.observe(rows, seconds)
    for rows in (2, 4, 8):
        assert costs.c(rows) - 1 == pytest.approx(0.1 * price * (rows - 1), rel=0.3)


def test_a_pause_of_the_machine_changes_no_price() -> None:
    costs = CostModel((1, 2, 4, 8), [1.0, 1.1, 1.3, 1.7])
    rng = np.random.default_rng(3)
    for step in range(300):
        rows = int(rng.choice([1, 2, 4]))
        costs.observe(rows, costs.time(rows) * (50 if step % 60 == 59 else 1))
    assert costs.c(4) == pytest.approx(1.3, rel=0.1)


def test_steps_of_one_size_tell_nothing_of_its_price() -> None:
    costs = CostModel((1, 2, 4, 8), [1.0, 1.1, 1.3, 1.7])
    for _ in range(300):
        costs.observe(4, 5.0)
    assert costs.c(4) == pytest.approx(1.3, rel=0.2)


@given(curves, st.lists(st.tuples(st.integers(1, 40), st.floats(0, 10)), max_size=50))
def test_any_observations_leave_a_sane_curve(
    costs: CostModel, seen: list[tuple[int, float]]
) -> None:
    for rows, seconds in seen:
        costs.observe(rows, seconds)
    assert np.all(np.diff(costs.seconds) >= 0)
    assert min(costs.seconds) > 0
    assert np.isfinite(costs.seconds).all()
    assert costs.c(1) == 1


@pytest.mark.usefixtures("few_sizes")
def test_measuring_leaves_the_target_as_it_was() -> None:
    target = Watched()
    mine = target.open()
    target.prefill(mine, [1, 2, 3])
    costs = measure(target)
    assert costs.sizes == [1, 2, 8]
    assert set(target.rows) == {1, 2, 8}
    assert np.all(np.diff(costs.seconds) >= 0)
    assert [cache.released for cache in target.caches] == [False, True]
    assert mine.tokens == [1, 2, 3]
    assert target.caches[1].tokens  # something was in the cache, as in real use


def test_a_failed_measurement_releases_its_cache() -> None:
    class Failing(Watched):
        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            raise RuntimeError("device lost")

    target = Failing()
    with pytest.raises(RuntimeError):
        measure(target)
    assert [cache.released for cache in target.caches] == [True]


@pytest.mark.usefixtures("few_sizes")
@pytest.mark.parametrize("max_context", [2, 3, 16, 200, 256, 257, 258, 270])
def test_short_contexts_can_be_measured(max_context: int) -> None:
    """The sizes shrink with the context, and what comes out still answers for every size."""
    costs = measure(Watched(max_context))
    assert costs.time(5) >= costs.time(2) >= costs.time(1) > 0


def test_the_measurement_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    target = Watched()
    first = load_or_measure(target, KEY)
    assert list(first.sizes) == list(SIZES)
    [path] = (tmp_path / "costs").iterdir()
    measured = len(target.rows)
    again = load_or_measure(target, KEY)
    assert (list(again.sizes), again.seconds) == (list(first.sizes), first.seconds)
    assert len(target.rows) == measured
    load_or_measure(target, {**KEY, "threads": 2})
    assert len(target.rows) > measured
    assert len(list(path.parent.iterdir())) == 2


def test_a_start_takes_no_longer_than_it_may_and_knows_every_size() -> None:
    class Slow(Watched):
        def forward(self, passes: Sequence[Rows]) -> list[Output]:
            out = super().forward(passes)
            sleep(0.002 * self.rows[-1])
            return out

    target = Slow()
    costs = measure(target, 0.0)
    assert target.rows == [1, 1, 8]  # after a prompt of one token
    assert list(costs.sizes) == list(SIZES)
    assert 1 < costs.c(4) < costs.c(8) < costs.c(24)


def test_what_decoding_teaches_is_kept_and_care_measures_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    target = Watched()
    quick = load_or_measure(target, KEY, 0.0)
    for _ in range(64):
        quick.observe(1, 1.0)
        quick.observe(4, 3.0)
    measured = len(target.rows)
    again = load_or_measure(target, KEY, 0.0)
    assert len(target.rows) == measured
    assert again.c(4) == pytest.approx(3.0, rel=0.1)
    assert again.time(1) == pytest.approx(1.0, rel=0.1)
    load_or_measure(target, KEY, 0.01)
    assert len(target.rows) > measured


@pytest.mark.usefixtures("few_sizes")
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"sizes": [1, 2]}',
        '{"sizes": 3, "seconds": 4, "within": 0, "padded": false}',
        *(
            f'{{"sizes": {sizes}, "seconds": {seconds}, "within": {switch}, "padded": false}}'
            for sizes, seconds, switch in (
                ("[1, 2]", "[1]", "0"),
                ("[]", "[]", "0"),
                ("[2, 3]", "[1, 2]", "0"),
                ("[1, 3, 2]", "[1, 2, 3]", "0"),
                ("[1, 1]", "[1, 2]", "0"),
                ("[1, 2]", "[0, 2]", "0"),
                ("[1, 2]", "[NaN, 2]", "0"),
                ("[1, 2]", "[1, NaN]", "0"),
                ("[1, 2]", "[1, Infinity]", "0"),
                ("[1, 2]", "[2, 1]", "0"),
                ("[1, 2]", "[1, 2]", "-1"),
                ("[1, 2]", "[1, 2]", "NaN"),
                ("[1, 2]", "[1, 2]", "Infinity"),
                ("[1, 2]", "[1, 2]", "null"),
            )
        ),
        "\udcff",
    ],
)
def test_a_damaged_file_is_measured_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    target = Watched()
    load_or_measure(target, KEY)
    measured = len(target.rows)
    [path] = (tmp_path / "costs").iterdir()
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    costs = load_or_measure(target, KEY)
    assert len(target.rows) == 2 * measured
    assert np.all(np.diff(costs.seconds) >= 0)
    load_or_measure(target, KEY)  # and the file is sound again
    assert len(target.rows) == 2 * measured


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costs").write_text("a file where the directory should be")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert load_or_measure(Watched(), KEY).c(1) == 1


def test_a_model_that_hears_is_timed_over_silence() -> None:
    config = tiny_whisper()
    target = CpuTarget(config, WhisperWeights(config), "fp32", kv_tokens=1024, threads=1)
    costs = measure(target, 0.0)
    assert 0 < costs.time(1, 1) <= costs.time(8, 1)
    assert target.memory.free == target.memory.blocks

"""`paceline bench parallel`: sums, closed forms, resumption, pages, on a tiny random model."""

from __future__ import annotations

import json
from math import factorial, log
from pathlib import Path
from typing import Any

import pytest
from tests.denoising.test_engine import load, save

from paceline.cli.app import run
from paceline.errors import InvalidOption
from paceline.lab.measure import parallel as bench
from paceline.lab.measure.kept import Kept
from paceline.lab.measure.parallel import (
    Bench,
    Cell,
    CellRecord,
    Row,
    Setting,
    area,
    total_correlation,
)

CELLS = [Cell(task, 0, seed, 2) for task in ("copy", "sort") for seed in (0, 1)]
SETTINGS = [Setting("autoregressive"), Setting("counts", 4), Setting("threshold:tau=0", 4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parallel") / "tiny"
    return save(path, "block", block_size=None, autoregressive=True)


@pytest.fixture(scope="module")
def engines(model: Path) -> tuple[Any, Any]:
    stream = load(model, sampler="autoregressive", drafter="none", max_batch=2)
    return load(model, max_batch=2), stream


def made(engines: tuple[Any, Any], **options: Any) -> Bench:
    return Bench(*engines, SETTINGS, CELLS, cases=3, room=8, **options)


def test_settings_take_turns_and_positions_are_counted(engines):
    run = made(engines)
    records = list(run.run())
    assert [each.setting for each in records[:6]] == [
        *[each.label for each in SETTINGS],
        *[each.label for each in (*SETTINGS[1:], SETTINGS[0])],
    ]
    by_setting = {row.setting: row for row in bench.rows(records)}
    assert by_setting["counts, block 4"].forwards > by_setting["threshold:tau=0, block 4"].forwards
    assert by_setting["autoregressive"].per_forward == 1
    assert all(each.cases == 3 for each in records)
    assert run.left == 0


def test_at_temperature_one_the_divergence_is_that_of_the_samples(engines):
    found = {row.setting: row for row in bench.rows(list(made(engines, temperature=1.0).run()))}
    assert found["autoregressive"].kl == pytest.approx(0, abs=1e-3)
    assert found["counts, block 4"].kl is not None
    others = [Setting("tidar", 4), Setting("counts:by=picked", 4), Setting("freedave>guided", 4)]
    run = Bench(*engines, others, CELLS[:1], cases=2, room=8, temperature=1.0).run()
    own, *chances = bench.rows(list(run))
    assert own.kl == pytest.approx(0, abs=1e-3), "the stream's own text"
    assert [each.kl for each in chances] == [None, None], "their traces are no likelihoods"


def test_a_run_goes_on_where_it_stopped(engines, tmp_path):
    path = tmp_path / "out" / "records.jsonl"

    def kept(cases: int = 3) -> Kept[CellRecord]:
        return Kept(path, {"cases": cases}, bench.read_record)

    with kept() as begun:
        first = made(engines)
        first.keep(begun)
        for count, _ in enumerate(first.run(), 1):
            if count == 5:
                break
        with pytest.raises(InvalidOption, match="written by another run"):
            kept()
    with path.open("a", encoding="utf-8") as file:
        file.write('{"setting": "cou')  # killed while writing
    with kept() as begun:
        second = made(engines)
        second.keep(begun)
        assert second.left == 12 - 5
        list(second.run())
    with kept() as done:
        whole = {(each.setting, each.cell): each.strict for each in done.entries}
    fresh = made(engines)
    list(fresh.run())
    assert whole == {key: each.strict for key, each in fresh.records.items()}
    with pytest.raises(InvalidOption, match=r"other settings \(cases\)"):
        kept(4)


def test_what_a_model_cannot_do_is_refused(engines):
    with pytest.raises(InvalidOption, match="cannot decode from left to right"):
        Bench(engines[0], None, SETTINGS, CELLS, cases=1, room=8)
    with pytest.raises(InvalidOption, match="sampler 'x' is unknown"):
        Bench(*engines, [Setting("x")], CELLS, cases=1, room=8)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_total_correlation_of_permutations(n):
    from itertools import permutations

    answers = list(permutations("abcde"[:n]))
    assert total_correlation(answers) == pytest.approx(n * log(n) - log(factorial(n)))
    assert total_correlation(answers[:1]) == 0


def test_closed_forms_hold_one_line_a_case():
    found = {(task, n): (chance, nats) for task, n, chance, nats in bench.closed_forms()}
    assert len(found) == 17
    assert all(0 < chance < 1 and nats > 0 for chance, nats in found.values())
    assert found["replace-random", 3][0] == pytest.approx((1 - 1 / 3) ** 2)


def test_the_area_is_that_under_the_frontier():
    def point(per_forward: float, strict: float) -> Row:
        return Row("", 1, strict, strict, strict, per_forward, 1.0, 1.0, 1.0, None)

    assert area([point(1, 1.0)]) == 0
    assert area([point(3, 0.5), point(2, 0.9), point(2, 0.2)]) == pytest.approx(0.9 + 0.5)
    assert area([point(3, 0.9), point(2, 0.5)]) == pytest.approx(1.8)


def test_spreads_and_orders_by_template():
    def record(setting: str, template: int, seed: int, strict: int) -> CellRecord:
        cell = Cell("copy", template, seed, 1)
        return CellRecord(setting, cell, 10, strict, strict, strict, 1, 1, 1, 1.0, 0.0, None)

    records = [
        record("a", 0, 0, 9),
        record("b", 0, 0, 8),
        record("a", 1, 1, 5),
        record("b", 1, 1, 6),
    ]
    assert bench.orders(records, 1) == {0: ["a", "b"], 1: ["b", "a"]}
    assert bench.spread(records, "a", 1) == pytest.approx(0.4 / 2**0.5)


def test_the_command_writes_its_pages_and_resumes(model, tmp_path, capsys):
    out = tmp_path / "bench"
    words = ["bench", "parallel", "--model", str(model), "--tasks", "copy,shuffle", "--seeds", "1"]
    words += ["--cases", "2", "--room", "6", "--samplers", "autoregressive;counts;threshold:tau=0"]
    words += ["--batches", "1,2", "--out", str(out)]
    assert run([*words, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["complete"]
    assert {row["setting"] for row in results["rows"]} == {
        "autoregressive",
        "counts",
        "threshold:tau=0",
    }
    assert "Parallel decoding of tiny" in (out / "report.html").read_text()
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == (out / "results.md").read_text().strip()
    assert "total correlation" in printed
    assert run([*words[:-1], str(tmp_path / "o"), "--seeds", "0"]) == 2
    assert run(["bench", "parallel", "--model", str(model), "--tasks", "nonsense"]) == 2
    assert "unknown task 'nonsense'" in capsys.readouterr().err

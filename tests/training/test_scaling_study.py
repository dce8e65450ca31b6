"""A study's laws from made-up runs, its files, and counts as people write them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.measure.log_linear import fit_log_linear
from paceline.training.scaling import (
    PARAMETERS,
    TOKENS,
    Law,
    PlannedRun,
    Point,
    Results,
    RunResult,
    Study,
    laws,
    markdown,
    write_report,
)
from paceline.training.trainer import parse_count, short


def point(
    network: str, parameters: int, tokens: int, value: float, seed: int = 0, depth: int = 3
) -> Point:
    settings = {"network": network, "tokens": tokens, "seed": seed}
    run = PlannedRun(network, network.split(":")[0], depth, parameters, tokens, seed, settings)
    seen = tokens + 7 * seed
    return Point(run, RunResult(seen, 9, 1.5, 2.25, 50, 1 + value, (value, value / 2)))


def only(found: list[Law], **wanted: str) -> Law:
    [law] = [law for law in found if all(getattr(law, k) == v for k, v in wanted.items())]
    return law


def test_a_law_over_tokens_takes_what_was_seen_and_all_seeds() -> None:
    points = [
        point("hydra", 500, tokens, 0.1 * rank + 0.01 * seed, seed)
        for rank, tokens in enumerate((1000, 2000, 4000), 1)
        for seed in (0, 1)
    ]
    found = laws(points)
    assert [law.size for law in found] == [TOKENS] * 2  # one size: no law over parameters
    law = only(found, value="first-token acceptance")
    sizes = [1003.5, 1003.5, 2003.5, 2003.5, 4003.5, 4003.5]
    assert law.fit.sizes.tolist() == sizes
    assert law.fit.per_tenfold == fit_log_linear(sizes, law.fit.values).per_tenfold
    assert law.fit.values.tolist() == [each.outcome.acceptance[0] for each in points]
    block = only(found, value="block efficiency")
    assert block.fit.values == pytest.approx(law.fit.values + 1)
    assert (law.of, law.label) == ("hydra", "hydra 500")


def test_seeds_are_no_sizes() -> None:
    assert laws([point("hydra", 500, 1000, 0.1 * seed, seed) for seed in range(4)]) == []


def test_a_law_over_parameters_stays_within_a_kind_a_depth_and_the_largest_budget() -> None:
    networks = [(f"hydra:hidden={n}", n * 100, 3) for n in (1, 2, 4)]
    others = [("eagle3", 900, 3), ("hydra:steps=5", 400, 5)]
    points = [
        point(name, parameters, tokens, parameters * tokens / 1e9, depth=depth)
        for tokens in (1000, 2000)
        for name, parameters, depth in (*networks, *others)
    ]
    found = laws(points)
    assert {law.size for law in found} == {PARAMETERS}
    law = only(found, value="first-token acceptance")
    assert law.of == "hydra of depth 3, 2k tokens"
    assert law.fit.sizes.tolist() == [100, 200, 400]
    assert law.fit.values.tolist() == pytest.approx([2e-4, 4e-4, 8e-4])


def test_networks_of_one_size_keep_their_own_curves() -> None:
    points = [
        point(name, 500, tokens, tokens / 1e4, depth=depth)
        for name, depth in (("hydra", 4), ("hydra:steps=3", 3))
        for tokens in (1000, 2000, 4000)
    ]
    assert {law.label for law in laws(points)} == {"hydra", "hydra:steps=3"}


def test_results_come_back_as_they_were_and_another_run_has_another_file(tmp_path: Path) -> None:
    results = Results(tmp_path / "new" / "runs")
    first, second = point("hydra", 500, 1000, 1 / 3), point("hydra", 500, 1000, 1 / 7, seed=1)
    assert results.read(first.run) is None
    results.checkpoint(first.run).write_text("half")
    results.keep(first.run, first.outcome)
    assert not results.checkpoint(first.run).exists()
    results.keep(second.run, second.outcome)
    assert results.read(first.run) == first.outcome
    assert results.read(second.run) == second.outcome
    other = replace(first.run, settings={**first.run.settings, "rate": 1})
    assert results.read(other) is None


@pytest.mark.parametrize("entry", ["loss", "acceptance", "tokens"])
def test_impossible_figures_are_damage(tmp_path: Path, entry: str) -> None:
    mine, results = point("hydra", 500, 1000, 0.5), Results(tmp_path)
    results.keep(mine.run, mine.outcome)
    [path] = tmp_path.iterdir()
    content = json.loads(path.read_text())
    content["outcome"][entry] = [] if entry == "acceptance" else float("nan")
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidOption, match=rf"{path.name} is damaged"):
        results.read(mine.run)


def test_the_report_says_what_is_not_finished(tmp_path: Path) -> None:
    points = [point("hydra", 500, tokens, tokens / 1e4) for tokens in (1000, 2000, 4000)]
    study = Study("paceline train scaling", "tiny", {"texts": 50}, 9000, 4, 3, points)
    whole = write_report(tmp_path, study)
    assert whole["complete"] is True
    assert "runs are finished" not in (tmp_path / "scaling.md").read_text()
    assert "| `hydra` | 500 | 2,000 | 0 | 1.200 | 20.0% | 2.250 | 2 |" in markdown(study, [], {})
    part = replace(study, points=points[:2])
    assert "2 of 3 runs are finished" in markdown(part, [], {})
    assert "A law needs three numbers" in markdown(part, [], {})
    (tmp_path / "scaling.json").unlink()
    (tmp_path / "scaling.json").mkdir()
    with pytest.raises(InvalidOption, match=r"cannot write .*scaling\.json"):
        write_report(tmp_path, study)


@pytest.mark.parametrize(
    ("text", "count"),
    [("60000", 60_000), ("60k", 60_000), ("1.5M", 1_500_000), (" 2m ", 2_000_000), ("0.2K", 200)],
)
def test_counts_are_read(text: str, count: int) -> None:
    assert parse_count(text, "--tokens") == count


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "60kk", "6e4", "1_000", "k", "0.0001k"])
def test_bad_counts_are_named(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--tokens must be .* not '"):
        parse_count(text, "--tokens")


@given(st.integers(1, 10**10))
def test_short_counts_are_close(count: int) -> None:
    assert parse_count(short(count), "x") == pytest.approx(count, rel=0.005)
    if count < 999_500_000:
        assert len(short(count).rstrip("kM").replace(".", "")) <= 3

"""Arithmetic of the rows, choice of prompts, the order of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.core.metrics import GenerationStats
from paceline.core.types import SamplingParams
from paceline.drafters.base import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder, Commit
from paceline.engine.prefill import Chunk
from paceline.engine.stopping import StopRules
from paceline.lab.measure import report
from paceline.lab.measure.agent import Dialogues
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.prompts import BUILT_IN, BenchPrompt, spread
from paceline.lab.measure.run import Record, Run, run
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled


def stats(tokens: int, forwards: int, seconds: float) -> GenerationStats:
    return GenerationStats(
        target_forwards=forwards,
        committed_tokens=tokens,
        draft_seconds=seconds / 10,
        forward_seconds=seconds * 8 / 10,
        overhead_seconds=seconds / 10,
    )


def record(index: int, category: str, mine: GenerationStats, same: bool = True) -> Record:
    ids = [[1, 2, 3]]
    return Record(
        index,
        str(index),
        category,
        {
            "none": Run(ids, stats(100, 100, 10.0)),
            "fast": Run(ids if same else [[1, 2, 4]], mine),
        },
    )


def shown(rows: list[report.Row]) -> str:
    return report.aligned([report.titles(), *map(report.cells, rows)])


def test_speedup_is_a_ratio_of_totals() -> None:
    records = [
        record(0, "qa", stats(100, 50, 5.0)),
        record(1, "math", stats(300, 60, 10.0), same=False),
    ]
    rows = {
        (row["drafter"], row["category"]): row
        for row in report.rows(records, {"none": True, "fast": True})
    }
    whole = rows["fast", "all"]
    assert whole["tokens_per_second"] == pytest.approx(400 / 15)
    assert whole["speedup"] == pytest.approx(400 / 15 / 10)
    assert whole["block_efficiency"] == pytest.approx(400 / 110)
    assert whole["draft_share"] == pytest.approx(0.1)
    assert whole["overhead_share"] == pytest.approx(0.1)
    assert whole["identical"] == 0.5
    assert whole["speedup_low"] == pytest.approx(2)
    assert whole["speedup_high"] == pytest.approx(3)
    assert rows["fast", "qa"]["speedup"] == pytest.approx(2)
    assert rows["none", "all"]["speedup"] == 1
    assert report.remarks(list(rows.values())) == [
        "fast: 50% of the texts differ from those of none, so its speed-up compares different texts"
    ]


def test_rows_survive_runs_without_time() -> None:
    empty = Record(0, "0", "qa", {"none": Run(), "fast": Run()})
    rows = report.rows([empty], {"none": True, "fast": True})
    assert rows[0]["speedup"] is None
    assert "-" in shown(rows)
    assert shown(rows)
    assert report.rows([], {"none": True}) == []
    assert shown([])


def test_records_survive_json() -> None:
    import json

    first = record(3, "qa", stats(5, 2, 0.25))
    assert Record.from_dict(json.loads(dumps(first.as_dict()))) == first
    broken: Any = first.as_dict()
    del broken["runs"]["fast"]["stats"]["committed_tokens"]
    with pytest.raises(ValueError, match="another version"):
        Record.from_dict(broken)


def test_spread_takes_categories_in_turn() -> None:
    chosen = [BenchPrompt(str(n), c, ("?",)) for n, c in enumerate("aaabbc")]
    assert [p.category for p in spread(chosen, 4)] == ["a", "b", "c", "a"]
    assert len(spread(chosen, None)) == len(spread(chosen, 99)) == 6
    assert len({p.category for p in spread(BUILT_IN, 6)}) == 6


def test_strict_json_has_no_nan() -> None:
    assert dumps({"a": [float("nan"), 1.5, (float("inf"),)]}) == '{"a": [null, 1.5, [null]]}'


def engine(drafter: NoDrafter | Recycling, log: list[str], budget: int, batch: int) -> Engine:
    class Logged(type(drafter)):  # type: ignore[misc]
        def open(self, sequence: Any) -> None:
            log.append(self.name)
            super().open(sequence)

        def reset(self) -> None:
            log.append(f"reset {self.name}")
            super().reset()

    drafter.__class__ = Logged
    table = TabularModel(320, 1, seed=5, sharpness=3.0)
    target: Any = TabularTarget(table.logits, 320)
    parts = drafter, Coupled(), Fixed(budget, budget), StopRules((), 4096)
    tokenizer = Tokenizer(tiny_tokenizer(320))
    return Engine(AutoregressiveDecoder(target, *parts), tokenizer, max_batch=batch)


def test_runs_are_interleaved_and_rotate() -> None:
    log: list[str] = []
    engines = {
        "none": engine(NoDrafter(), log, 1, 2),
        "recycling": engine(Recycling(320), log, 6, 2),
    }
    log.clear()
    prompts = [BenchPrompt(str(n), "qa", (f"text {n}", "more")) for n in range(5)]
    params = SamplingParams(max_new_tokens=10, temperature=1.0)
    finished = list(run(engines, Dialogues(prompts, 2), params, done=frozenset({2, 3})))
    assert [[r.index for r in group] for group in finished] == [[0, 1], [4]]
    assert log == ["none"] * 2 + ["recycling"] * 2 + ["none", "recycling"]
    for group in finished:
        for each in group:
            assert each.runs["none"].token_ids == each.runs["recycling"].token_ids
            assert each.runs["none"].stats.committed_tokens == 10
    log.clear()
    list(run(engines, Dialogues(prompts[:2]), params, cold=True))
    resets = ["reset none", "reset recycling"]
    assert log == [*resets, "none", "recycling", *resets, "recycling", "none"]
    assert Dialogues(prompts, 2).groups == [[0, 1], [2, 3], [4]]


def test_engines_take_turns_within_a_group() -> None:
    steps: list[str] = []

    class Counted(AutoregressiveDecoder):
        def step(
            self, sequences: Sequence[Generation], chunks: Sequence[Chunk] = ()
        ) -> list[Commit]:
            steps.append(self.drafter.name)
            return super().step(sequences, chunks)

    engines = {}
    for drafter in (NoDrafter(), Recycling(320)):
        engines[drafter.name] = engine(drafter, [], 1, 1)
        engines[drafter.name].decoder.__class__ = Counted
    params = SamplingParams(max_new_tokens=40, temperature=1.0)
    list(run(engines, Dialogues([BenchPrompt("0", "qa", ("text",))]), params))
    assert steps[:24] == ["none"] * 8 + ["recycling"] * 8 + ["none"] * 8


def test_texts_of_one_prompt_have_randomness_of_their_own() -> None:
    engines = {"none": engine(NoDrafter(), [], 1, 1)}
    prompts = [BenchPrompt("0", "qa", ("text",), sample) for sample in (0, 1, 2, 0)]
    for temperature, different in ((1.0, 3), (0.0, 1)):
        params = SamplingParams(max_new_tokens=10, temperature=temperature)
        [*groups] = run(engines, Dialogues(prompts), params)
        texts = [tuple(each.runs["none"].token_ids[0]) for [each] in groups]
        assert texts[0] == texts[3]
        assert len(set(texts)) == different


def test_a_stopped_run_leaves_nothing_in_flight() -> None:
    engines = {"none": engine(NoDrafter(), [], 1, 2)}
    prompts = [BenchPrompt("0", "qa", ("text",)), BenchPrompt("1", "qa", ("more text",))]
    calls = iter([False, False, True])
    got = list(run(engines, Dialogues(prompts, 2), SamplingParams(), stop=lambda: next(calls)))
    assert got == []
    assert engines["none"].pending == 0


def test_rows_of_a_forward_are_the_root_and_its_draft() -> None:
    assert GenerationStats(target_forwards=4, drafted_tokens=10).rows_per_forward == 3.5
    assert GenerationStats(target_forwards=4).rows_per_forward == 1
    assert GenerationStats().rows_per_forward == 0

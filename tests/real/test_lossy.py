"""T7 on the real model: lossless limits give the plain text, defaults say that they are lossy."""

from __future__ import annotations

import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.cli.output import summary
from paceline.measure.report import remarks, rows
from paceline.measure.run import Record, Run
from paceline.registry.loaded import Loaded
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

LIMITS = (
    *("typical", "top-gap:beta=1,gap=0", "fly:window=99", "fly:window=2,gate=1.1"),
    *("judge:threshold=1", "pivot:threshold=0", "reflective:alpha=0", "relaxed:ratio=9"),
)
"""At temperature 0, where `typical` and `relaxed` have no other case."""

SAMPLED = ("typical:epsilon=1,delta=1e6,greedy_next=false", *LIMITS[1:7])
LOSSY = ("top-gap", "fly:window=2,gate=0", "judge:threshold=0", "pivot:threshold=1", "reflective")


@pytest.fixture(scope="module")
def model() -> Loaded:
    return load("int8")


def texts(model: Loaded, drafter: str, verifier: str, **options: float) -> list[tuple[int, ...]]:
    engine = make_engine(model, drafter=drafter, verifier=verifier, nodes=8, depth=4, max_batch=2)
    return [done.token_ids for done in engine.generate(PROMPTS[3:5], **options)]


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        (LIMITS, {"max_new_tokens": 16}),
        (SAMPLED, {"max_new_tokens": 12, "temperature": 1.0, "top_p": 0.95, "seed": 5}),
    ],
    ids=["greedy", "sampled"],
)
def test_limits_give_the_text_of_plain_decoding(model, rules, options):
    plain = texts(model, "none", "coupled", **options)
    for rule in rules:
        assert texts(model, "recycling", rule, **options) == plain, rule


def test_away_from_the_limit_texts_differ_and_the_reports_say_lossy(model):
    plain = make_engine(model, drafter="none")
    truth = plain.generate(PROMPTS[3], max_new_tokens=24)
    differ = 0
    for rule in LOSSY:
        engine = make_engine(model, drafter="recycling", verifier=rule, nodes=8, depth=4)
        assert engine.config["lossless"] is False
        done = engine.generate(PROMPTS[3], max_new_tokens=24)
        differ += done.token_ids != truth.token_ids
        assert f"lossy: verifier {rule.partition(':')[0]}" in summary(engine, done)
        runs = {"none": Run([[*truth.token_ids]], truth.stats)}
        runs |= {"recycling": Run([[*done.token_ids]], done.stats)}
        table = rows([Record(0, "1", "list", runs)], {"none": True, "recycling": False})
        assert any("recycling" in line and "lossy" in line for line in remarks(table))
    assert differ >= 3
    assert "lossy" not in summary(plain, truth)

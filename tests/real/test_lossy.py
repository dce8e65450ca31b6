"""T7 on the real model: lossless limits give the plain text, defaults say that they are lossy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.cli.output import summary
from paceline.drafters.resources import Loaded
from paceline.lab.measure.report import remarks, rows
from paceline.lab.measure.run import Record, Run
from paceline.methods.heads.verifiers import LinearHead, save_head
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real

LIMITS = (
    *("typical", "top-gap:beta=1,gap=0", "fly:window=99", "fly:window=2,gate=1.1"),
    *("judge:threshold=1,head={no}", "pivot:threshold=0,head={no}", "judge:head={no}"),
    *("pivot:head={yes}", "reflective:alpha=0", "relaxed:ratio=9"),
)
"""At temperature 0, where `typical` and `relaxed` have no other case."""

SAMPLED = ("typical:epsilon=1,delta=1e6,greedy_next=false", *LIMITS[1:-1])
LOSSY = (
    "top-gap:beta=9,gap=9",
    "fly:window=2,gate=0",
    "judge:head={yes}",
    "pivot:head={no}",
    "reflective",
)


@pytest.fixture(scope="module")
def model() -> Loaded:
    return load("int8")


@pytest.fixture(scope="module")
def named(model: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Puts head files into a rule's name: `{yes}` finds everything of its class, `{no}` nothing,
    `{some}` what a random direction of the hidden state says."""
    folder = tmp_path_factory.mktemp("heads")
    width = model.target.capabilities.hidden_size
    for kind, features in (("judge", width), ("pivot", width + 4)):
        for answer, bias in (("yes", 40.0), ("no", -40.0)):
            metadata = {"kind": kind, "model": model.source.fingerprint}
            head = LinearHead(np.zeros(features, np.float32), bias, metadata)
            save_head(folder / f"{kind}-{answer}", head)
        random = np.random.default_rng(1).normal(size=features).astype(np.float32)
        save_head(folder / f"{kind}-some", LinearHead(random, 0.0, metadata))

    def name(rule: str) -> str:
        place = folder / rule.partition(":")[0]
        return rule.format(yes=f"{place}-yes", no=f"{place}-no", some=f"{place}-some")

    return name


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
def test_limits_give_the_text_of_plain_decoding(model, named, rules, options):
    plain = texts(model, "none", "coupled", **options)
    for rule in rules:
        assert texts(model, "recycling", named(rule), **options) == plain, rule


@pytest.mark.parametrize("rule", ["judge", "pivot"])
def test_a_head_that_looks_at_the_state_says_yes_to_some_and_no_to_others(model, named, rule):
    found = [
        texts(model, "recycling", named(f"{rule}:head={{{head}}}"), max_new_tokens=24)
        for head in ("yes", "no", "some")
    ]
    assert found[0] != found[1] != found[2] != found[0]


@pytest.mark.parametrize("rule", LOSSY)
def test_away_from_the_limit_texts_differ_and_the_reports_say_lossy(model, named, rule):
    asked = [PROMPTS[0], PROMPTS[3]]
    plain = make_engine(model, drafter="none")
    truth = plain.generate(asked, max_new_tokens=24)
    engine = make_engine(model, drafter="recycling", verifier=named(rule), nodes=8, depth=4)
    assert engine.config["lossless"] is False
    texts = engine.generate(asked, max_new_tokens=24)
    assert [done.token_ids for done in texts] != [done.token_ids for done in truth]
    assert f"lossy: verifier {rule.partition(':')[0]}" in summary(engine, texts[0])
    runs = {"none": Run([[*truth[0].token_ids]], truth[0].stats)}
    runs |= {"recycling": Run([[*texts[0].token_ids]], texts[0].stats)}
    table = rows([Record(0, "1", "list", runs)], {"none": True, "recycling": False})
    assert any("recycling" in line and "lossy" in line for line in remarks(table))
    assert "lossy" not in summary(plain, truth[0])

"""T7a: at its documented limit every lossy rule is plain decoding, token by token."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.heads.test_heads import head_file
from tests.verifiers.lossy_runs import (
    DRAFTERS,
    HIDDEN,
    VOCABULARY,
    plain,
    requests,
    run,
    text,
)

from paceline.core.types import Budget, SamplingParams
from paceline.methods.fly import Fly
from paceline.methods.heads.verifiers import Judge, Pivot
from paceline.methods.reflective import Reflective
from paceline.methods.relaxed import Relaxed
from paceline.methods.relaxed_acceptance import RelaxedAcceptance, Round
from paceline.methods.top_gap import TopGap
from paceline.methods.typical import Typical
from paceline.registry import table as registry
from paceline.verifiers.base import Verifier


class PardonsAll(RelaxedAcceptance):
    """No limit at all."""

    name = "pardons-all"

    def relaxes(self, step: Round, node: int, child: int, depth: int) -> bool:
        return True


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verifier]:
    """Every rule at its limit."""
    path = tmp_path_factory.mktemp("heads")
    judge, pivot = head_file(path, "judge", HIDDEN), head_file(path, "pivot", HIDDEN + 4)
    return {
        "typical": Typical(epsilon=1, delta=VOCABULARY, greedy_next=False),
        "top-gap": TopGap(beta=1, gap=0),
        "top-gap beta alone": TopGap(beta=1, gap=math.inf),
        "fly gate": Fly(window=2, gate=math.log(3) + 1e-9),
        "fly window": Fly(window=7, gate=0),
        "judge": Judge(threshold=1, head=str(judge)),
        "pivot": Pivot(threshold=0, head=str(pivot)),
        "reflective": Reflective(alpha=0, prompt=(3, 4)),
        "reflective without a prompt": Reflective(alpha=0),
    }


NAMES = [
    *("typical", "top-gap", "top-gap beta alone", "fly gate", "fly window", "judge", "pivot"),
    *("reflective", "reflective without a prompt"),
]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(params=requests(), nodes=st.integers(1, 20))
def test_at_the_limit_the_text_is_that_of_plain_decoding(
    rules: dict[str, Verifier], name: str, drafter: str, params: SamplingParams, nodes: int
) -> None:
    steps = run(rules[name], DRAFTERS[drafter], params, budget=Budget(nodes, 6))
    assert text(steps) == plain(params)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", [Typical(), Relaxed(3.0)], ids=lambda r: r.name)
@settings(max_examples=6)
@given(params=requests())
def test_certain_laws_leave_these_rules_greedy_whatever_their_parameters(
    rule: Verifier, drafter: str, params: SamplingParams
) -> None:
    options = {name: getattr(params, name) for name in params.__slots__}
    params = SamplingParams(**(options | {"temperature": 0.0}))
    assert text(run(rule, DRAFTERS[drafter], params)) == plain(params)


@settings(max_examples=10)
@given(params=requests())
def test_typical_at_its_limit_is_greedy_at_any_temperature_as_in_the_paper(
    params: SamplingParams,
) -> None:
    options = {name: getattr(params, name) for name in params.__slots__}
    cold = SamplingParams(**(options | {"temperature": 0.0}))
    rule = Typical(epsilon=1, delta=VOCABULARY)
    assert text(run(rule, DRAFTERS["tree"], params)) == plain(cold)


def test_accepted_drafts_are_many_at_the_limit(rules: dict[str, Verifier]) -> None:
    """The identity is not bought by accepting nothing."""
    params = SamplingParams(max_new_tokens=24)
    for name in NAMES[1:]:
        assert len(run(rules[name], DRAFTERS["nearly"], params)) <= 12, name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rule_without_a_limit_is_seen(temperature: float) -> None:
    """Negative control: pardoning everything changes the text."""
    params = SamplingParams(temperature=temperature, max_new_tokens=24)
    assert text(run(PardonsAll(), DRAFTERS["nearly"], params)) != plain(params)


@pytest.mark.parametrize(
    "method",
    [m for m in registry.methods() if m.kind == "verifier" and m.guarantee.startswith("lossy")],
    ids=lambda m: m.name,
)
def test_lossy_rules_say_so_in_type_and_registry(method: registry.Method) -> None:
    factory = method.load()
    assert factory.lossless is False
    assert None in factory.accepts


def test_all_seven_are_registered() -> None:
    lossy = {m.name for m in registry.methods() if m.guarantee.startswith("lossy")}
    names = {"typical", "top-gap", "fly", "judge", "pivot", "reflective", "relaxed"}
    assert names <= lossy

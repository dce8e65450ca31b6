"""A request's own limits of drafting: under every controller, beside requests without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer

from paceline.core import tree as trees
from paceline.core.types import UNLIMITED, Budget, LogitArray, Speculation, TokenTree
from paceline.drafters.base import Drafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.adaptive import Adaptive
from paceline.methods.bandit import Bandit
from paceline.methods.confidence import Confidence
from paceline.models.text import Tokenizer
from paceline.policy.controller import Controller, Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

VOCABULARY = 320
MODEL = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.0)
TOKENIZER = Tokenizer(tiny_tokenizer(VOCABULARY), eos_token_ids=(2,), chat_template=CHAT_TEMPLATE)
PLAIN = Speculation(enabled=False)
SAMPLED: dict[str, Any] = {"temperature": 0.7, "seed": 5, "max_new_tokens": 40, "ignore_eos": True}

CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: Fixed(8, 4),
    "confidence": lambda: Confidence(0.05),
    "adaptive": lambda: Adaptive(),
    "bandit": lambda: Bandit(),
    "cost-model": lambda: CostModelController(CostModel((1, 16), [1.0, 1.05])),
}


def few_words(context: tuple[int, ...]) -> LogitArray:
    """A model that says ten tokens, over and over."""
    row = np.full(VOCABULARY, -40.0, np.float32)
    row[300:310] = MODEL.logits(context)[300:310]
    return row


class Watched(Recycling):
    """Notes the size and depth of every draft, by sequence."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.drafted: dict[int, list[tuple[int, int]]] = {}

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        drafts = super().propose(sequences, budgets)
        for sequence, draft in zip(sequences, drafts, strict=True):
            depth = int(trees.depths(draft).max(initial=0))
            self.drafted.setdefault(sequence.id, []).append((len(draft), depth))
        return drafts


def engine_of(drafter: Drafter, controller: Controller) -> Engine:
    target = TabularTarget(few_words, VOCABULARY)
    stops = StopRules(TOKENIZER.eos_token_ids, target.capabilities.max_context)
    return Engine(AutoregressiveDecoder(target, drafter, Coupled(), controller, stops), TOKENIZER)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_batch_mixes_requests_with_and_without_drafts(name: str) -> None:
    drafter = Watched()
    engine = engine_of(drafter, CONTROLLERS[name]())
    rules = [UNLIMITED, PLAIN, Speculation(nodes=2), Speculation(depth=1)]
    requests = [engine.add("the quick", speculation=rule, **SAMPLED) for rule in rules]
    done = {}
    while engine.pending:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion
    sizes = [[max(each) for each in zip(*drafter.drafted[r], strict=True)] for r in requests]
    assert sizes[0][0] > 2
    assert sizes[1] == [0, 0]
    assert sizes[2][0] == 2
    assert sizes[3][1] == 1
    assert len({done[request].token_ids for request in requests}) == 1
    assert done[requests[0]].stats.accepted_tokens > 0
    assert done[requests[1]].stats.target_forwards == 40


def test_all_ways_to_ask_take_it() -> None:
    drafter = Watched()
    engine = engine_of(drafter, Fixed(8, 4))
    engine.generate("dog", speculation=PLAIN, **SAMPLED)
    list(engine.stream("dog", speculation=PLAIN, **SAMPLED))
    list(engine.events("dog", speculation=PLAIN, **SAMPLED))
    engine.generate(["dog", "fox"], speculation=PLAIN, **SAMPLED)
    assert {size for sizes in drafter.drafted.values() for size in sizes} == {(0, 0)}
    engine.generate("dog", **SAMPLED)
    assert max(drafter.drafted[5]) > (2, 0)


@pytest.mark.parametrize("bad", [False, 4, None, "off"])
def test_what_is_no_limit_is_refused_before_anything_happens(bad: object) -> None:
    engine = engine_of(Watched(), Fixed(8, 4))
    with pytest.raises(InvalidOption, match=r"such as Speculation\(enabled=False\), not"):
        engine.generate("dog", speculation=bad)
    assert engine.pending == 0


@pytest.mark.parametrize("name", ["nodes", "depth"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "4"])
def test_sizes_are_checked_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"speculation {name} must be 1 or more, not"):
        Speculation(**{name: value})


sizes = st.none() | st.integers(1, 12)


@given(sizes, sizes, st.booleans(), st.integers(0, 12), st.integers(0, 12))
def test_a_cap_only_takes_away(
    nodes: int | None, depth: int | None, enabled: bool, asked: int, deep: int
) -> None:
    whole = Budget(asked, deep, 0.1, 0.2)
    budget = Speculation(nodes, depth, enabled).cap(whole)
    assert budget.nodes <= min(asked, nodes or asked)
    assert budget.depth <= min(deep, depth or deep, nodes or deep)
    if not enabled:
        assert budget == Budget(0, 0)
    elif nodes is None and depth is None:
        assert budget == whole
    else:
        assert (budget.least, budget.row) == (0.1, 0.2)
    assert Speculation(nodes, depth, enabled).cap(budget) == budget

"""An expert that overflows: its requests end by name, all others keep their text, nothing is lost.

Token `ODD` alone reaches the odd expert: its embedding has a direction that no other one has, and
the first layer adds nothing before its router.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.table_engines import TOKENIZER
from tests.models.test_experts import Weights

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.tree import EMPTY, chain
from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.engine import Completion, Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import BadLogits, PacelineError
from paceline.lab.measure.fingerprint import TinyModel
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter
from paceline.runtimes.cpu.target import CpuTarget
from paceline.verifiers.matching import Coupled

FAMILIES = ("mixtral", "llama_blockffn")
ODD, EXPERT = 77, 3
HUGE = float(np.finfo(np.float32).max)
GOOD = ([3, 17, 5], [9, 9, 40, 2], [66])
PARAMS = SamplingParams(max_new_tokens=8, ignore_eos=True)


class Odd(Weights):
    """Weights with one expert that `ODD` alone uses, and with factors of its parts."""

    def __init__(self, config: Any, **parts: float) -> None:
        super().__init__(config, ("F32",))
        self.parts = {f"layers.0.{name}": value for name, value in parts.items()}

    def __getitem__(self, name: str) -> Any:
        found = np.array(super().__getitem__(name))
        if name == "embed":
            found[:, 0] = -0.1
            found[ODD] = 0
            found[ODD, 0] = 1
        if name == "layers.0.o":
            found[:] = 0
        if name == "layers.0.router":
            found[:, 0] = 0
            found[EXPERT] = 0
            found[EXPERT, 0] = self.parts.get("layers.0.router", 9)
        if name.startswith(f"layers.0.experts.{EXPERT}."):
            found[:] = self.parts.get(f"layers.0.{name.rpartition('.')[2]}", 1) * found
        return found


def target(family: str, **parts: float) -> CpuTarget:
    config = TinyModel(family, ("F32",)).config
    return CpuTarget(config, Odd(config, **parts), "fp32", kv_tokens=1024)


def engine(runtime: CpuTarget, drafter: Drafter | None = None) -> Engine:
    stops = StopRules((2,), 200)
    parts: Any = runtime, drafter or NoDrafter(), Coupled(), Fixed(4, 4), stops
    return Engine(AutoregressiveDecoder(*parts), TOKENIZER, max_batch=8)


def answers(made: Engine, prompts: Any) -> list[tuple[int, ...] | PacelineError]:
    """All prompts together."""
    ids = [made.add(list(prompt), PARAMS) for prompt in prompts]
    done: dict[int, Any] = {}
    while made.pending:
        for event in made.step():
            if event.completion is not None or event.error is not None:
                assert event.request not in done
                done[event.request] = event.completion or event.error
    found = [done[each] for each in ids]
    return [each.token_ids if isinstance(each, Completion) else each for each in found]


# What is wrong with the expert.
FAULTS: dict[str, dict[str, float]] = {
    "scores overflow": {"router": HUGE},
    "scores are infinite": {"router": np.inf},
    "its output overflows": {"down": HUGE},
    "its inner state overflows": {"up": HUGE},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_ends_its_own_requests_by_name(family: str, fault: str) -> None:
    expected = answers(engine(target(family)), GOOD)
    made = engine(target(family, **FAULTS[fault]))
    found = answers(made, [GOOD[0], [5, ODD, 8], *GOOD[1:], [ODD]])
    assert [found[i] for i in (0, 2, 3)] == expected
    assert all(isinstance(found[i], BadLogits) for i in (1, 4))
    memory = made.decoder.memory
    assert memory.free == memory.blocks
    assert answers(made, GOOD) == expected  # and the engine goes on


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_draft_that_reaches_it_costs_no_other_request(family: str, fault: str) -> None:
    """Rows of a pass share its keys, so what a drafted token spoils is its own request."""

    def draft(tokens: Any, _randomness: Any, _budget: Any) -> Any:
        return trees.chain([ODD, 5], "odd") if tokens[: len(GOOD[0])] == tuple(GOOD[0]) else EMPTY

    expected = answers(engine(target(family)), GOOD)
    drafter = FunctionDrafter(draft)
    assert answers(engine(target(family), drafter), GOOD) == expected
    found = answers(engine(target(family, **FAULTS[fault]), drafter), GOOD)
    assert isinstance(found[0], BadLogits)
    assert found[1:] == expected[1:]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_router_of_no_numbers_ends_every_request_by_name(family: str) -> None:
    found = answers(engine(target(family, router=np.nan)), GOOD)
    assert all(isinstance(each, BadLogits) for each in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_that_are_huge_but_finite_have_exact_texts(family: str) -> None:
    made = target(family, router=1e15)
    prompts = [*GOOD, [5, ODD, 8], [ODD]]
    together = answers(engine(made), prompts)
    assert [answers(engine(made), [each])[0] for each in prompts] == together
    assert not any(isinstance(each, PacelineError) for each in together)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_expert_has_a_capacity(family: str) -> None:
    """All rows of a forward to the same experts: none is dropped."""
    made = target(family)
    cache = made.open()
    [output] = made.forward([Rows.draft(cache, [ODD], chain([ODD] * 99))])
    used = made.routes()[0]
    assert (used[:, EXPERT] != 0).all()
    assert np.array_equal(used, np.repeat(used[:1], 100, axis=0))
    assert np.isfinite(output.logits).all()

"""What a bench sees to before it compares engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from paceline.engine.engine import Engine
from paceline.engine.prefill import beside
from paceline.measure.run import read_alike
from paceline.policy.controller import Controller, Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController


def test_all_engines_read_prompts_in_the_same_portions() -> None:
    """Plain decoding takes over what forwards cost; who knows it already keeps what it learnt."""
    costs = CostModel((1, 512), [1.0, 4.0])
    plain, drafting = Fixed(0, 0), CostModelController(CostModel((1, 512), [1.0, 4.0]))
    own = drafting.costs
    controllers: list[Controller] = [plain, drafting]
    assert beside(8, plain.costs) != beside(8, drafting.costs)
    engines: list[Any] = [
        SimpleNamespace(decoder=SimpleNamespace(controller=each)) for each in controllers
    ]
    read_alike(cast(list[Engine], engines), costs)
    assert plain.costs is costs
    assert drafting.costs is own
    assert beside(8, plain.costs) == beside(8, drafting.costs)

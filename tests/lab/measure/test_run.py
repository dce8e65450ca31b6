"""What a bench sees to before it compares engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.cli import fakes

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.prefill import beside
from paceline.errors import RequestFailed
from paceline.lab.measure.run import decode, read_alike
from paceline.policy.controller import Controller, Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController
from paceline.registry import loading


def test_all_engines_read_prompts_in_the_same_portions() -> None:
    """Plain decoding takes over what forwards cost; who knows it already keeps what it learnt."""
    costs = CostModel((1, 512), [1.0, 4.0])
    plain, drafting = Fixed(0, 0), CostModelController(CostModel((1, 512), [1.0, 4.0]))
    own = drafting.costs
    controllers: list[Controller] = [plain, drafting]
    assert beside(8, plain.costs) != beside(8, drafting.costs)
    engines: list[Any] = [
        SimpleNamespace(loop=SimpleNamespace(controller=each)) for each in controllers
    ]
    read_alike(cast(list[Engine], engines), costs)
    assert plain.costs is costs
    assert drafting.costs is own
    assert beside(8, plain.costs) == beside(8, drafting.costs)


def test_a_request_that_ends_with_an_error_ends_the_work(survived: list[str]) -> None:
    """It has no completion to wait for."""
    loaded = fakes.loaded()
    engine = loading.make_engine(loaded, drafter="none")
    genuine = loaded.target.forward

    def broken(passes: Any) -> Any:
        if any(len(each.cache.tokens) > 20 for each in passes):
            raise RuntimeError("no forward")
        return genuine(passes)

    loaded.target.forward = broken  # type: ignore[method-assign]
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    with pytest.raises(RequestFailed, match="no forward"):
        for _, _ in zip(decode(engine, ["the quick fox"], params), range(200), strict=False):
            pass
    assert not engine.pending
    survived.clear()

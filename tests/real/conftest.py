"""The default model on the CPU runtime, loaded once per precision."""

from __future__ import annotations

import pytest

from paceline.drafters.resources import Loaded
from paceline.registry.loading import load_model

_LOADED: dict[str, Loaded] = {}


def load(precision: str) -> Loaded:
    if precision not in _LOADED:
        _LOADED.clear()  # one at a time: fp32 weights take half a gigabyte
        _LOADED[precision] = load_model(precision=precision)
    return _LOADED[precision]


@pytest.fixture(scope="module", params=["file", pytest.param("fp32", marks=pytest.mark.slow)])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return load(request.param)

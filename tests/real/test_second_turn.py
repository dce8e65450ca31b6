"""A second turn reads what is new, and its drafter gets the features that reading would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.real.conftest import load

from paceline.engine.engine import Engine
from paceline.registry.loading import make_engine
from paceline.runtimes.kv_cache import BLOCK

pytestmark = pytest.mark.real

TEXT = "Rivers of the north carry ice until May, and towns beside them wait for the first boats. "


def features_of(engine: Engine, seen: list[Any]) -> None:
    """From now on note the features that the drafter reads."""
    drafter: Any = engine.decoder.drafter
    read = drafter.read

    def noting(sequence: Any, features: Any) -> None:
        seen.append(features.copy())
        read(sequence, features)

    drafter.read = noting


@pytest.mark.parametrize("precision", ["file", pytest.param("fp32", marks=pytest.mark.slow)])
def test_the_second_turn_of_a_network(precision: str) -> None:
    loaded = load(precision)
    kept, again, plain = (
        make_engine(loaded, drafter=name, nodes=4) for name in ("eagle3", "eagle3", "none")
    )
    read: list[list[Any]] = [[], []]
    for engine, seen in zip((kept, again), read, strict=True):
        features_of(engine, seen)
    prompt = plain.tokenizer.encode(TEXT * 9)
    new = plain.tokenizer.encode(" What do they wait for?")
    texts = []
    for engine in (kept, again, plain):
        first = engine.generate(prompt, max_new_tokens=40, ignore_eos=True)
        if engine is again:
            engine.decoder._prefiller._kept._blocks.clear()  # type: ignore[attr-defined]
        second = engine.generate(
            [*prompt, *first.token_ids, *new], max_new_tokens=40, ignore_eos=True
        )
        texts.append((first.token_ids, second.token_ids))
        before = len(prompt) + len(first.token_ids) + len(new)
        assert (before - second.stats.cached_tokens <= len(new) + 1 + BLOCK) == (
            engine is not again
        )
    assert texts[0] == texts[1] == texts[2]
    by_memory, by_reading = read[0][1], read[1][1]
    rows = min(len(by_memory), len(by_reading))
    assert rows >= 128
    assert np.array_equal(by_memory[-rows:], by_reading[-rows:])

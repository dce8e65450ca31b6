"""Logits of a trimmed LM head are those of the whole one, to the last bit on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows
from paceline.runtimes.torch.target import TorchTarget

IDS = np.array([0, 3, 17, 18, 40])
HEADS = None, lambda rows: IDS
PROMPT = [5, 9, 17, 23]


def logits(target: Any) -> Any:
    [output] = target.forward([Rows.draft(target.open(), PROMPT, argmax=True)])
    return np.array(output.logits)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4", "torch"])
def test_rows_of_the_head_alone(precision: str, tied: bool) -> None:
    shape = replace(tiny_cpu.config(), tied_embeddings=tied)
    if precision == "torch":
        whole, trimmed = (TorchTarget(shape, tiny_cpu.weights(shape), head=h) for h in HEADS)
    else:
        whole, trimmed = (tiny_cpu.target(precision, shape, head=h) for h in HEADS)
    assert whole.capabilities.head is None
    assert trimmed.capabilities.head == tuple(IDS)
    expected = logits(whole)[:, IDS]
    if precision == "torch":
        np.testing.assert_allclose(logits(trimmed), expected, rtol=1e-5, atol=1e-6)
    else:
        assert logits(trimmed).tobytes() == expected.tobytes()

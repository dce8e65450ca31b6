"""Losses that are no numbers are refused with a way on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.errors import InvalidOption
from paceline.lab.training.run import check_finite


def test_numbers_pass() -> None:
    for loss in (0.0, -1.5, 1e30):
        check_finite(loss, 3, None)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_others_stop_the_run_and_say_how_to_go_on(loss: float) -> None:
    with pytest.raises(InvalidOption, match=f"the loss is {loss} at step 7: begin again"):
        check_finite(loss, 7, None)
    with pytest.raises(InvalidOption, match=r"go on from last\.safetensors.* lower learning rate"):
        check_finite(loss, 7, Path("last.safetensors"))

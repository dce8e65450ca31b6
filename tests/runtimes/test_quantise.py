"""Compression error is bounded by half a step, and known matrices survive exactly."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InvalidOption
from paceline.runtimes.weights import INT4_GROUP, check_precision, pack, unpack


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_error_is_at_most_half_a_step(precision):
    matrix = np.random.default_rng(0).normal(size=(48, 96)).astype(np.float32)
    packed = pack(matrix, precision)
    error = np.abs(unpack(packed, matrix.shape) - matrix)
    if precision == "fp32":
        assert error.max() == 0
    elif precision == "int8":
        assert (error <= packed["scale"] * 0.5001).all()
    else:
        step = np.repeat(packed["scale"][:, :, 0], INT4_GROUP, axis=1)
        assert (error <= step * 0.5001).all()


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_zero_rows_stay_zero(precision):
    matrix = np.zeros((4, 64), dtype=np.float32)
    assert (unpack(pack(matrix, precision), matrix.shape) == 0).all()


def test_odd_shapes_are_refused_for_int4():
    with pytest.raises(InvalidOption, match="multiple of 32"):
        pack(np.ones((2, 33), dtype=np.float32), "int4")


def test_unknown_precision_is_named():
    with pytest.raises(InvalidOption, match=r"'int3'.*int8, fp32, int4"):
        check_precision("int3")

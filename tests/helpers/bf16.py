"""Parameters of tests that need instructions of the processor."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core import processor
from paceline.native.library import has_bf16_dot

INT8_IS_EXACT = processor.has("AVX2_VNNI")
NOT_EXACT = "this processor has no VNNI: int8 weights run with fp32 activations, not bit-exact"


def where_int8_is_exact(value: tuple[Any, ...]) -> Any:
    """The parameters; skipped where int8 weights run with fp32 activations."""
    return pytest.param(*value, marks=pytest.mark.skipif(not INT8_IS_EXACT, reason=NOT_EXACT))


def where_there_are_pairs(value: Any) -> Any:
    """The parameter; skipped on processors that multiply no pairs, where nobody gets such a cache
    and tests of fp16 cover what takes its place."""
    reason = "this processor has no AVX512_BF16: models get fp16 caches here, tested too"
    return pytest.param(value, marks=pytest.mark.skipif(not has_bf16_dot(), reason=reason))

"""Caches of bf16, multiplied in pairs, as a parameter of tests."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.native.library import has_bf16_dot


def where_there_are_pairs(value: Any) -> Any:
    """The parameter; skipped on processors that multiply no pairs, where nobody gets such a cache
    and tests of fp16 cover what takes its place."""
    reason = "this processor has no AVX512_BF16: models get fp16 caches here, tested too"
    return pytest.param(value, marks=pytest.mark.skipif(not has_bf16_dot(), reason=reason))

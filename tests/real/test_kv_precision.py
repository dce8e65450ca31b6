"""Coarser key-value caches of the real model: another function for u8, the same for all drafts."""

from __future__ import annotations

import numpy as np
import pytest
from paceline.runtimes.weights import load_prepared
from tests.helpers.bf16 import INT8_IS_EXACT, NOT_EXACT, where_there_are_pairs
from tests.real.test_bit_exact import TOKENS, TREE, opened, plain_rows, prompt

from paceline.core import tree as trees
from paceline.core.target import Pass
from paceline.native.library import has_bf16_dot
from paceline.runtimes.cpu.target import OpenVinoTarget

pytestmark = pytest.mark.real


def cached_as(loaded, kv):
    """The model with that cache; without one, with that of its precision."""
    precision = loaded.target.capabilities.precision
    tensors = load_prepared(loaded.source, precision)
    return OpenVinoTarget(loaded.source.config, tensors, precision, kv_precision=kv)


def test_the_cache_is_as_coarse_as_the_weights_allow(loaded):
    half = "bf16" if has_bf16_dot() else "fp16"
    own = loaded.target.capabilities
    coarse = own.precision == "int8" and own.attention == "paths"
    assert loaded.target.capabilities.kv_precision == (half if coarse else "fp32")


SIZES = {"fp16": 1 / 2, "bf16": 1 / 2, "u8": 9 / 32}


@pytest.mark.parametrize("kv", ["fp16", where_there_are_pairs("bf16"), "u8"])
def test_drafts_change_no_bit_of_a_coarse_cache(loaded, kv):
    if loaded.target.capabilities.precision == "int8" and not INT8_IS_EXACT:
        pytest.skip(NOT_EXACT)
    finest, target = cached_as(loaded, "fp32"), cached_as(loaded, kv)
    assert target.capabilities.bit_exact
    exact = finest.capabilities.kv_bytes_per_token
    assert target.capabilities.kv_bytes_per_token / exact == SIZES[kv]
    for length in (31, 270):
        cache = opened(target, prompt(length, 1))
        expected = plain_rows(target, cache, TOKENS[:17])
        rows = target.forward([Pass(cache, TOKENS[:1], trees.chain(TOKENS[1:17]))])[0].logits
        assert np.array_equal(rows, expected)
        target.forward([Pass(cache, [9], TREE)])
        target.keep(cache, 1, (1, 5))
        fresh = opened(target, [*prompt(length, 1), 9, 12, 16])
        a, b = target.forward([Pass(cache, [77]), Pass(fresh, [77])])
        assert np.array_equal(a.logits, b.logits)
        target.release(cache)
        target.release(fresh)
    reference = opened(finest, prompt(270, 1))
    cache = opened(target, prompt(270, 1))
    a, b = (t.forward([Pass(c, [7])])[0] for t, c in ((finest, reference), (target, cache)))
    assert not np.array_equal(a.logits, b.logits), "a control: the option does something"
    finest.release(reference)

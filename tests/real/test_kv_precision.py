"""Keys and values in half precision: another function, the same with and without drafts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.real.test_bit_exact import TOKENS, TREE, opened, plain_rows, prompt

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.runtimes.cpu.target import CpuTarget

pytestmark = pytest.mark.real


def cached_as(loaded, kv):
    own = loaded.target.capabilities.precision
    source = loaded.source
    return CpuTarget(source.config, source.weights(), own, kv_precision=kv)


def test_the_cache_is_as_coarse_as_the_weights_allow(loaded):
    own = loaded.target.capabilities
    assert own.kv_precision == ("fp32" if own.precision == "fp32" else "fp16")


def test_drafts_change_no_bit_of_a_coarse_cache(loaded):
    finest, target = cached_as(loaded, "fp32"), cached_as(loaded, "fp16")
    assert target.capabilities.bit_exact
    exact = finest.capabilities.kv_bytes_per_token
    assert target.capabilities.kv_bytes_per_token == exact / 2
    for length in (31, 270):
        cache = opened(target, prompt(length, 1))
        expected = plain_rows(target, cache, TOKENS[:17])
        rows = target.forward([Rows.draft(cache, TOKENS[:1], trees.chain(TOKENS[1:17]))])[0].logits
        assert np.array_equal(rows, expected)
        target.forward([Rows.draft(cache, [9], TREE)])
        target.keep(cache, 1, (1, 5))
        fresh = opened(target, [*prompt(length, 1), 9, 12, 16])
        a, b = target.forward([Rows.draft(cache, [77]), Rows.draft(fresh, [77])])
        assert np.array_equal(a.logits, b.logits)
        target.release(cache)
        target.release(fresh)
    reference = opened(finest, prompt(270, 1))
    cache = opened(target, prompt(270, 1))
    a, b = (t.forward([Rows.draft(c, [7])])[0] for t, c in ((finest, reference), (target, cache)))
    assert not np.array_equal(a.logits, b.logits), "a control: the option does something"
    finest.release(reference)

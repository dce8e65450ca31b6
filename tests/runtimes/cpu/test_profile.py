"""Times of a forward's parts: every operation of every family has its group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.core import tree
from paceline.core.target import Rows
from paceline.core.types import TokenTree
from paceline.runtimes.cpu.forward import GROUPS, by_group

BRANCHES = TokenTree(np.array([1, 2, 3]), np.array([-1, -1, 0]))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_every_group_takes_time(family: Any, precision: str) -> None:
    own = tiny.tiny_config(family)
    shape = tiny_cpu.config(
        family=family,
        qkv_bias=own.qkv_bias,
        qk_norm=own.qk_norm,
        tied_embeddings=own.tied_embeddings,
    )
    target = tiny_cpu.target(precision, shape)
    cache = target.open()
    target.prefill(cache, list(range(60)))
    before = target.forward([Rows.draft(cache, [5])])[0].logits.copy()
    for draft in (tree.EMPTY, tree.chain([1] * 7), BRANCHES):
        found = target.counted([Rows.draft(cache, [5], draft)], 4)
        assert tuple(found.groups) == GROUPS
        assert min(found.groups.values()) > 0
        assert sum(found.groups.values()) <= found.seconds
    assert cache.length == 60
    assert np.array_equal(target.forward([Rows.draft(cache, [5])])[0].logits, before)


def test_groups_by_name() -> None:
    found = by_group(
        [
            ("layers.0.q", 1.0),
            ("layers.11.q", 2.0),
            ("head", 4.0),
            ("embedding", 8.0),
            ("x.y", 16.0),
        ]
    )
    assert found == dict.fromkeys(GROUPS, 0.0) | {
        "product qkv": 3.0,
        "product LM head": 4.0,
        "the rest": 24.0,
    }

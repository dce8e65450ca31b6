"""Blocks that steps and drafts may take: never fewer than they do take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import Target

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.engine.memory import (
    capacity,
    fits,
    fitted,
    memory_of,
    plain_step_fits,
    with_draft,
)
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.sampling.generation import Generation


def table(blocks: int) -> PagedTable:
    return PagedTable(lambda context: np.zeros(4, np.float32), 4, blocks)


def sequences(target: PagedTable, lengths: list[int]) -> list[Generation]:
    out = []
    for id, length in enumerate(lengths):
        sequence = Generation.start(id, [1] * (length + 1), SamplingParams())
        sequence.cache = target.open()
        target.prefill(sequence.cache, [1] * length)
        out.append(sequence)
    return out


@st.composite
def drafts(draw: st.DrawFn) -> TokenTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 9)))]
    return TokenTree(np.arange(len(parents)) % 4, np.array(parents, np.int64))


@given(st.integers(0, 100), drafts())
def test_no_draft_within_a_budget_takes_more_than_foreseen(length: int, draft: TokenTree) -> None:
    target = table(60)
    [sequence] = sequences(target, [length])
    depth = int(trees.depths(draft).max(initial=0))
    foreseen = with_draft(sequence.cache, Budget(len(draft), depth))
    before = target.memory.free
    target.forward([Rows.draft(sequence.cache, [1], draft)])
    assert before - target.memory.free <= foreseen


@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(1, 6),
)
def test_budgets_are_the_largest_that_fit(
    lengths: list[int], spare: int, nodes: int, depth: int
) -> None:
    target = table(12 + spare)
    running = sequences(target, lengths)
    if not plain_step_fits(target.memory, running):
        return
    asked = [Budget(nodes, min(nodes, depth))] * len(running)
    found = fitted(target.memory, running, asked)

    def taken(most: int) -> int:
        cut = Budget(most, min(most, asked[0].depth))
        return sum(with_draft(s.cache, cut) for s in running)

    most = max((m for m in range(1, nodes + 1) if taken(m) <= target.memory.free), default=0)
    assert found == [Budget(most, min(most, asked[0].depth))] * len(running)


@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 20),
    st.integers(0, 9),
    st.integers(0, 6),
)
def test_answers_in_a_hurry_are_those_of_a_close_look(
    lengths: list[int], forked: list[bool], spare: int, nodes: int, depth: int
) -> None:
    """Also where blocks are shared, and must be copied before they are written."""
    target = table(12 + spare)
    running = sequences(target, lengths)
    held = [target.fork(s.cache) for s, fork in zip(running, forked, strict=False) if fork]
    needed = sum(sequence.cache.needed(1) for sequence in running)
    assert plain_step_fits(target.memory, running) == (needed <= target.memory.free)
    asked = [Budget(nodes, depth)] * len(running)
    exact = sum(with_draft(s.cache, asked[0]) for s in running) <= target.memory.free
    assert (fitted(target.memory, running, asked) == asked) >= exact
    if nodes > 1 and depth > 0:  # else what is cut may look the same
        assert (fitted(target.memory, running, asked) == asked) == exact
    assert len(held) == sum(forked[: len(running)])


def test_targets_that_state_no_memory_are_left_alone() -> None:
    assert memory_of(Target()) is None
    assert memory_of(table(3)) is not None
    assert fitted(None, [], [Budget(9, 9)]) == [Budget(9, 9)]


@pytest.mark.parametrize(("running", "tokens", "fitting"), [(0, 95, True), (0, 96, False)])
def test_a_request_alone_may_fill_the_memory(running: int, tokens: int, fitting: bool) -> None:
    memory = BlockPool(1, 1, 1, 3)
    assert capacity(memory) == 96
    assert fits(memory, PagedCache(memory), tokens, running) is fitting


def test_beside_others_a_block_is_left_for_each() -> None:
    memory = BlockPool(1, 1, 1, 6)
    assert fits(memory, PagedCache(memory), 60, running=3)
    assert not fits(memory, PagedCache(memory), 60, running=4)

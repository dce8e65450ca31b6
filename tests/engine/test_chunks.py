"""How much of a prompt rides beside a step, and who reads first."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import SamplingParams
from paceline.engine.prefill import ALONE, BESIDE, LEAST, beside, shared_out
from paceline.policy.cost import CostModel
from paceline.runtimes.kv_cache import BLOCK, BlockPool, PagedCache
from paceline.sampling.generation import Generation

SIZES = (1, 2, 4, 8, 16, 32)
curves = st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6).map(
    lambda steps: CostModel(SIZES, np.cumsum(steps).tolist())
)


def reading(*prompts: list[int], cached: int = 0) -> list[Generation]:
    pool = BlockPool(1, 1, 1, 200)
    out = []
    for id, prompt in enumerate(prompts):
        sequence = Generation.start(id, prompt, SamplingParams())
        sequence.cache = PagedCache(pool, length=cached)
        out.append(sequence)
    return out


@given(st.integers(1, 40), curves)
def test_chunks_are_those_that_keep_a_step_within_three_plain_ones_but_not_tiny(
    rows: int, costs: CostModel
) -> None:
    chosen = beside(rows, costs)
    fit = [n for n in range(1, ALONE + 1) if costs.time(rows + n) <= 3 * costs.time(rows)]
    assert chosen == max(BESIDE, max(fit, default=0))


def test_a_limit_counts_all_rows_and_still_lets_prompts_go_on() -> None:
    assert beside(8, None, 40) == 32
    assert beside(8, None, 10) == LEAST
    assert beside(0, None, 100) == 100
    assert beside(0, None) == ALONE


def test_the_first_is_read_first() -> None:
    chunks = shared_out(reading([1] * 30, [2] * 50, [3] * 9), 40)
    assert [(c.sequence.id, c.tokens) for c in chunks] == [(0, 29), (1, 11)]


def test_what_another_is_reading_is_waited_for() -> None:
    head = list(range(3 * BLOCK))
    pairs = {
        "much in common": (reading([*head, 1, 2], [*head, 3, 4], [9] * 30), [0, 2]),
        "little in common": (reading([*head[:40], 1, 2], [*head[:40], 3, 4]), [0, 1]),
        "read already": (reading([*head, 1, 2], [*head, 3, 4], cached=2 * BLOCK), [0, 1]),
    }
    for name, (sequences, expected) in pairs.items():
        chunks = shared_out(sequences, 300, BLOCK)
        assert [c.sequence.id for c in chunks] == expected, name
        assert [c.sequence.id for c in shared_out(sequences, 300)] == [s.id for s in sequences]

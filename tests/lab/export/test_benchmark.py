"""The figures that `benchmarks/vllm_export.py` makes of two engines' counts."""

from __future__ import annotations

import pytest
from benchmarks.vllm_export import Answers, compare

OURS = Answers([[1, 2, 3], [4, 5, 6]], 10, [6, 3], [10, 8])
"""Two drafts were too near the end of a text for a second token."""


def test_acceptance_is_of_drafts_that_reach_a_depth() -> None:
    assert OURS.by_depth == pytest.approx([0.6, 0.375])
    assert OURS.per_draft == pytest.approx(0.975)
    assert Answers([], 0, [0], [0]).by_depth == [0.0]


def test_engines_side_by_side() -> None:
    without = [[1, 2, 3], [4, 5, 6]]
    vllm = Answers([[1, 2, 3], [4, 5, 7]], 10, [5, 2], [10, 10])
    figures, text = compare(without, vllm, OURS)
    assert figures["same_with_and_without"] == figures["same_as_paceline"] == 1
    assert figures["vllm_of_paceline"] == pytest.approx(0.7 / 0.975)
    assert figures["vllm"]["acceptance_by_depth"] == [0.5, 0.2]
    assert "1 of 2 prompts" in text
    assert "72% of what paceline does" in text


def test_a_drafter_of_which_nothing_is_accepted_has_no_ratio() -> None:
    never = Answers([[1]], 3, [0, 0], [3, 3])
    figures, text = compare([[1]], never, never)
    assert figures["vllm_of_paceline"] is None
    assert "%" not in text

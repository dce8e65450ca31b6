"""Rank counts: what is counted, and which files are taken for counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.core.tree import EMPTY
from paceline.core.types import TokenTree
from paceline.errors import InvalidOption
from paceline.trees.shapes import RankCounts, from_rank_accuracies

#     root: 5, 6, 7    5: 8, 9    6: 8
DRAFT = TokenTree(np.array([5, 6, 7, 8, 9, 8]), np.array([-1, -1, -1, 0, 0, 1]))


def counted(*steps: list[int]) -> RankCounts:
    counts = RankCounts("mine", 2, 3)
    for committed in steps:
        counts.observe(DRAFT, committed)
    return counts


def test_ranks_are_counted_where_decoding_came_by() -> None:
    counts = counted([5, 9, 1], [6, 3], [4], [5, 8, 8])
    assert counts.trials.tolist() == [[4, 4, 4], [3, 2, 0]]
    assert counts.hits.tolist() == [[2, 1, 0], [1, 1, 0]]
    np.testing.assert_allclose(counts.accuracies, [[2 / 6, 1 / 6, 0], [1 / 5, 1 / 4, 0]])


def test_leaves_and_empty_drafts_are_no_trials() -> None:
    counts = counted([7, 1, 2])
    assert counts.trials.tolist() == [[1, 1, 1], [0, 0, 0]]
    counts.observe(EMPTY, [7])
    assert counts.trials.sum() == 3


def test_what_lies_beyond_the_table_is_not_counted() -> None:
    counts = RankCounts("mine", 1, 2)
    counts.observe(DRAFT, [7, 1])
    counts.observe(DRAFT, [5, 8])
    assert (counts.trials.tolist(), counts.hits.tolist()) == ([[2, 2]], [[1, 0]])


def test_counts_recover_the_accuracies_that_made_them() -> None:
    """Drafts of a fixed shape under targets drawn with known chances."""
    truth = np.array([[0.5, 0.3, 0.1], [0.6, 0.1, 0.0]])
    generator = np.random.default_rng(0)
    tokens, parents = [0, 1, 2], [-1, -1, -1]
    for parent in range(3):
        tokens += [0, 1, 2]
        parents += [parent] * 3
    draft = TokenTree(np.array(tokens), np.array(parents))
    counts = RankCounts("mine", 2, 3)
    for uniform in generator.random((3000, 2)):
        counts.observe(draft, (uniform[:, None] > truth.cumsum(axis=1)).sum(axis=1).tolist())
    np.testing.assert_allclose(counts.accuracies, truth, atol=0.04)
    assert from_rank_accuracies(counts.accuracies, 3, 2) == ((0,), (0, 0), (1,))


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    counts = counted([5, 9], [6, 3])
    counts.save(tmp_path / "new" / "counts.json")
    again = RankCounts.load(tmp_path / "new" / "counts.json")
    assert again.drafter == "mine"
    assert again.trials.tolist() == counts.trials.tolist()
    assert again.hits.tolist() == counts.hits.tolist()
    again.observe(DRAFT, [5, 9])
    assert again.hits.sum() == counts.hits.sum() + 2


GOOD = {
    "format": "paceline-rank-counts-1",
    "drafter": "mine",
    "trials": [[4, 3], [2, 2]],
    "hits": [[2, 1], [0, 2]],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "paceline-rank-counts-0"}, "its format is not"),
        ({"drafter": 3}, "lacks a drafter's name"),
        ({"trials": None}, "lacks a .* table"),
        ({"hits": [[2, 1], [0]]}, "lacks a .* table"),
        ({"hits": [[2, 1], [0, 0.5]]}, "lacks a .* table"),
        ({"hits": [[2, True], [0, True]]}, None),
        ({"hits": [[True, True], [True, True]]}, "lacks a .* table"),
        ({"hits": [[2, -1], [0, 2]]}, "lacks a .* table"),
        ({"hits": [[2, 2**70], [0, 2]]}, "lacks a .* table"),
        ({"hits": [2, 1]}, "lacks a .* table"),
        ({"hits": [], "trials": []}, "lacks a .* table"),
        ({"hits": [[2], [0]]}, r"trials are \(2, 2\) and hits \(2, 1\)"),
        ({"trials": [[3, 4], [2, 2]]}, "higher ranks"),
        ({"hits": [[3, 2], [0, 2]]}, "more hits"),
        ({"trials": [[4, 0], [2, 2]]}, "more hits than trials"),
    ],
)
def test_a_file_of_something_else_is_refused(
    change: dict[str, object], says: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(GOOD | change))
    if says is None:  # JSON's true is a count of one to the reader of tables, and harmless
        assert RankCounts.load(path).hits[0, 1] == 1
        return
    with pytest.raises(InvalidOption, match=f"{path.name} holds no rank counts, as .*{says}"):
        RankCounts.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"{", b"[]", b"[" * 100_000, b"GGUF\x03\x00"], ids=repr
)
def test_corrupt_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_bytes(content)
    says = "not UTF-8 text.*of rank counts" if content == b"\xff\xfe" else "holds no rank counts"
    with pytest.raises(InvalidOption, match=says) as caught:
        RankCounts.load(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"cannot read .*absent\.json"):
        RankCounts.load(tmp_path / "absent.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match=r"cannot write .*counts\.json"):
        counted().save(tmp_path / "file" / "counts.json")

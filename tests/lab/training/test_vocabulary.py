"""The most frequent tokens are kept, their labels go there and back, coverage is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.lab.training.vocabulary import count_tokens, keep_frequent

SIZE = 12


@given(
    texts=st.lists(st.lists(st.integers(0, SIZE - 1), max_size=20), max_size=4),
    k=st.integers(1, SIZE),
)
def test_counts_ids_and_coverage_are_those_of_a_plain_count(texts: list[list[int]], k: int) -> None:
    counts = count_tokens((np.array(text, dtype=np.int64) for text in texts), SIZE)
    plain = Counter(token for text in texts for token in text)
    assert counts.tolist() == [plain[token] for token in range(SIZE)]
    kept = keep_frequent(counts, k)
    assert kept.ids.tolist() == sorted(sorted(range(SIZE), key=lambda t: (-plain[t], t))[:k])
    assert kept.ids.dtype == np.int64
    total = sum(plain.values())
    covered = sum(plain[token] for token in kept.ids.tolist())
    assert kept.coverage == pytest.approx(covered / total if total else 0)


@given(st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_labels_are_indices_of_kept_tokens(ids: set[int]) -> None:
    counts = np.isin(np.arange(SIZE), list(ids)).astype(np.int64)
    kept = keep_frequent(counts, len(ids))
    tokens = np.arange(SIZE)
    labels = kept.labels(tokens)
    assert set(tokens[labels >= 0].tolist()) == ids
    assert (kept.ids[labels[labels >= 0]] == tokens[labels >= 0]).all()
    assert labels[labels < 0].tolist() == [-1] * (SIZE - len(ids))


def test_tokens_that_end_a_text_are_kept_however_rare() -> None:
    counts = np.array([9, 8, 7, 0, 5])
    assert keep_frequent(counts, 3).ids.tolist() == [0, 1, 2]
    kept = keep_frequent(counts, 3, always=(3,))
    assert kept.ids.tolist() == [0, 1, 3]
    assert kept.coverage == pytest.approx(17 / 29)


def test_bad_sizes_are_named() -> None:
    counts = np.ones(5, dtype=np.int64)
    with pytest.raises(InvalidOption, match="must have 1 to 5 tokens, not 6"):
        keep_frequent(counts, 6)
    with pytest.raises(InvalidOption, match="must have 2 to 5 tokens, not 1"):
        keep_frequent(counts, 1, always=(0, 1, 1))

"""Which tokens a drafter may draft: those that the target writes most often (arXiv:2506.22694).

A drafter's LM head needs rows for these alone. Its law is zero elsewhere, which every lossless
rule allows: tokens that are left out come from corrections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidOption
from paceline.types import IntArray, ProbArray


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens that are kept.

    Attributes:
        ids: int64 `[k]`, ascending: a drafter's index `i` means the target's token `ids[i]`.
        size: width of the target's vocabulary.
        coverage: share of the counted tokens that are kept.
    """

    ids: IntArray
    size: int
    coverage: float

    def labels(self, tokens: IntArray) -> IntArray:
        """int64, the index of each of the target's `tokens` among the kept; -1 for the others."""
        places = np.full(self.size, -1, dtype=np.int64)
        places[self.ids] = np.arange(len(self.ids))
        found: IntArray = places[tokens]
        return found


def count_tokens(texts: Iterable[IntArray], size: int) -> IntArray:
    """How often each token of a vocabulary occurs.

    Args:
        texts: int64 token ids that the target wrote; prompts do not belong here.
        size: of the vocabulary.

    Returns:
        int64 `[size]`.
    """
    counts = np.zeros(size, dtype=np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=size)
    return counts


def keep_frequent(counts: IntArray, k: int, always: Collection[int] = ()) -> DraftVocabulary:
    """The `k` most frequent tokens, of equally frequent ones those with the lowest ids.

    Args:
        counts: int64 `[size]`.
        k: how many to keep.
        always: ids that are kept however rare, and count among the `k`: those that end a text.

    Raises:
        InvalidOption: `k` is less than one, than `always` needs, or more than there are.
    """
    if not max(1, len(set(always))) <= k <= len(counts):
        raise InvalidOption(
            f"the draft vocabulary must have {max(1, len(set(always)))} to {len(counts)} tokens, "
            f"not {k}"
        )
    rank = counts.copy()
    rank[list(always)] = counts.max(initial=0) + 1
    ids = np.sort(np.argsort(-rank, kind="stable")[:k])
    total = counts.sum()
    return DraftVocabulary(ids, len(counts), float(counts[ids].sum() / total) if total else 0.0)


def coverage_curve(counts: IntArray) -> ProbArray:
    """float64 `[size]`: at `k - 1`, the share of tokens that the `k` most frequent cover.

    Raises:
        InvalidOption: nothing was counted.
    """
    if not counts.any():
        raise InvalidOption("no tokens were counted: give text that the target wrote")
    curve: ProbArray = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    return curve

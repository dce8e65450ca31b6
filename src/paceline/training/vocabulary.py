"""Draft vocabulary: the target's most frequent tokens (VocabTrim, arXiv:2506.22694).

The drafter's LM head has rows for these alone, and its distribution is 0 elsewhere. That stays
lossless: other tokens come from the residual distribution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from paceline.core.types import IntArray
from paceline.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Tokens of the draft vocabulary.

    Attributes:
        ids: int64 `[k]`, ascending: draft index `i` is the target's token `ids[i]`.
        size: of the target's vocabulary.
        coverage: share of the counted tokens.
    """

    ids: IntArray
    size: int
    coverage: float

    def labels(self, tokens: IntArray) -> IntArray:
        """Return int64 draft indices of the target's `tokens`; -1 for others."""
        places = np.full(self.size, -1, dtype=np.int64)
        places[self.ids] = np.arange(len(self.ids))
        found: IntArray = places[tokens]
        return found


def count_tokens(texts: Iterable[IntArray], size: int) -> IntArray:
    """Count each token in int64 texts that the target wrote (without prompts); int64 `[size]`."""
    counts = np.zeros(size, dtype=np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=size)
    return counts


def keep_frequent(counts: IntArray, k: int, always: Collection[int] = ()) -> DraftVocabulary:
    """Return the `k` most frequent tokens, ties by lowest id; `always` (end tokens) are among them.

    Raises:
        InvalidOption: `k` is below one or `len(always)`, or above the vocabulary size.
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

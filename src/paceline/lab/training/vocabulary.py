"""Draft vocabulary: the target's most frequent tokens, its size, and trimming of trained weights.

A drafter's LM head has rows for these alone (VocabTrim, Goel et al. 2025, arXiv:2506.22694). That
stays lossless: other tokens come from the residual. Rows are the target's own, so a head is cut
without training, by its ids alone.

Coverage against latency after "Balancing Coverage and Draft Latency" (TPE trimming): of all sizes
the one with the greatest utility is found by looking at all of them, which a sum makes cheap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from paceline.core.options import require
from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.networks.head_preview import HeadPreview
from paceline.networks.weights import Trained


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


class Size(NamedTuple):
    """A vocabulary's size, the share of counted tokens in it, and the share of time that it saves
    of a draft with all tokens."""

    tokens: int
    coverage: float
    saved: float
    utility: float


def sizes(counts: IntArray, body: int, width: int, weight: float) -> list[Size]:
    """Return every size from 1 on, most frequent tokens first.

    Args:
        counts: int64 `[vocabulary]`.
        body: multiplications of a drafted token without its head; the head has `width` per token.
        weight: of the coverage, in [0, 1]; the rest is that of the time saved.
    """
    require(0 <= weight <= 1, "weight", weight, "in [0, 1]")
    total = int(counts.sum())
    if not total:
        raise InvalidOption("no tokens are counted: give text that the target wrote")
    coverage = np.cumsum(np.sort(counts)[::-1]) / total
    tokens = np.arange(1, len(counts) + 1)
    saved = 1 - (body + width * tokens) / (body + width * len(counts))
    utility = weight * coverage + (1 - weight) * saved
    columns = (tokens, coverage, saved, utility)
    return [Size(*row) for row in zip(*(each.tolist() for each in columns), strict=True)]


def best_size(found: list[Size], least: float) -> Size:
    """Return the size of greatest utility with a coverage of at least `least`, the smallest of
    equals; InvalidOption if `least` is out of range."""
    require(0 <= least <= 1, "least", least, "in [0, 1]")
    return max((each for each in found if each.coverage >= least), key=lambda each: each.utility)


def trimmed(trained: Trained, ids: IntArray) -> Trained:
    """Return the network with the draft ids that are among `ids`, ascending.

    Raises InvalidOption if none are.
    """
    kept = np.flatnonzero(np.isin(trained.draft_ids, ids))
    if not len(kept):
        raise InvalidOption("none of these tokens are in the weights' vocabulary: take others")
    preview = trained.head_preview
    if preview is not None:
        preview = HeadPreview(preview.down, preview.up[kept])
    return replace(trained, draft_ids=trained.draft_ids[kept], head_preview=preview)

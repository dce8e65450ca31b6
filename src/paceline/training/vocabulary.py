"""Size of a draft vocabulary, and trimming of weights that are trained already.

Coverage against latency after "Balancing Coverage and Draft Latency" (TPE trimming): of all sizes
the one with the greatest utility is found by looking at all of them, which a sum makes cheap.
VocabTrim (Goel et al. 2025, arXiv:2506.22694) cuts the LM head without training: the head's rows
here are the target's, so the ids alone change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from paceline.core.options import require
from paceline.core.types import IntArray
from paceline.errors import InvalidOption
from paceline.networks.head_preview import HeadPreview
from paceline.networks.weights import Trained


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

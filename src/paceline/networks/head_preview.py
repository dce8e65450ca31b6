"""What spares reading the whole LM head in drafted chains.

Head preview: a low-rank preview of its logits (SVD-softmax, Shim et al. 2017). A matmul with two
thin matrices previews all of them; the best few are rescored exactly, from their rows alone.

Clusters: of tokens, each with a centroid, which a published drafter brings. Those of the best
centroids are drafted, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray

# Logits of a row that are rescored exactly.
REFINED = 32

# Tensor names of both matrices in files.
SCREEN = ("screen.down", "screen.up")

# Parameter of a network that has clusters.
CENTROIDS = "centroids"


@dataclass(frozen=True, slots=True)
class HeadPreview:
    """Low-rank factors `up` `[draft vocabulary, rank]` and `down` `[rank, width]`, float32.

    `up (down h)` previews the logits of a hidden state h, the LM head's input.
    """

    down: LogitArray
    up: LogitArray

    def tensors(self) -> dict[str, LogitArray]:
        return dict(zip(SCREEN, (self.down, self.up), strict=True))


@dataclass(frozen=True, slots=True)
class Clusters:
    """Tokens `[clusters, size]`, int64, each once, and how many clusters are read.

    Scores of the clusters are the products of a hidden state by the matrix `CENTROIDS`.
    """

    tokens: IntArray
    best: int


def read_head_preview(
    tensors: Mapping[str, npt.NDArray[Any]], width: int, vocabulary: int
) -> HeadPreview | None:
    """Read a head preview from a file's tensors; None if shapes or values do not fit."""
    if tensors.keys() != set(SCREEN):
        return None
    down, up = (tensors[name].astype(np.float32) for name in SCREEN)
    rank = len(down) if down.ndim else 0
    if not rank or down.shape != (rank, width) or up.shape != (vocabulary, rank):
        return None
    finite = np.isfinite(down).all() and np.isfinite(up).all()
    return HeadPreview(down, up) if finite else None

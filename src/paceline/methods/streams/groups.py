"""Group positions (Tong et al. 2025, arXiv:2505.16983): two streams in one cache, none read twice.

Source and target are written as they come. Each has positions from its own first row on, and no row
of the source sees the target: so no row has to be computed again when more of the other comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.core.options import require
from paceline.core.target import NO_LOGITS, Rows, Target, stored
from paceline.core.types import BoolArray, IntArray, LogitArray, described
from paceline.errors import InvalidOption


class TwoStreams:
    """Rows of a source and of a target, in one cache of a model, in any order of arrival.

    A source row sees the source. A target row sees the target, and the source that is named with
    it. Keys are summed source first: numbers do not depend on which row came when.
    """

    def __init__(self, target: Target, offset: int = 0) -> None:
        """Open a cache; `offset` is the position of the first target row.

        InvalidOption: the model runs no rows but drafts.
        """
        if not target.capabilities.blocks:
            raise InvalidOption(
                "two streams need rows with holes, which this model on this runtime does not run: "
                "take one without recurrent layers, on cpu, torch or reference"
            )
        self._target, self._offset = target, offset
        self.cache = target.open()
        self.source: list[int] = []  # places in the cache
        self.written: list[int] = []  # of target rows
        self._run = 0, 0  # rows of the last forward

    def forward(
        self, source: Sequence[int], target: Sequence[int], seen: Sequence[int] | None = None
    ) -> LogitArray:
        """Run rows of both in one pass; return float32 `[target, vocabulary]`, a view.

        Target row i sees the first `seen[i]` of the source rows that were kept before; None for
        all.
        """
        past, length = len(self.source), len(self.written)
        seen = [past] * len(target) if seen is None else seen
        paths = [self.source] * len(source)
        paths += [self.source[:count] + self.written for count in seen]
        places = np.array([*range(past, past + len(source)), *range(length, length + len(target))])
        places[len(source) :] += self._offset
        sees = np.zeros((len(places),) * 2, dtype=np.bool_)
        sees[: len(source), : len(source)] = np.tri(len(source), dtype=np.bool_)
        sees[len(source) :, len(source) :] = np.tri(len(target), dtype=np.bool_)
        wanted = np.arange(len(source), len(places)) if target else NO_LOGITS
        rows = Rows.block(
            self.cache, [*source, *target], places, sees, cached=_padded(paths), wanted=wanted
        )
        [out] = self._target.forward([rows])
        self._run = len(source), len(target)
        return out.logits

    def keep(self, target: int | None = None) -> None:
        """Keep the source rows of the last forward, and its first so many target rows."""
        source, most = self._run
        count = source + (most if target is None else target)
        begin = stored(self.cache)
        self._target.keep(self.cache, 0, range(count))
        self.source += range(begin, begin + source)
        self.written += range(begin + source, begin + count)

    def back(self, length: int) -> None:
        """Drop all rows but those that came first; positions go on behind those."""
        self._target.truncate(self.cache, length)
        self.source = [place for place in self.source if place < length]
        self.written = [place for place in self.written if place < length]

    def close(self) -> None:
        self._target.release(self.cache)


def _padded(paths: Sequence[Sequence[int]]) -> IntArray:
    padded = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
    for row, path in zip(padded, paths, strict=True):
        row[: len(path)] = path
    return padded


def streaming_mask(source: int, seen: Sequence[int]) -> BoolArray:
    """Return what rows see, source rows first; target row i sees the first `seen[i]` of these."""
    count = source + len(seen)
    mask: BoolArray = np.tri(count, dtype=np.bool_)
    mask[source:, :source] = np.arange(source) < np.array(seen, dtype=np.int64)[:, None]
    return mask


def masked_rows(
    cache: Any, source: Sequence[int], target: Sequence[int], seen: Sequence[int], offset: int = 0
) -> Rows:
    """Return the rows of both streams for one forward, as a model is trained on them."""
    places = np.array([*range(len(source)), *range(offset, offset + len(target))])
    wanted = np.arange(len(source), len(places))
    sees = streaming_mask(len(source), seen)
    return Rows.block(cache, [*source, *target], places, sees, wanted=wanted)


@described(
    "lossy: a model of another kind, which must be trained so; equal to its masked forward",
    requires="a model trained with group positions; none ships",
    paper="after Group Position Encoding, Tong et al. 2025, arXiv:2505.16983",
)
def wait_k(
    target: Target,
    words: Sequence[Sequence[int]],
    k: int,
    start: Sequence[int],
    most: int,
    *,
    end: Sequence[int] = (),
    offset: int = 0,
) -> list[int]:
    """Return the greedy text of a source that is read while the text is written.

    Token i (from 0) is chosen once the first k + i words are read, or all. `start` are the first
    rows of the target, at least one, which are given. The words of the next token are read in the
    pass of this one.

    Raises:
        InvalidOption: `k` or `most` is below 1, `start` is empty, or as for `TwoStreams`.
        OutOfMemory: the cache has no room.
    """
    for name, count in (("k", k), ("most", most), ("len(start)", len(start))):
        require(count >= 1, name, count, "1 or more")
    groups = TwoStreams(target, offset)
    out: list[int] = []
    try:
        if first := _tokens(words[:k]):
            groups.forward(first, [])
            groups.keep()
        rows = list(start)
        while len(out) < most:
            at = k + len(out)
            logits = groups.forward(_tokens(words[at : at + 1]), rows)
            groups.keep()
            token = int(logits[-1].argmax())
            if token in end:
                break
            out.append(token)
            rows = [token]
    finally:
        groups.close()
    return out


def _tokens(words: Sequence[Sequence[int]]) -> list[int]:
    return [token for word in words for token in word]

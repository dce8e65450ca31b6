"""Memories of constant size over an endless stream of feature rows.

Flash-VStream's (Zhang et al. 2024, arXiv:2406.08085) holds frames, clusters and a running mixture.
VideoStreaming's (Qian et al. 2024, arXiv:2405.16009) is what a model makes of a clip and of its
last summary.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.options import require
from paceline.core.target import NO_LOGITS, Rows, Target
from paceline.core.types import Described, IntArray, LogitArray
from paceline.errors import InvalidOption

Floats = npt.NDArray[np.float64]

ITERATIONS, TOLERANCE = 10, 1e-4
"""Of k-means: at most so many rounds, and none behind one in which centroids move by less."""


class WeightedClusters(NamedTuple):
    """Result of k-means.

    Attributes:
        centroids: `[clusters, width]`, means of their points by weight; no cluster is empty.
        weights: `[clusters]`, sums of those of their points.
        labels: int64 `[points]`.
        losses: by round, the sum of weighted squared distances behind it.
    """

    centroids: Floats
    weights: Floats
    labels: IntArray
    losses: tuple[float, ...]


def weighted_kmeans(
    points: Floats, weights: Floats, count: int, draws: np.random.Generator
) -> WeightedClusters:
    """Cluster points `[n, width]` of weights `[n]`, by Lloyd's rounds from drawn points.

    An empty cluster goes on from a point that is drawn.
    """
    centroids = points[draws.permutation(len(points))[:count]]
    losses: list[float] = []
    for _ in range(ITERATIONS):
        labels = _nearest(points, centroids)
        sums, totals = _means(points, weights, labels, count)
        moved = np.where(totals[:, None] > 0, sums, points[draws.integers(len(points), size=count)])
        step = float(np.linalg.norm(moved - centroids, axis=1).sum())
        centroids = moved
        losses.append(float((weights * ((points - centroids[labels]) ** 2).sum(axis=1)).sum()))
        if step < TOLERANCE:
            break
    used = np.flatnonzero(totals)
    return WeightedClusters(
        centroids[used], totals[used], np.searchsorted(used, labels), tuple(losses)
    )


def _nearest(points: Floats, centroids: Floats) -> IntArray:
    found: IntArray = ((points[:, None] - centroids[None]) ** 2).sum(axis=2).argmin(axis=1)
    return found


def _means(points: Floats, weights: Floats, labels: IntArray, count: int) -> tuple[Floats, Floats]:
    sums, totals = np.zeros((count, points.shape[1])), np.zeros(count)
    np.add.at(sums, labels, weights[:, None] * points)
    np.add.at(totals, labels, weights)
    return sums / np.where(totals > 0, totals, 1)[:, None], totals


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a `StarMemory`, in frames; the paper's are the defaults.

    Attributes:
        spatial: newest frames, whole.
        retrieved: key frames of the largest clusters, whole.
        temporal: clusters.
        abstract: rows of the mixture.
        coarse: rows of a frame in a cluster, means of neighbours.
    """

    spatial: int = 1
    retrieved: int = 3
    temporal: int = 25
    abstract: int = 25
    coarse: int = 16

    def __post_init__(self) -> None:
        for name in self.__slots__:
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")

    def rows(self, patches: int) -> int:
        """Return the rows of a full memory of frames of so many."""
        whole = (self.spatial + self.retrieved) * patches
        return whole + self.temporal * self.coarse + self.abstract


class StarMemory(Described):
    """Spatial, temporal, abstract and retrieved memory of a stream of frames `[patches, width]`.

    A frame changes it once, whatever comes with it: frames one by one and together, and a replay
    with the same seed, give the same numbers.

    Attributes:
        seen: frames so far.
        weights: `[clusters]`, frames of each cluster.
        centroids: `[clusters, coarse * width]`.
    """

    name: ClassVar[str] = "flash-vstream"
    guarantee: ClassVar[str] = "lossy: constant size; what it forgets, it forgets"
    requires: ClassVar[str] = "rows of features; no video encoder ships"
    paper: ClassVar[str] = "after Flash-VStream, Zhang et al. 2024, arXiv:2406.08085"

    def __init__(self, sizes: Sizes | None = None, *, ratio: float = 0.2, seed: int = 0) -> None:
        """Begin; a frame mixes into the abstract rows by `ratio`. InvalidOption: out of (0, 1]."""
        require(0 < ratio <= 1, "ratio", ratio, "above 0, at most 1")
        self._sizes, self._ratio, self._seed = sizes or Sizes(), ratio, seed
        self.seen = 0
        self._newest: deque[LogitArray] = deque(maxlen=self._sizes.spatial)
        self._keys: list[LogitArray] = []  # of each cluster the nearest frame that is known
        self.weights: Floats = np.zeros(0)
        self.centroids: Floats = np.zeros((0, 0))
        self._abstract: Floats = np.zeros((0, 0))

    def add(self, frames: LogitArray) -> None:
        """See frames, float32 `[n, patches, width]`.

        InvalidOption: not of the shape of those before, or `Sizes.coarse` does not divide patches.
        """
        for frame in frames:
            if frame.ndim != 2 or any(each.shape != frame.shape for each in self._newest):
                raise InvalidOption("frames are [patches, width], all alike: give [n, 4, 8], say")
            if len(frame) % self._sizes.coarse:
                raise InvalidOption(
                    f"{len(frame)} patches are not {self._sizes.coarse} coarse ones: take sizes "
                    "that divide them"
                )
            self._see(frame)

    def _see(self, frame: LogitArray) -> None:
        self._newest.append(frame)
        point = self._coarse(frame)[None]
        mean = frame.astype(np.float64).mean(axis=0)[None]
        if not self.seen:
            self.centroids, self._abstract = np.zeros((0, point.shape[1])), mean[:0]
        self._cluster(frame, point)
        if len(self._abstract) < self._sizes.abstract:
            self._abstract = np.concatenate([self._abstract, mean])
        else:
            new = point.reshape(self._sizes.coarse, -1)
            scores = self._abstract @ new.T / np.sqrt(new.shape[1])
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed = shares @ new / shares.sum(axis=1, keepdims=True)
            self._abstract = (1 - self._ratio) * self._abstract + self._ratio * mixed
        self.seen += 1

    def _cluster(self, frame: LogitArray, point: Floats) -> None:
        points = np.concatenate([self.centroids, point])
        weights, keys = np.append(self.weights, 1.0), [*self._keys, frame]
        if len(points) > self._sizes.temporal:
            draws = np.random.Generator(np.random.SFC64([self._seed, self.seen]))
            found = weighted_kmeans(points, weights, self._sizes.temporal, draws)
            near = np.array([self._coarse(key) for key in keys]) - found.centroids[found.labels]
            order = np.argsort((near**2).sum(axis=1), kind="stable")
            best = {int(found.labels[at]): keys[at] for at in order[::-1]}
            points, weights = found.centroids, found.weights
            keys = [best[each] for each in range(len(points))]
        self.centroids, self.weights, self._keys = points, weights, keys

    def _coarse(self, frame: LogitArray) -> Floats:
        parts = frame.reshape(self._sizes.coarse, -1, frame.shape[1])
        means: Floats = parts.mean(axis=1, dtype=np.float64).ravel()
        return means

    @property
    def newest(self) -> list[LogitArray]:
        """Frames of the spatial memory, the oldest first."""
        return list(self._newest)

    def retrieved(self) -> list[LogitArray]:
        """Return key frames of the largest clusters; of equal ones the first come first."""
        order = np.argsort(-self.weights, kind="stable")[: self._sizes.retrieved]
        return [self._keys[at] for at in order]

    def rows(self) -> LogitArray:
        """Return all rows, float32 `[rows, width]`: abstract, temporal, retrieved, spatial."""
        if not self.seen:
            raise InvalidOption("nothing was seen: add a frame first")
        width = self._newest[0].shape[1]
        parts: list[npt.NDArray[Any]] = [self._abstract, self.centroids.reshape(-1, width)]
        parts += [*self.retrieved(), *self._newest]
        return np.concatenate([each.astype(np.float32) for each in parts])


class ClipMemory(Described):
    """Summaries of clips: what a model makes of the last one, a clip, and summary rows behind it.

    Attributes:
        summaries: float32 `[summary rows, hidden_size]` by clip, the newest last.
    """

    name: ClassVar[str] = "videostreaming"
    guarantee: ClassVar[str] = "lossy: a clip is what its summary says; constant work a clip"
    requires: ClassVar[str] = "a model trained to summarise; none ships"
    paper: ClassVar[str] = "after VideoStreaming, Qian et al. 2024, arXiv:2405.16009"

    def __init__(self, target: Target, layers: int, rows: LogitArray, *, most: int = 64) -> None:
        """Bind a model of so many layers, and the inputs of summary rows, `[n, hidden_size]`.

        The `most` newest summaries stay. InvalidOption: the model runs no blocks, no or odd rows.
        """
        require(most >= 1, "most", most, "1 or more")
        if not target.capabilities.blocks:
            raise InvalidOption(
                "summaries need rows with inputs, which this model on this runtime does not run: "
                "take one without recurrent layers, on cpu, torch or reference"
            )
        _check_width(rows, target)
        self._target, self._layers, self._rows = target, range(layers), rows
        self.summaries: deque[LogitArray] = deque(maxlen=most)

    def add(self, clip: LogitArray) -> LogitArray:
        """Read a clip, float32 `[n, hidden_size]`, and return its summary.

        InvalidOption: no rows, or of another width. OutOfMemory: the cache has no room.
        """
        target, rows = self._target, self._rows
        _check_width(clip, target)
        last = [self.summaries[-1]] if self.summaries else []
        inputs = np.concatenate([*last, clip, rows]).astype(np.float32)
        count = len(inputs)
        cache = target.open()
        try:
            asked = Rows.block(
                cache,
                np.zeros(count, np.int64),
                np.arange(count, dtype=np.int64),
                np.tri(count, dtype=np.bool_),
                inputs=inputs,
                wanted=NO_LOGITS,
            )
            [out] = target.forward([asked], self._layers)
            self.summaries.append(out.state[-len(rows) :].copy())
        finally:
            target.release(cache)
        return self.summaries[-1]

    def select(self, question: LogitArray, count: int) -> list[int]:
        """Return which summaries are nearest to a question `[hidden_size]`, in order of time.

        By the cosine of their means; of equal ones the older.
        """
        means = np.array([each.mean(axis=0) for each in self.summaries], dtype=np.float64)
        lengths = np.linalg.norm(means, axis=-1) * np.linalg.norm(question)
        scores = means @ question / np.maximum(lengths, 1e-12)
        return sorted(np.argsort(-scores, kind="stable")[:count].tolist())


def _check_width(rows: LogitArray, target: Target) -> None:
    width = target.capabilities.hidden_size
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != width:
        raise InvalidOption(f"rows are [n, {width}] for this model, n at least 1: got {rows.shape}")

"""Search of the sub-layers to skip: random, and by a Gaussian process every so many trials.

As in SWIFT (Xia et al. 2024, arXiv:2410.06916): Bayesian trials maximise mean + kappa * deviation
(upper confidence bound). The paper's library searches a cube and rounds; here the candidates are
random masks of the right size, and the best one with two places swapped.
"""

from __future__ import annotations

import numpy as np

from paceline.core.types import BoolArray, IntArray, ProbArray

_KAPPA, _NOISE = 2.5, 1e-2
_CANDIDATES = 256
_MEMORY = 128  # trials that the process is fitted to, the newest


class MaskSearch:
    """Find the mask of `size` places, `count` of them set, with the best score in [0, 1]."""

    def __init__(
        self,
        first: BoolArray,
        *,
        seed: int = 0,
        every: int = 25,
        enough: float = 0.95,
        patience: int = 300,
        limit: int = 1000,
    ) -> None:
        """Start from a mask.

        Args:
            first: bool `[size]`.
            seed: of all choices.
            every: each trial of this number is the Gaussian process's.
            enough: score that ends the search.
            patience: trials without a better score that end it.
            limit: trials that end it.
        """
        self.best: BoolArray = first
        self.score = -1.0
        self._count = int(first.sum())
        self._random = np.random.default_rng(seed)
        self._every, self._enough, self._patience, self._limit = every, enough, patience, limit
        self._masks: list[BoolArray] = []
        self._scores: list[float] = []
        self.trials = self._idle = 0

    @property
    def done(self) -> bool:
        ended = self.score >= self._enough or self._idle >= self._patience
        return ended or self.trials >= self._limit or self._count == 0

    def propose(self) -> BoolArray:
        """Return the next mask to try; first the one it was started with."""
        if not self.trials:
            return self.best
        if (self.trials + 1) % self._every:
            return self._mask()
        return self._by_process()

    def observe(self, mask: BoolArray, score: float) -> bool:
        """Take a trial's score; return whether it is the best."""
        self.trials += 1
        self._masks.append(mask)
        self._scores.append(score)
        del self._masks[:-_MEMORY], self._scores[:-_MEMORY]
        better = score > self.score
        self._idle = 0 if better else self._idle + 1
        if better:
            self.best, self.score = mask, score
        return better

    def _mask(self) -> BoolArray:
        out: BoolArray = np.zeros(len(self.best), dtype=np.bool_)
        out[self._random.choice(len(out), self._count, replace=False)] = True
        return out

    def _by_process(self) -> BoolArray:
        near = [self._swapped() for _ in range(_CANDIDATES // 2)]
        candidates = np.array([*near, *(self._mask() for _ in range(_CANDIDATES // 2))])
        mean, deviation = posterior(
            np.array(self._masks, np.float64), np.array(self._scores), candidates.astype(np.float64)
        )
        best: BoolArray = candidates[int((mean + _KAPPA * deviation).argmax())]
        return best

    def _swapped(self) -> BoolArray:
        out: BoolArray = self.best.copy()
        on: IntArray = np.flatnonzero(out)
        off: IntArray = np.flatnonzero(~out)
        if len(on) and len(off):
            out[self._random.choice(on)], out[self._random.choice(off)] = False, True
        return out


def posterior(known: ProbArray, scores: ProbArray, at: ProbArray) -> tuple[ProbArray, ProbArray]:
    """Return mean and standard deviation, float64 `[m]`, of a Gaussian process.

    Kernel exp(-d² / 2s²), with s² half the mean squared distance of the known points; noise 0.01.

    Args:
        known: float64 `[n, size]`.
        scores: float64 `[n]`.
        at: float64 `[m, size]`.
    """
    scale = max(1.0, float(_distances(known, known).mean()) / 2)

    def kernel(a: ProbArray, b: ProbArray) -> ProbArray:
        out: ProbArray = np.exp(-_distances(a, b) / (2 * scale))
        return out

    spread = max(float(scores.std()), 1e-3)
    gram = kernel(known, known) + _NOISE * np.eye(len(known))
    across = kernel(at, known)
    weights = np.linalg.solve(gram, across.T)
    mean = scores.mean() + weights.T @ (scores - scores.mean())
    variance = 1 - (across * weights.T).sum(axis=1)
    return mean, spread * np.sqrt(np.maximum(variance, 0))


def _distances(a: ProbArray, b: ProbArray) -> ProbArray:
    # Squared, float64 `[len(a), len(b)]`.
    out: ProbArray = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
    return np.maximum(out, 0)

"""How speed-up and throughput change with batch size B: a + b log2 B, from benches of several B.

The third law of Yan et al. 2025 (arXiv:2505.07858, Theorem 1.3).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from math import log10
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from paceline.core.types import ProbArray
from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.lab.measure.report import BASELINE, Row

VALUES = {"speedup": "speed-up", "tokens_per_second": "tokens/s"}

_RESAMPLES = 2000


class LogLinear(NamedTuple):
    """A law a + b log N.

    `intercept` is a, the value at N = 1; `per_tenfold` b log 10 and the ends of its 90% interval;
    `explained` R squared.
    """

    sizes: ProbArray
    values: ProbArray
    intercept: float
    per_tenfold: tuple[float, float, float]
    explained: float


def fit_log_linear(
    sizes: Sequence[float] | ProbArray, values: Sequence[float] | ProbArray, seed: int = 0
) -> LogLinear:
    """Fit values on log sizes by least squares, with a residual bootstrap.

    Sizes stay fixed in resamples. Residuals are corrected for leverage, and resamples widened for
    n - 2 degrees of freedom: else intervals of few points are too narrow.

    Raises:
        InvalidOption: fewer than three different sizes, or a value that is not finite.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(np.unique(x)) < 3:
        raise InvalidOption(
            f"a scaling law needs 3 points of different size, not {len(np.unique(x))}: measure more"
        )
    if x.shape != y.shape or not (np.isfinite(y).all() and np.isfinite(x).all() and (x > 0).all()):
        raise InvalidOption("every point of a scaling law needs a size above 0 and a finite value")
    design = np.column_stack([np.ones_like(x), np.log10(x)])
    solve = np.linalg.pinv(design)
    line = solve @ y
    residuals = y - design @ line
    spread = residuals / np.sqrt(1 - np.einsum("ij,ji->i", design, solve))
    spread -= spread.mean()
    generator, freedom = np.random.default_rng(seed), len(x) - 2
    drawn = generator.choice(spread, (_RESAMPLES, len(x)))
    noise = np.sqrt(freedom / generator.chisquare(freedom, (_RESAMPLES, 1)))
    slopes = line[1] + noise[:, 0] * (drawn @ solve[1])
    low, high = np.quantile(slopes, [0.05, 0.95])
    total = float(np.square(y - y.mean()).sum())
    explained = 1 - float(residuals @ residuals) / total if total else 1.0
    return LogLinear(x, y, float(line[0]), (float(line[1]), float(low), float(high)), explained)


class BatchLaw(NamedTuple):
    """Fit of one drafter's figure, a key of `VALUES`, over batch size."""

    drafter: str
    value: str
    fit: LogLinear

    @property
    def doubling(self) -> tuple[float, float, float]:
        """Return what twice the batch adds: its value, and the ends of its 90% interval."""
        value, low, high = (log10(2) * part for part in self.fit.per_tenfold)
        return value, low, high

    def at(self, batch: int) -> float:
        """Return the mean of what was measured at a batch size."""
        found = zip(self.fit.sizes, self.fit.values, strict=True)
        return fmean(float(value) for size, value in found if size == batch)

    def as_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "value": VALUES[self.value],
            "at_one": self.fit.intercept,
            "per_doubling": dict(zip(("value", "low", "high"), self.doubling, strict=True)),
            "explained": self.fit.explained,
            "batches": self.fit.sizes.tolist(),
            "values": self.fit.values.tolist(),
        }


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read folders of `bench --out`; InvalidOption if they differ in more than batch."""
    found = []
    for path in paths:
        file = path / "results.json" if path.is_dir() else path
        try:
            bench = json.loads(file.read_bytes())
            complete = bench["complete"] and bench["settings"]["batch"] >= 1 and bench["rows"]
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise InvalidOption(f"{file} is no result of paceline bench ({error})") from error
        if not complete:
            raise InvalidOption(f"{file} is not finished: run its bench to the end")
        found.append(bench)
    first = found[0]["settings"]
    for path, bench in zip(paths, found, strict=True):
        mine = bench["settings"]
        other = {key for key in first.keys() | mine if first.get(key) != mine.get(key)} - {"batch"}
        if other:
            raise InvalidOption(
                f"{path} differs from {paths[0]} in {', '.join(sorted(other))}: a law over batch "
                "size needs benches that are alike otherwise"
            )
    return found


def laws(benches: Sequence[dict[str, Any]]) -> list[BatchLaw]:
    """Fit every drafter over all prompts; InvalidOption with fewer than three batch sizes."""
    points: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for bench in benches:
        for row in bench["rows"]:
            if row["category"] == "all":
                points[row["drafter"]].append((bench["settings"]["batch"], row))
    return [
        BatchLaw(name, value, fit_log_linear([n for n, _ in mine], [row[value] for _, row in mine]))
        for name, mine in points.items()
        for value in VALUES
        if (name, value) != (BASELINE, "speedup")
    ]


def table(found: Sequence[BatchLaw]) -> tuple[list[str], list[list[results.Cell]]]:
    """Return columns and rows of a result."""
    sizes = sorted({int(size) for law in found for size in law.fit.sizes})
    ends = ["a doubling adds", "90% interval", "explained"]
    rows: list[list[results.Cell]] = []
    for law in found:
        digits = ".2f" if law.value == "speedup" else ".0f"
        value, low, high = (format(part, f"+{digits}") for part in law.doubling)
        measured = [format(law.at(size), digits) for size in sizes]
        share = f"{law.fit.explained:.0%}"
        rows.append([law.drafter, VALUES[law.value], *measured, value, f"{low} to {high}", share])
    return ["drafter", "figure", *(f"batch {size}" for size in sizes), *ends], rows

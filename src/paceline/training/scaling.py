"""Log-linear scaling laws, a + b log N, of acceptance: the plan of runs, their results, the fits.

N is training tokens or drafter parameters (Yan et al. 2025, arXiv:2505.07858, Theorems 1.1, 1.2).
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, prod
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from paceline.core.cache import whole_file
from paceline.core.types import ProbArray
from paceline.errors import InvalidOption
from paceline.measure.machine import dumps
from paceline.networks.base import Network, describe
from paceline.training.quality import Figure
from paceline.training.trainer import short

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class LogLinear:
    """Fitted law, valid between the least and the greatest of its sizes.

    Attributes:
        intercept: a, the value at N = 1; no forecast.
        per_tenfold: b log 10 with its 90% interval.
        explained: R squared.
        resampled: float64 `[resamples, 2]`, a and b log 10 of each resample.
    """

    sizes: ProbArray
    values: ProbArray
    intercept: float
    per_tenfold: Figure
    explained: float
    resampled: ProbArray

    def at(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """Return the law at some sizes; InvalidOption outside the range of the points."""
        found: ProbArray = self.intercept + self.per_tenfold.value * self._logs(sizes)
        return found

    def band(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        """Return float64 `[2, k]`, the pointwise 90% interval; InvalidOption outside the range."""
        lines = self.resampled[:, :1] + self.resampled[:, 1:] * self._logs(sizes)
        found: ProbArray = np.quantile(lines, [0.05, 0.95], axis=0)
        return found

    def _logs(self, sizes: Sequence[float] | ProbArray) -> ProbArray:
        asked = np.asarray(sizes, dtype=np.float64)
        least, greatest = self.sizes.min(), self.sizes.max()
        if asked.size and (asked.min() < least or asked.max() > greatest):
            raise InvalidOption(
                f"the law was fitted from {least:g} to {greatest:g} and is not extended beyond: "
                "measure there"
            )
        logs: ProbArray = np.log10(asked)
        return logs


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
            f"a scaling law needs 3 points of different size, not {len(np.unique(x))}: train more"
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
    resampled: ProbArray = line + noise * (drawn @ solve.T)
    low, high = np.quantile(resampled[:, 1], [0.05, 0.95])
    total = float(np.square(y - y.mean()).sum())
    return LogLinear(
        x,
        y,
        float(line[0]),
        Figure(float(line[1]), float(low), float(high)),
        1 - float(residuals @ residuals) / total if total else 1.0,
        resampled,
    )


# The runs of a scaling study, and their results on disk, so that no run is done twice.

# Increase when the meaning of a result changes.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Training run of a study, with a learning-rate schedule of its own.

    Attributes:
        network: name and sizes, as given; `kind` is the name alone.
        tokens: training tokens, repeats counted.
        settings: all that the result depends on, as JSON-serialisable values.
    """

    network: str
    kind: str
    depth: int
    parameters: int
    tokens: int
    seed: int
    settings: Mapping[str, Any]

    @property
    def stem(self) -> str:
        """Return the file name stem: readable, and unique to the settings."""
        told = json.dumps(self.settings, sort_keys=True).encode()
        digest = hashlib.sha256(told).hexdigest()[:12]
        return f"{self.kind}-{short(self.parameters)}-{short(self.tokens)}-{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run.

    Attributes:
        tokens: seen in training, repeats counted.
        seconds: of training, pauses excluded.
        loss: held out, as are the figures that follow.
        acceptance: at each depth, the share of drafts accepted there given acceptance above.
    """

    tokens: int
    steps: int
    seconds: float
    loss: float
    drafts: int
    block_efficiency: float
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    run: Run
    outcome: Outcome


class Results:
    """Folder with a file per finished run; made if missing, else InvalidOption."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption(
                f"cannot make {folder} ({error.strerror or error}): choose another --out"
            ) from error

    def checkpoint(self, run: Run) -> Path:
        return self._folder / f"{run.stem}.checkpoint"

    def read(self, run: Run) -> Outcome | None:
        """Return the outcome of a run, or None; InvalidOption if its file does not fit the run."""
        path = self._path(run)
        try:
            entry = json.loads(path.read_bytes())
            same = entry["format"] == _FORMAT and entry["settings"] == _plain(run.settings)
            outcome = _outcome(entry["outcome"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise InvalidOption(
                f"{path} is damaged or no result of a run ({error}): delete it, and the run is "
                "done again"
            ) from error
        if not same:
            raise InvalidOption(
                f"{path} is the result of another run: delete it, and this one is done again, or "
                "choose another --out"
            )
        return outcome

    def keep(self, run: Run, outcome: Outcome) -> None:
        """Write the outcome of a finished run, then delete its checkpoint.

        Raises:
            InvalidOption: it cannot be written; the checkpoint is still there.
        """
        entry = {"format": _FORMAT, "settings": run.settings, "outcome": asdict(outcome)}
        write_whole(self._path(run), (dumps(entry, indent=1) + "\n").encode())
        self.checkpoint(run).unlink(missing_ok=True)

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.stem}.json"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; InvalidOption if it cannot be written."""
    try:
        with whole_file(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise InvalidOption(
            f"cannot write {path} ({error.strerror or error}): free some space, and repeat the "
            "command to go on"
        ) from error


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(settings))


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    # Raises TypeError, ValueError or LookupError on missing or non-finite figures.
    found = Outcome(
        int(entry["tokens"]),
        int(entry["steps"]),
        float(entry["seconds"]),
        float(entry["loss"]),
        int(entry["drafts"]),
        float(entry["block_efficiency"]),
        tuple(float(each) for each in entry["acceptance"]),
    )
    figures = (found.tokens, found.seconds, found.loss, found.block_efficiency, *found.acceptance)
    if not found.acceptance or found.tokens < 1 or not all(isfinite(each) for each in figures):
        raise ValueError("figures are missing or impossible")
    return found


# The laws of a study:

TOKENS, PARAMETERS = "training tokens", "parameters"

VALUES: dict[str, Callable[[Outcome], float]] = {
    "block efficiency": lambda outcome: outcome.block_efficiency,
    "first-token acceptance": lambda outcome: outcome.acceptance[0],
}

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Law:
    """Fit of one network over training tokens, or of one kind of network over parameters."""

    of: str
    label: str
    size: str
    value: str
    fit: LogLinear

    def as_dict(self) -> dict[str, Any]:
        fit = self.fit
        return {
            "of": self.of,
            "over": self.size,
            "value": self.value,
            "intercept": fit.intercept,
            "per_tenfold": asdict(fit.per_tenfold),
            "explained": fit.explained,
            "sizes": fit.sizes.tolist(),
            "values": fit.values.tolist(),
        }


def laws(points: Sequence[Point]) -> list[Law]:
    """Fit every law that has three sizes.

    Over tokens, N is the mean of tokens seen by all seeds of a budget. Over parameters, only runs
    of the largest budget count, and only networks of one kind and depth.
    """
    found: list[Law] = []
    names = {p.run.network: f"{p.run.kind} {short(p.run.parameters)}" for p in points}
    for network, mine in _groups(points, lambda point: point.run.network).items():
        seen = {
            budget: fmean(point.outcome.tokens for point in same)
            for budget, same in _groups(mine, lambda point: point.run.tokens).items()
        }
        sizes = [seen[point.run.tokens] for point in mine]
        alone = [*names.values()].count(names[network]) == 1
        found += _fits(network, names[network] if alone else network, TOKENS, sizes, mine)
    most = max((point.run.tokens for point in points), default=0)
    last = [point for point in points if point.run.tokens == most]
    for (kind, depth), mine in _groups(last, lambda p: (p.run.kind, p.run.depth)).items():
        of = f"{kind} of depth {depth}, {short(most)} tokens"
        sizes = [float(point.run.parameters) for point in mine]
        found += _fits(of, of, PARAMETERS, sizes, mine)
    return found


def _fits(
    of: str, label: str, size: str, sizes: Sequence[float], points: Sequence[Point]
) -> list[Law]:
    if len(set(sizes)) < 3:
        return []
    return [
        Law(of, label, size, name, fit_log_linear(sizes, [value(p.outcome) for p in points]))
        for name, value in VALUES.items()
    ]


def _groups(points: Sequence[Point], key: Callable[[Point], Key]) -> dict[Key, list[Point]]:
    found: dict[Key, list[Point]] = defaultdict(list)
    for point in points:
        found[key(point)].append(point)
    return dict(found)


# Which runs a scaling study has:


def plan(
    networks: Mapping[str, Network],
    budgets: Sequence[int],
    seeds: Sequence[int],
    shared: Mapping[str, Any],
) -> list[Run]:
    """Return every network by every budget by every seed, small budgets first.

    Raises:
        InvalidOption: two names mean the same network.
    """
    runs: dict[str, Run] = {}
    for budget in sorted(budgets):
        for name, network in networks.items():
            parameters = sum(prod(shape) for shape in network.shapes().values())
            for seed in seeds:
                settings = {**shared, **describe(network), "tokens": budget, "seed": seed}
                run = Run(name, network.name, network.depth, parameters, budget, seed, settings)
                other = runs.setdefault(run.stem, run)
                if other is not run:
                    raise InvalidOption(
                        f"--networks {other.network} and {name} are the same network: leave one out"
                    )
    return list(runs.values())

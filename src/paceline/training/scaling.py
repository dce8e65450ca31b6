"""Log-linear scaling laws, a + b log N, of acceptance: planned runs, results, fits, report.

N is training tokens or drafter parameters (Yan et al. 2025, arXiv:2505.07858, Theorems 1.1, 1.2).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, prod
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from paceline.core.cache import written_file
from paceline.errors import InvalidOption
from paceline.measure.log_linear import LogLinear, fit_log_linear
from paceline.measure.machine import dumps
from paceline.networks.base import Network, describe
from paceline.training.trainer import Trainer, short

# Increase when the meaning of a result changes.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedRun:
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
class RunResult:
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

    @classmethod
    def of(cls, run: Trainer) -> RunResult:
        """Judge a run that is at its end."""
        loss, hits = run.judge()
        return cls(
            run.tokens,
            run.step,
            round(run.course.seconds, 1),
            loss,
            hits.starts,
            hits.block_efficiency,
            hits.acceptance,
        )


@dataclass(frozen=True, slots=True)
class Point:
    run: PlannedRun
    outcome: RunResult


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

    def checkpoint(self, run: PlannedRun) -> Path:
        return self._folder / f"{run.stem}.checkpoint"

    def read(self, run: PlannedRun) -> RunResult | None:
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

    def keep(self, run: PlannedRun, outcome: RunResult) -> None:
        """Write the outcome of a finished run, then delete its checkpoint.

        Raises:
            InvalidOption: it cannot be written; the checkpoint is still there.
        """
        entry = {"format": _FORMAT, "settings": run.settings, "outcome": asdict(outcome)}
        _write(self._path(run), (dumps(entry, indent=1) + "\n").encode())
        self.checkpoint(run).unlink(missing_ok=True)

    def _path(self, run: PlannedRun) -> Path:
        return self._folder / f"{run.stem}.json"


def _write(path: Path, content: bytes) -> None:
    with written_file(path, "free some space, and repeat the command to go on") as part:
        part.write_bytes(content)


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(settings))


def _outcome(entry: Mapping[str, Any]) -> RunResult:
    # Raises TypeError, ValueError or LookupError on missing or non-finite figures.
    found = RunResult(**{**entry, "acceptance": tuple(entry["acceptance"])})
    figures = (found.tokens, found.seconds, found.loss, found.block_efficiency, *found.acceptance)
    if not found.acceptance or found.tokens < 1 or not all(isfinite(each) for each in figures):
        raise ValueError("figures are missing or impossible")
    return found


TOKENS, PARAMETERS = "training tokens", "parameters"

VALUES: dict[str, Callable[[RunResult], float]] = {
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


def plan(
    networks: Mapping[str, Network],
    budgets: Sequence[int],
    seeds: Sequence[int],
    shared: Mapping[str, Any],
) -> list[PlannedRun]:
    """Return every network by every budget by every seed, small budgets first.

    Raises:
        InvalidOption: two names mean the same network.
    """
    runs: dict[str, PlannedRun] = {}
    for budget in sorted(budgets):
        for name, network in networks.items():
            parameters = sum(prod(shape) for shape in network.shapes().values())
            for seed in seeds:
                settings = {**shared, **describe(network), "tokens": budget, "seed": seed}
                run = PlannedRun(
                    name, network.name, network.depth, parameters, budget, seed, settings
                )
                other = runs.setdefault(run.stem, run)
                if other is not run:
                    raise InvalidOption(
                        f"--networks {other.network} and {name} are the same network: leave one out"
                    )
    return list(runs.values())


@dataclass(frozen=True, slots=True)
class Study:
    """Runs of one target on one set of texts, by one recipe.

    Attributes:
        training_tokens: of the training texts, each counted once.
        held_out: number of held-out texts.
        asked: planned runs; `points` are the finished ones.
    """

    command: str
    model: str
    settings: Mapping[str, Any]
    training_tokens: int
    held_out: int
    asked: int
    points: Sequence[Point]

    @property
    def complete(self) -> bool:
        return len(self.points) == self.asked


def as_dict(study: Study, found: Sequence[Law]) -> dict[str, Any]:
    return {
        "command": study.command,
        "complete": study.complete,
        "model": study.model,
        "settings": dict(study.settings),
        "training_tokens": study.training_tokens,
        "held_out_texts": study.held_out,
        "runs": [
            {
                "network": point.run.network,
                "parameters": point.run.parameters,
                "budget": point.run.tokens,
                "seed": point.run.seed,
                **asdict(point.outcome),
            }
            for point in study.points
        ],
        "laws": [law.as_dict() for law in found],
    }


def markdown(study: Study, found: Sequence[Law], plots: Mapping[str, str]) -> str:
    state = "" if study.complete else f" {len(study.points)} of {study.asked} runs are finished."
    parts = [
        f"# How drafters of {study.model} grow",
        f"Each run has a whole learning-rate schedule of its own. All are judged on the same "
        f"{study.held_out} held-out texts, walked as decoding walks them; there are "
        f"{study.training_tokens:,} different tokens to train on.{state}",
        f"```\n{study.command}\n```",
        "## Runs",
        _runs(study.points),
        "## Laws",
        _laws(found),
        *(f"![{title}]({link})" for title, link in plots.items()),
    ]
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path, study: Study) -> dict[str, Any]:
    """Write scaling.json, scaling.md and, with matplotlib, the figures; return the JSON content.

    Raises:
        InvalidOption: a file cannot be written.
    """
    found = laws(study.points)
    plots: dict[str, str] = {}
    if importlib.util.find_spec("matplotlib"):
        from paceline.training.plots import scaling_plot

        for size, value in dict.fromkeys((law.size, law.value) for law in found):
            shown = {law.label: law.fit for law in found if (law.size, law.value) == (size, value)}
            name = f"{value} over {size}".replace(" ", "-") + ".png"
            _write(folder / name, scaling_plot(shown, size, value))
            plots[f"{value} over {size}"] = name
    content = as_dict(study, found)
    _write(folder / "scaling.md", markdown(study, found, plots).encode())
    _write(folder / "scaling.json", (dumps(content, indent=1) + "\n").encode())
    return content


def _runs(points: Sequence[Point]) -> str:
    rows = [
        "| network | parameters | tokens seen | seed | block efficiency | first token accepted | "
        "loss | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        run, outcome = point.run, point.outcome
        rows.append(
            f"| `{run.network}` | {short(run.parameters)} | {outcome.tokens:,} | {run.seed} | "
            f"{outcome.block_efficiency:.3f} | {outcome.acceptance[0]:.1%} | {outcome.loss:.3f} | "
            f"{outcome.seconds:,.0f} |"
        )
    return "\n".join(rows)


def _laws(found: Sequence[Law]) -> str:
    if not found:
        return "A law needs three numbers of tokens, or three sizes of one kind of network."
    rows = [
        "Value = a + b log N by least squares, the form of arXiv:2505.07858. A tenfold N adds "
        "b log 10; intervals are 90%, by bootstrap of the residuals. No law is meant beyond its "
        "points.",
        "",
        "| of | value | over | from | to | value there | tenfold adds | explained |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for law in found:
        fit, ends = law.fit, (law.fit.sizes.min(), law.fit.sizes.max())
        first, last = fit.at(ends).tolist()
        slope = fit.per_tenfold
        rows.append(
            f"| `{law.of}` | {law.value} | {law.size} | {short(int(ends[0]))} | "
            f"{short(int(ends[1]))} | {first:.3f} to {last:.3f} | {slope.value:+.3f} "
            f"({slope.low:+.3f} to {slope.high:+.3f}) | {fit.explained:.0%} |"
        )
    return "\n".join(rows)

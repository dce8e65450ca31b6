"""The laws of a study: over training tokens for each network, over parameters for each kind.

Yan et al. 2025 (arXiv:2505.07858): Theorem 1.1 for tokens, Theorem 1.2 for a drafter's capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, TypeVar

from paceline.training.counts import short
from paceline.training.scaling import LogLinear, fit_log_linear
from paceline.training.scaling_runs import Outcome, Point

TOKENS, PARAMETERS = "training tokens", "parameters"

VALUES: dict[str, Callable[[Outcome], float]] = {
    "block efficiency": lambda outcome: outcome.block_efficiency,
    "first-token acceptance": lambda outcome: outcome.acceptance[0],
}

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Law:
    """One fit.

    Attributes:
        of: what was trained.
        label: the same in short, for figures.
        size: what N is, `TOKENS` or `PARAMETERS`.
        value: a name in `VALUES`.
        fit: the law.
    """

    of: str
    label: str
    size: str
    value: str
    fit: LogLinear

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the points that were fitted; resamples are left out."""
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
    """Every law that there are three sizes for.

    Over tokens N is what was seen, over all seeds of a budget the same. Over parameters only runs
    of the largest budget count, and only networks of one kind that draft equally deep.
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
    """Points by key, in the order in which keys come first."""
    found: dict[Key, list[Point]] = defaultdict(list)
    for point in points:
        found[key(point)].append(point)
    return dict(found)

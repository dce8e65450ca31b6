"""Which runs a scaling study has: every network on every number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from paceline.errors import InvalidOption
from paceline.networks.base import Network, describe
from paceline.training.scaling_runs import Run


def plan(
    networks: Mapping[str, Network],
    budgets: Sequence[int],
    seeds: Sequence[int],
    shared: Mapping[str, Any],
) -> list[Run]:
    """Every run, those of few tokens first.

    Args:
        networks: by their names as given.
        budgets: numbers of tokens.
        seeds: of each network and number of tokens.
        shared: what the results of all runs depend on, as plain values.

    Raises:
        InvalidOption: two names say the same network.
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

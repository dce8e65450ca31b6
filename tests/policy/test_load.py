"""Drafts in batches, on machines by script: nothing here depends on the one that runs the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.policy.scripted import STEP, Chance, Clock, Machine, Scripted, plain, play

from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.policy.cost_model import CostModelController

# c(8) = 1.18 of a Xeon with AMX, 1.5 of an EPYC with AVX-512, 3.5 of one with AVX2 alone.
MACHINES = {"xeon": 0.18 / 7, "epyc": 0.5 / 7, "zen1": 2.5 / 7}


def always(chance: float) -> Chance:
    return lambda position: chance


def copies(share: float) -> Chance:
    """In so many stretches of 40 tokens there is something to copy."""
    return lambda position: 0.9 * ((position // 40 * 2654435761) % 1000 < 1000 * share)


HOURS: dict[str, Callable[[float], tuple[float, float]]] = {
    "as measured": lambda now: (1.0, 1.0),
    "rows cost thrice what was measured": lambda now: (1.6, 3.0),
}


@pytest.mark.parametrize("hour", HOURS)
@pytest.mark.parametrize("machine", MACHINES)
def test_drafts_never_cost_under_load(machine: str, hour: str) -> None:
    """Whatever other hour the costs were measured in."""
    here = Machine(MACHINES[machine], HOURS[hour], noise=0.1, per_sequence=0.02)
    for chance in (always(0.7), always(0.3), always(0.1), copies(0.3)):
        for clients, tokens in ((1, 600), (2, 400), (4, 300), (8, 200), (16, 150)):
            clock = Clock()
            parts = [
                Scripted("copy", clock, chance, draft=0.002),
                Scripted("network", clock, always(0.4), draft=0.08, level=0.005),
            ]
            drafted = play(
                FallbackDrafter(parts, clock=clock),
                CostModelController(here.costs()),
                here,
                clock,
                tokens=tokens,
                sequences=clients,
            )
            alone = plain(here, tokens=tokens, sequences=clients)
            # Beside the steps in which it learns that.
            assert drafted.seconds - 12 * STEP <= alone.seconds / 0.98

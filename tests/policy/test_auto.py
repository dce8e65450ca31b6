"""Which drafter drafts, and whether any does, on machines and texts by script: nothing here is
fitted to one processor, and no figure depends on the one that runs the tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.policy.scripted import STEP, Chance, Clock, Machine, Scripted, plain, play

from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.policy.cost_model import CostModelController

# c(8) = 1.18 of a Xeon with AMX, 1.5 of an EPYC with AVX-512, 3.5 of one with AVX2 alone.
MACHINES = {"xeon": 0.18 / 7, "epyc": 0.5 / 7, "zen1": 2.5 / 7}

# Steps that a level of a draft model's chain takes, and a token that it reads.
MODELS = {"small": (0.08, 0.01), "half": (0.2, 0.03), "large": (0.4, 0.08)}


def always(chance: float) -> Chance:
    return lambda position: chance


def copies(share: float) -> Chance:
    """In so many stretches of 40 tokens there is something to copy."""
    return lambda position: 0.9 * ((position // 40 * 2654435761) % 1000 < 1000 * share)


def until(place: int, before: float, after: float) -> Chance:
    return lambda position: before if position < place else after


# The chances of what is copied, of a trained network's tokens, and of a draft model's.
TEXTS = {
    "the network is better": (copies(0.2), always(0.6), always(0.7)),
    "the model is better": (copies(0.2), always(0.3), always(0.85)),
    "neither is good": (copies(0.1), always(0.15), always(0.3)),
    "copies are better": (copies(0.8), always(0.5), always(0.7)),
}


def rate(
    text: tuple[Chance, ...],
    parts: str,
    machine: Machine,
    model: tuple[float, float],
    *,
    tokens: int = 250,
    prompts: int = 4,
) -> tuple[float, float, list[Scripted]]:
    """Tokens, seconds, and the parts, of prompts one after the other."""
    clock = Clock()
    made = {
        "copy": lambda: Scripted("copy", clock, text[0], draft=0.002),
        "network": lambda: Scripted("network", clock, text[1], draft=0.08, level=0.005),
        "model": lambda: Scripted(
            "model", clock, text[2], level=model[0], read=model[1], blind=True
        ),
    }
    drafters = [made[name]() for name in parts.split(">")]
    drafter = FallbackDrafter(drafters, clock=clock) if len(drafters) > 1 else drafters[0]
    controller = CostModelController(machine.costs())
    runs = [
        play(drafter, controller, machine, clock, tokens=tokens, first=first)
        for first in range(prompts)
    ]
    return sum(run.tokens for run in runs), sum(run.seconds for run in runs), drafters


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("machine", MACHINES)
def test_all_together_are_as_good_as_the_best_of_them(machine: str, text: str) -> None:
    """But for the steps that it takes to learn which that is: a few dozen at worst."""
    here = Machine(MACHINES[machine])
    for model in MODELS.values():
        ways = ("copy", "copy>network", "copy>model")
        best = min(rate(TEXTS[text], way, here, model)[1] for way in ways)
        tokens, seconds, _ = rate(TEXTS[text], "copy>network>model", here, model)
        assert seconds <= best / 0.97 + 36 * STEP
        assert seconds <= tokens / plain(here, tokens=250).rate / 0.98 + 36 * STEP


@pytest.mark.parametrize("machine", ["xeon", "epyc"])
@pytest.mark.parametrize("better", ["network", "model"])
def test_a_change_of_the_text_is_noticed(machine: str, better: str) -> None:
    here, weak, model = Machine(MACHINES[machine]), always(0.15), MODELS["small"]
    strong = until(1200, 0.15, 0.85)
    changed = (copies(0), strong, weak) if better == "network" else (copies(0), weak, strong)
    rates = []
    for text in (changed, (copies(0), weak, weak)):
        run = rate(text, "copy>network>model", here, model, tokens=2000, prompts=1)
        rates.append(run[0] / run[1])
    assert rates[0] > 1.15 * rates[1]


def test_what_does_not_pay_is_seldom_asked_and_hardly_reads() -> None:
    here, text = Machine(MACHINES["xeon"]), (copies(0.2), always(0.6), always(0.3))
    first, later = (
        rate(text, "copy>network>model", here, MODELS["half"], prompts=prompts)
        for prompts in (4, 12)
    )
    assert first[2][-1].drafts < 30
    spent = later[2][-1].seconds - first[2][-1].seconds
    assert spent <= 0.01 * (later[1] - first[1])


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
            assert drafted.seconds - 6 * STEP <= alone.seconds / 0.98

"""Machines that were not measured: their assumed costs, and what schedules would do there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.schedules.simulator import SCHEDULES, Costs, Curve, Run, Truth, plain

from paceline.measure.results import Cell

# A GPU of 3.35 TB/s whose layers take at least 20 µs. Weights of 2 bytes.
_BANDWIDTH, _LAYER = 3.35e12, 20e-6
_TARGET, _DRAFT = (28, 3.1e9), (24, 1.0e9)  # layers and bytes of 1.5B and 0.5B
_HOST_LINK = 50e-6

GOAL = 1.3

# Drafts by some of the target's layers: share of a forward per token, share of tokens right.
SELF = {"55% of the sub-layers": (0.70, 0.54), "26 of 28 layers": (0.93, 0.80)}


def cores(costs: Costs, count: int) -> Costs:
    """Return costs of one thread spread over so many cores, without loss."""
    return replace(
        costs,
        target=costs.target.times(1 / count),
        draft=costs.draft.times(1 / count),
        slowed=(1.0, 1.0),
    )


def gpu() -> Costs:
    """Return costs of forwards that wait for launches and weights, however few rows."""
    target, draft = (Curve([1], [n * _LAYER + b / _BANDWIDTH]) for n, b in (_TARGET, _DRAFT))
    return Costs(target, draft)


def machines(one: Costs) -> dict[str, tuple[Costs, Costs, list[Costs]]]:
    """Return costs by machine: of plain decoding, of schedules in turn, of ways to be at once.

    `one` is measured with a thread.
    """
    eight, graphics = cores(one, 8), gpu()
    splits = [
        replace(eight, target=one.target.times(1 / (8 - n)), draft=one.draft.times(1 / n))
        for n in range(1, 8)
    ]
    bound = replace(eight, slowed=(2.0, 2.0))
    shared = replace(graphics, slowed=(1.5, 1.5))
    ferry = replace(eight, draft=graphics.draft, link=_HOST_LINK)
    return {
        "8 cores, shared out": (eight, eight, splits),
        "8 cores that wait for one memory": (eight, eight, [bound]),
        "one GPU, both 1.5 times as slow at once": (graphics, graphics, [shared]),
        "two GPUs": (graphics, graphics, [graphics]),
        "8 cores, draft model on a GPU": (eight, ferry, [ferry]),
    }


def asked(one: Costs, truth: Truth, fuzzy: tuple[Truth, Truth] | None = None) -> list[list[Cell]]:
    """Return a row per machine and schedule: the best window, and speed over plain decoding.

    `fuzzy` is what exact and grouped drafts get right, drawn alike; with groups of two on two GPUs
    attention takes half the time, if it is half of a layer.
    """
    rows: list[list[Cell]] = []
    for machine, (alone, turns, ways) in machines(one).items():
        base = plain(truth, alone).per_token

        def row(title: str, name: str, of: Truth, ways: list[Costs], base: float = base) -> None:
            found = [best(name, of, costs) for costs in ways]
            window, run = min(found, key=lambda each: each[1].seconds)
            rows.append([machine, title, window, round(base / run.per_token, 2)])  # noqa: B023

        row("dovetail" if turns.link else "sequential", "sequential", truth, [turns])
        row("pearl", "pearl", truth, ways)
        row("mirror-sd", "mirror-sd", truth, ways)
        if machine == "two GPUs" and fuzzy is not None:
            row("exact drafts, drawn", "sequential", fuzzy[0], [turns])
            row("easyspec, drawn", "sequential", fuzzy[1], [replace(turns, fuzzy=0.75)])
    return rows


def self_speculation(one: Costs) -> list[list[Cell]]:
    """Return the same for drafts by the target's own layers, and the cost that 1.3 times needs.

    "in turn" on the cores of the target; "at once" on as many cores more, which is kind.
    """
    rows: list[list[Cell]] = []
    for name, (cost, right) in SELF.items():
        for title, target in (("here", one.target), ("rows are free", Curve([1], [one.target(1)]))):
            for way, limit in (("in turn", sequential_limit), ("at once", pearl_limit)):

                def speed(
                    share: float,
                    target: Curve = target,
                    right: float = right,
                    limit: Callable[[float, Costs, int], float] = limit,
                ) -> float:
                    costs = Costs(target, Curve([1], [target(1) * share]))
                    return target(1) / min(limit(right, costs, window) for window in range(1, 17))

                needed = next((c / 100 for c in range(100, 0, -1) if speed(c / 100) > GOAL), None)
                rows.append([f"{name}, {way}, {title}", right, cost, round(speed(cost), 2), needed])
    return rows


def chance(tokens_per_forward: float, window: int) -> float:
    """Return the probability a of a right token with 1 + a + ... + a^window tokens per forward."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        few = sum(middle**power for power in range(window + 1)) < tokens_per_forward
        low, high = (middle, high) if few else (low, middle)
    return low


def best(
    name: str, truth: Truth, costs: Costs, windows: Sequence[int] = range(1, 17)
) -> tuple[int, Run]:
    """Return the window with the least time, and its run."""
    runs = {window: SCHEDULES[name](truth, costs, window) for window in windows}
    return min(runs.items(), key=lambda each: each[1].seconds)


# Closed forms: seconds per token of a long text whose drafted tokens are right with probability
# `right`, independently.


def sequential_limit(right: float, costs: Costs, window: int) -> float:
    """Return (window drafts + a forward) / (1 + a + ... + a^window), with draft forwards alike."""
    tokens = sum(right**power for power in range(window + 1))
    return (window * costs.draft(1) + costs.target(window + 1) + costs.step) / tokens


def pearl_limit(right: float, costs: Costs, window: int) -> float:
    """Return the same of PEARL, whose steps are a Markov chain: pre-verify and post-verify.

    Pre-verify becomes post-verify with probability a and commits one token; post-verify stays with
    a^window and commits 1 + a + ... + a^(window - 1).
    """
    ahead = window * costs.draft(1)
    before = max(costs.target(1) + costs.step, ahead)
    after = max(costs.target(window) + costs.step, ahead)
    stays = right**window
    if stays == 1.0:
        return after / window
    share = right / (1 - stays + right)  # of steps that are post-verify
    tokens = (1 - share) + share * (1 - stays) / (1 - right if right < 1 else 1)
    return ((1 - share) * before + share * after) / tokens

"""A tuned choice in words: what it was measured on, what else was tried, and why it won."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline.bench.machine import machine
from paceline.bench.report import Row, aligned
from paceline.tuned import Choice, Kind
from paceline.tuning.space import PLAIN

if TYPE_CHECKING:
    from paceline.loading import Loaded
    from paceline.tuning.tuner import Tuner

_KEPT = (
    *("drafter", "prompts", "speedup", "speedup_low", "speedup_high"),
    *("block_efficiency", "forward_cost", "rows_per_forward", "draft_share"),
)
_TITLES = ("configuration", "prompts", "speed-up", "90% interval", "tokens/forward", "forward cost")


def evidence(
    loaded: Loaded, tuner: Tuner, settings: Mapping[str, Any], chosen: str
) -> dict[str, Any]:
    """All that an explanation needs, as plain values to be saved with a choice.

    Args:
        loaded: what was tuned.
        tuner: the run that chose.
        settings: what the user asked for.
        chosen: name of the configuration.
    """
    finals = kept(tuner.finals())
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seconds": round(tuner.elapsed, 1),
        "place": {"name": loaded.source.name, **loaded.place},
        "machine": machine(),
        "settings": dict(settings),
        "space": tuner.size,
        "finals": finals,
        "search": kept(tuner.searched()),
        "pruned": sorted(tuner.pruned),
        "c_n": {str(size): c for size, c in loaded.costs.curve().items()},
        "why": why(chosen, finals),
    }


def kept(rows: Sequence[Row]) -> list[Row]:
    """Rows as they are saved: the figures that an explanation needs."""
    return [{key: row[key] for key in _KEPT} for row in rows]


def why(chosen: str, finals: Sequence[Row]) -> str:
    """Why a configuration won its finals, in two sentences.

    Args:
        chosen: its name; that of plain decoding if nothing beat it.
        finals: rows over the held-out prompts, at least one.
    """
    order = sorted(finals, key=lambda row: -float(row["speedup"]))
    if chosen == PLAIN.name:
        near = order[0]
        return (
            "no configuration was surely faster than plain decoding; the nearest was "
            f"{near['drafter']} at {_ratio(near)}, {_work(near)}"
        )
    winner = next(row for row in order if row["drafter"] == chosen)
    text = f"{chosen} makes {_work(winner)}: {_ratio(winner)} of plain decoding"
    second = next((row for row in order if row is not winner), None)
    if second is None:
        return text
    tokens = winner["block_efficiency"] / second["block_efficiency"] - 1
    cost = winner["forward_cost"] / second["forward_cost"] - 1
    return (
        f"{text}. The next, {second['drafter']}, makes {_work(second)}: {_ratio(second)}. So the "
        f"winner has {_change(tokens, 'fewer')} tokens per forward for {_change(cost)} cost per "
        "forward"
    )


def lines(kind: Kind, choice: Choice) -> list[str]:
    """The choice for a kind of decoding and all that speaks for it, for people."""
    told = choice.evidence
    place, settings, machine = told["place"], told["settings"], told["machine"]
    search, pruned = told["search"], set(told["pruned"])
    costs = ", ".join(f"c({n}) = {c:.2f}" for n, c in told["c_n"].items())
    return [
        f"drafter auto is {choice.configuration.name} where decoding is {kind}, for "
        f"{place['name']} on {place['runtime']} {place['device']}, {place['precision']}, layout "
        f"{place['layout']}",
        f"measured {told['when']} on {machine['cpu']}, {machine['cores']} cores, in "
        f"{told['seconds']:.0f} s; prompts {settings['prompts']}, {settings['max_new_tokens']} "
        f"tokens each, temperature {settings['temperature']:g}",
        "",
        "finals, on prompts that the search did not see, against plain decoding:",
        table(told["finals"]),
        "",
        f"search, {len(search)} of {told['space']} configurations:",
        table(search, pruned),
        "",
        f"cost of a forward: {costs}",
        f"why: {told['why']}",
    ]


def table(rows: Sequence[Mapping[str, Any]], pruned: set[str] | None = None) -> str:
    """Rows as aligned text; sizes are nodes x depth."""
    body = [
        [
            row["drafter"],
            str(row["prompts"]) + (" (pruned)" if row["drafter"] in (pruned or ()) else ""),
            f"{row['speedup']:.2f}",
            f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}",
            f"{row['block_efficiency']:.2f}",
            f"{row['forward_cost']:.2f}",
        ]
        for row in rows
    ]
    return aligned([list(_TITLES), *body])


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['speedup']:.2f} times the speed"


def _work(row: Mapping[str, Any]) -> str:
    return (
        f"{row['block_efficiency']:.2f} tokens per forward, which costs {row['forward_cost']:.2f} "
        "times a plain one"
    )


def _change(share: float, less: str = "less") -> str:
    return f"{abs(share):.0%} {'more' if share >= 0 else less}"

"""The part of `paceline doctor --profile` that people read: where steps spend their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lines(profiles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Tables of steps taken apart, as `StepProfile.as_dict` gives them, by name."""
    out: list[str] = []
    for name, each in profiles.items():
        rows = f"{each['rows']} row{'s' * (each['rows'] > 1)}"
        out += [
            "",
            f"{name} step: {each['step_ms']:.2f} ms ({rows}, context {each['context']}, "
            f"faster half of {2 * each['steps']} steps)",
        ]
        width = max(map(len, each["parts"]))
        for part, figures in each["parts"].items():
            out.append(f"  {part:<{width}}  {figures['ms']:8.3f} ms  {figures['share']:6.1%}")
        total = each["closure"] * each["step_ms"]
        out.append(f"  {'sum of the parts':<{width}}  {total:8.3f} ms  {each['closure']:6.1%}")
        if each["counting_slowdown"] is not None:
            out.append(
                f"  counters changed the inference by {each['counting_slowdown']:+.1%}, and its "
                f"nodes account for {each['covered_by_nodes']:.1%} of it; their times are scaled "
                "to the inference without counters"
            )
        else:
            out.append("  this runtime does not count the time of its nodes")
    steps = [each["step_ms"] for each in profiles.values()]
    if len(steps) == 2:
        out += ["", f"a drafted step costs {steps[1] / steps[0]:.2f} plain ones"]
    return out

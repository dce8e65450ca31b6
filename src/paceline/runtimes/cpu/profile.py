"""Where a forward spends its time, by group of nodes, from the plugin's counters or our own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_PRODUCTS = {
    "qkv": "product qkv",
    "o": "product o",
    "gate_up": "product gate-up",
    "down": "product down",
    "embed": "product LM head",  # where it is tied
    "lm_head": "product LM head",
}
"""Group of a matrix product by the last part of its name in the graph."""

_OTHER_PRODUCT = "other products"

_KINDS = {
    "PagedAttentionExtension": "attention",
    "RMS": "norms",
    "RoPE": "rotary positions",
    "Gather": "gathers and splits",
    "VariadicSplit": "gathers and splits",
}
"""Group of other nodes by type."""

_REST = "element-wise"
"""Group of what is left: residuals, SwiGLU, scaling of the embedding."""

_OWN = {"attention": "PagedAttentionExtension", "gather": "Gather"} | dict.fromkeys(
    ("embedding", "paths", "likeliest"), ""
)
"""Types for our own operations but products, which are done with the norms and sums around them."""

GROUPS = (*dict.fromkeys((*_PRODUCTS.values(), _OTHER_PRODUCT, *_KINDS.values())), _REST)
"""All groups, in the order of a table."""


_WARM_UPS = 3
"""The first inferences prepare what the others find prepared."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Inferences with counters, on average.

    Attributes:
        seconds: of the whole inference, seen from outside.
        groups: seconds by group, in the order of `GROUPS`. The plugin counts whole microseconds,
            rounded down, so that hundreds of small nodes lack a few tenths of a millisecond.
    """

    seconds: float
    groups: dict[str, float]


class Counting(Protocol):
    """A compiled instance with counters."""

    seconds: float

    def nodes(self) -> Any:
        """Names, types and times of its nodes, each time the mean since it was compiled."""
        ...


def count(run: Callable[[], None], instance: Counting, runs: int) -> Counted:
    """Run an instance and average over `runs` inferences, those before them taken out again."""
    for _ in range(_WARM_UPS):
        run()
    before = _seconds_by_group(instance.nodes())
    total = 0.0
    for _ in range(runs):
        run()
        total += instance.seconds
    after = _seconds_by_group(instance.nodes())
    context_update = {
        name: max(0.0, (_WARM_UPS + runs) * after[name] - _WARM_UPS * before[name])
        for name in GROUPS
    }
    return Counted(total / runs, {name: seconds / runs for name, seconds in context_update.items()})


def group(name: str, kind: str) -> str:
    """The group of a node.

    Args:
        name: its friendly name; products have that of their weights, as "layers.3.qkv".
        kind: its type as the plugin has it.
    """
    product = _PRODUCTS.get(name.rsplit(".", 1)[-1])
    if kind.startswith(("FullyConnected", "MatMul")):
        return product or _OTHER_PRODUCT
    return _KINDS.get(kind, _REST)


def by_group(operations: Mapping[str, float]) -> dict[str, float]:
    """Seconds by group, from those of our own operations by name."""
    found: dict[str, float] = defaultdict(float)
    for name, seconds in operations.items():
        found[group(name, _OWN.get(name, "MatMul"))] += seconds
    return {name: found[name] for name in GROUPS}


def _seconds_by_group(nodes: Any) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for node in nodes:
        found[group(node.node_name, node.node_type)] += node.real_time.total_seconds()
    return {name: found[name] for name in GROUPS}

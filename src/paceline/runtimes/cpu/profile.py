"""Profile of a forward: seconds by group of nodes, from plugin counters or native timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# Groups of matmuls, by the last part of the weight's name.
_PRODUCTS = {
    "qkv": "product qkv",
    "o": "product o",
    "gate_up": "product gate-up",
    "down": "product down",
    "embed": "product LM head",  # where it is tied
    "lm_head": "product LM head",
}

_OTHER_PRODUCT = "other products"

# Groups of other nodes, by type.
_KINDS = {
    "PagedAttentionExtension": "attention",
    "RMS": "norms",
    "RoPE": "rotary positions",
    "Gather": "gathers and splits",
    "VariadicSplit": "gathers and splits",
}

# Everything else: residuals, SwiGLU, scaling of the embedding.
_REST = "element-wise"

# Types of native operations but matmuls, which include the norms and sums around them.
_OWN = {"attention": "PagedAttentionExtension", "gather": "Gather"} | dict.fromkeys(
    ("embedding", "paths", "likeliest"), ""
)

# All groups, in table order.
GROUPS = (*dict.fromkeys((*_PRODUCTS.values(), _OTHER_PRODUCT, *_KINDS.values())), _REST)


# The first inferences set up what later ones reuse.
_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Counted:
    """Mean profile of some inferences.

    Attributes:
        seconds: of the whole inference.
        groups: seconds by group, in the order of `GROUPS`. The plugin rounds every node down to
            whole microseconds, so the sum is too small.
    """

    seconds: float
    groups: dict[str, float]


class Counting(Protocol):
    """A compiled instance with counters."""

    seconds: float

    def nodes(self) -> Any:
        """Return name, type and time of each node; times are means since compilation."""
        ...


def count(run: Callable[[], None], instance: Counting, runs: int) -> Counted:
    """Run an instance and average over `runs` inferences, warm-ups subtracted."""
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
    """Return the group of a node.

    Args:
        name: its friendly name; matmuls have that of their weights, as "layers.3.qkv".
        kind: the plugin's node type.
    """
    product = _PRODUCTS.get(name.rsplit(".", 1)[-1])
    if kind.startswith(("FullyConnected", "MatMul")):
        return product or _OTHER_PRODUCT
    return _KINDS.get(kind, _REST)


def by_group(operations: Mapping[str, float]) -> dict[str, float]:
    """Sum native operation times by group."""
    found: dict[str, float] = defaultdict(float)
    for name, seconds in operations.items():
        found[group(name, _OWN.get(name, "MatMul"))] += seconds
    return {name: found[name] for name in GROUPS}


def _seconds_by_group(nodes: Any) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for node in nodes:
        found[group(node.node_name, node.node_type)] += node.real_time.total_seconds()
    return {name: found[name] for name in GROUPS}

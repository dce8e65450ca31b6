"""Profile of a forward: seconds by group of nodes, from plugin counters or native timers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

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
_NATIVE = {"attention": "PagedAttentionExtension", "gather": "Gather"} | dict.fromkeys(
    ("embedding", "paths", "likeliest"), ""
)

# All groups, in table order.
GROUPS = (*dict.fromkeys((*_PRODUCTS.values(), _OTHER_PRODUCT, *_KINDS.values())), _REST)


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


def native_kind(name: str) -> str:
    """Return the node type that corresponds to a native operation."""
    return _NATIVE.get(name, "MatMul")


def by_group(nodes: Iterable[tuple[str, str, float]]) -> dict[str, float]:
    """Sum seconds of nodes, given by name and type, by group."""
    found: dict[str, float] = defaultdict(float)
    for name, kind, seconds in nodes:
        found[group(name, kind)] += seconds
    return {name: found[name] for name in GROUPS}

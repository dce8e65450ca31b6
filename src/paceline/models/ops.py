"""Operations that models are written in; a backend evaluates or records them.

A model is a function over these, in one file by family (`models/families`). Rows are `[rows,
width]`. Names are those of `Weights`; matrix `NAME` may have a bias, `NAME.bias`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

# Rows of the backend.
Rows: TypeAlias = Any

Activation = Literal["silu", "gelu"]  # gelu: the tanh approximation


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions of the first `2 * len(frequencies)` numbers of a head, in halves.

    Attributes:
        frequencies: radians per position, after context extension.
        factor: of cosines and sines (YaRN, section 3.4).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer.

    Attributes:
        width: of a head.
        scale: of the scores.
        rotary: None for a layer without positions.
        window: newest keys that a row sees, its own included; 0 for all.
        query_norm: name of the RMS norm of each query head, if any; likewise `key_norm`.
    """

    heads: int
    kv_heads: int
    width: int
    scale: float
    rotary: Rotary | None
    window: int = 0
    query_norm: str | None = None
    key_norm: str | None = None


class Ops(Protocol):
    """A backend. Norms are RMS norms with the model's epsilon."""

    def embed(self, scale: float = 1.0) -> Rows:
        """Return the embeddings of this forward's rows; rows that carry one are not scaled."""
        ...

    def norm(self, x: Rows, name: str, *, plus: Rows | None = None) -> Rows:
        """Return the norm of `x`, added to `plus` if given."""
        ...

    def linear(
        self,
        x: Rows,
        names: Sequence[str],
        *,
        norm: str | None = None,
        scale: float = 1.0,
        plus: Rows | None = None,
    ) -> Rows:
        """Multiply by matrices `[out, in]`, their results side by side; `norm` comes before.

        Returns `plus + scale * results`.
        """
        ...

    def gated(
        self, x: Rows, gate: str, up: str, *, activation: Activation, norm: str | None = None
    ) -> Rows:
        """Return `activation(x @ gate) * (x @ up)`; `norm` comes before."""
        ...

    def attend(self, layer: int, x: Rows, heads: Heads) -> Rows:
        """Store keys and values in the cache of `layer`, and attend to what each row sees.

        `x` holds queries `[heads * width]`, keys and values `[kv_heads * width]` side by side.
        """
        ...

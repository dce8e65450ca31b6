"""Operations that models are written in; a backend evaluates or records them.

A model is a function over these, in one file by family (`models/families`). Rows are `[rows,
width]`. Names are those of `Weights`; matrix `NAME` may have a bias, `NAME.bias`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from paceline.errors import ModelError

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


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts of one layer.

    Attributes:
        count: of the experts.
        used: a row uses so many, those with the largest softmax scores, of equal ones the first;
            0: all with scores above zero, whose weights are the RMS norm of those scores.
        sum_to_one: the weights that are used do, after a softmax.
        gated: experts are gated linears; else `activation(x @ up) @ down`.
        every: read all for every row, to the same bits: what the saving is measured against.
    """

    count: int
    used: int = 0
    sum_to_one: bool = False
    gated: bool = True
    every: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.used <= self.count or self.count < 1:
            raise ModelError(f"a row cannot use {self.used} of {self.count} experts")


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

    def route(self, x: Rows, name: str, experts: Experts) -> Rows:
        """Return the weights of a row's experts, `[rows, count]`, 0 for those it does not use.

        `name` is that of the router's matrix; its norm, if any, is `NAME_norm`.
        """
        ...

    def mix(
        self,
        x: Rows,
        weights: Rows,
        name: str,
        experts: Experts,
        *,
        activation: Activation,
        plus: Rows,
    ) -> Rows:
        """Return `plus` and the weighted sum of the experts of each row, in order of their numbers.

        Matrices are `NAME.E.gate`, `NAME.E.up` and `NAME.E.down` of expert E.
        """
        ...

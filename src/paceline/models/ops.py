"""Operations that models and drafter networks are written in; a backend evaluates or records them.

A model is a function over these, in one file by family (`models/families`), and so is a network
(`networks`). Names are those of its weights; matrix `NAME` may have a bias, `NAME.bias`.

Rows of a model are `[rows, width]`. A network's are of two kinds. Context rows are committed
tokens: the features of position t and the token of t + 1. Draft rows, with one more axis of slots,
are drafted after a context row: after every position in training (`[batch, time, slots, width]`),
after the last in decoding (`[sequences, slots, width]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from paceline.core.types import IntArray, LogitArray
from paceline.errors import ModelError

# Rows of the backend; + and * work elementwise on those of a network.
Rows: TypeAlias = Any

# Of weights.
Name: TypeAlias = str | None
Names: TypeAlias = Sequence[str]

# gelu: the tanh approximation. relu2: see `Ops.relu2`. clamped: gpt-oss's, see `Ops.gated`.
Activation = Literal["silu", "gelu", "relu2", "clamped"]

# What rows see. In a picture a line is a row, and its crosses are keys: of context rows (three in
# all), then of draft rows of steps before (two), then of its own step (two).
#
#     "context"   "last"      "draft"          "block"          "slots"
#      x . .
#      x x .
#      x x x       x x x       xxx | xx | x .   xxx | xx | x x   ... | .. | x x
#                              xxx | xx | x x   xxx | xx | x x   ... | .. | x x
#
# In a model "context" is what its request says (`core.target.row_mask`). "last" is "context" of
# which the newest rows alone are read from there on; they see one another both ways. "slots" have
# no positions and no cache. "root" is for keys of a target alone, of which draft rows see all: each
# stands where the root does, behind them.
Sight = Literal["context", "last", "draft", "block", "slots", "root"]


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
class Temperature:
    """Queries grow with their position, beside the scale of the scores.

    Attributes:
        span: positions that share a factor.
        factors: of queries at positions from 0 on; later ones have the last.
    """

    span: int
    factors: tuple[float, ...]

    def at(self, positions: IntArray) -> LogitArray:
        """Return the factors at some positions."""
        return np.array(self.factors, np.float32).take(positions // self.span, mode="clip")


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer.

    Attributes:
        width: of a head.
        scale: of the scores.
        rotary: None for a layer without positions.
        window: newest keys that a row sees, its own included; 0 for all.
        query_norm: name of the RMS norm of each query head, if any; likewise `key_norm`.
        temperature: of queries, by position; None for none.
        sinks: name of `[heads]` scores of no key, which come before those of keys in the softmax
            and are dropped behind it, if any (Xiao et al. 2024, arXiv:2309.17453).
        value_norm: values have one too, without weights.
    """

    heads: int
    kv_heads: int
    width: int
    scale: float
    rotary: Rotary | None
    window: int = 0
    query_norm: str | None = None
    key_norm: str | None = None
    temperature: Temperature | None = None
    sinks: str | None = None
    value_norm: bool = False


@dataclass(frozen=True, slots=True)
class KV:
    """Keys and values that others have stored, for queries that bring none.

    Attributes:
        layer: whose cache; -1 is the last.
        target: that of the target beside a network, of which a row sees the whole context, and no
            draft; else of the model or network itself.
        memory: the one that an encoder wrote for a sequence, of which a row sees all.
    """

    layer: int
    target: bool = False
    memory: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts of one layer.

    Attributes:
        count: of the experts.
        used: a row uses so many, those with the largest softmax scores, of equal ones the first;
            0: all with scores above zero, whose weights are the RMS norm of those scores.
        sum_to_one: the weights that are used do.
        sigmoid: scores are sigmoids, not a softmax; the largest are found with the router's vector
            `NAME_offset` added, and weigh without it.
        factor: of the weights that are used, at last.
        groups: of neighbouring experts, from those of which the two best have the largest sums the
            used ones are.
        groups_used: how many; `groups` for all.
        gated: experts are gated linears; else `activation(x @ up) @ down`.
        shared: a gated linear that all rows use stands beside them.
        latent: numbers that experts read and give, between matrices "experts_in" and "experts_out"
            of their layer; 0 for those of a row, without these.
        every: read all for every row, to the same bits: what the saving is measured against.
    """

    count: int
    used: int = 0
    sum_to_one: bool = False
    sigmoid: bool = False
    factor: float = 1.0
    gated: bool = True
    shared: bool = False
    groups: int = 1
    groups_used: int = 1
    latent: int = 0
    every: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.used <= self.count or self.count < 1:
            raise ModelError(
                f"a row cannot use {self.used} of {self.count} experts: download the model again"
            )
        size, rest = divmod(self.count, self.groups)
        some = self.groups_used < self.groups
        if some and (rest or size < 2 or self.used > size * self.groups_used):
            raise ModelError(
                f"a row cannot use {self.used} experts of {self.groups_used} of {self.groups} "
                f"groups of {self.count}: download the model again"
            )


@dataclass(frozen=True, slots=True)
class StateHeads:
    """Heads of a layer that reads and changes a state, `Ops.delta` or `Ops.scan`.

    Attributes:
        key_heads: heads of queries and keys.
        value_heads: a multiple of these.
        key_width: of a head's queries and keys.
        value_width: of a head's values.
        taps: rows that the convolution before them reads, the last its own.
        tiled: value head j reads key head `j % key_heads`; else neighbours share one.
    """

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int
    tiled: bool = False

    def __post_init__(self) -> None:
        if self.key_heads < 1 or self.value_heads % self.key_heads or self.taps < 2:
            raise ModelError(
                f"{self.value_heads} value heads over {self.key_heads} key heads with {self.taps} "
                "taps change no state: download the model again"
            )

    @property
    def keys(self) -> int:
        """Numbers of a row's keys."""
        return self.key_heads * self.key_width

    @property
    def values(self) -> int:
        """Numbers of a row's values, and of what it gives."""
        return self.value_heads * self.value_width

    def key_head(self, value_head: int) -> int:
        """Return the key head that a value head reads."""
        if self.tiled:
            return value_head % self.key_heads
        return value_head // (self.value_heads // self.key_heads)


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Numbers that multiply what goes in and out of the parts of a layer (Falcon H1).

    Attributes:
        scanned: values, keys and queries of the scan, before the convolution.
        gated: what gates the scan; likewise `steps`.
        scan: what the scan gives; likewise `attention`.
        gate: of the feed-forward block, before its activation; `down` is of what it gives.
        normed: what the scan gives is normed behind its gate.
    """

    scanned: tuple[float, float, float]
    gated: float
    steps: float
    scan: float
    attention: float
    gate: float
    down: float
    normed: bool


def square_rows(rows: int, grid: int, side: int) -> list[IntArray]:
    """Return which of so many rows are the first of each square of `Ops.squares`, the second..."""
    corners = (np.arange(0, grid, side)[:, None] * grid + np.arange(0, grid, side)).ravel()
    first = rows - grid * grid
    return [first + corners + line * grid + column for line, column in np.ndindex(side, side)]


class Ops(Protocol):
    """A backend. Norms have the model's epsilon.

    A norm `NAME` is an RMS norm, or, if there is a `NAME.bias`, a layer norm: numbers less their
    mean are normed, and the bias is added (Ba et al. 2016, arXiv:1607.06450).
    """

    def weight(self, name: str) -> Rows:
        """Return a parameter that is no matrix, to be added or multiplied with."""
        ...

    def embed(self, tokens: Rows, scale: float = 1.0, table: str = "embed") -> Rows:
        """Return the embeddings of token ids, `[..., width]`; rows that carry one are not scaled.

        The backend knows what tokens are; for a network they are those of `Network.start`. Rows of
        another table are read from the model's file, with the numbers that it has there, unless the
        table is a network's own.
        """
        ...

    def norm(self, x: Rows, name: str, *, residual: Rows = None, heads: int = 1) -> Rows:
        """Return the norm of `x`, or of each of its heads, added to `residual` if given.

        Heads share their weights, unless there are some for each.
        """
        ...

    def linear(
        self, x: Rows, names: Names, *, norm: Name = None, scale: float = 1.0, residual: Rows = None
    ) -> Rows:
        """Multiply by matrices `[out, in]`, their results side by side; `norm` comes before.

        Returns `residual + scale * results`.
        """
        ...

    def gated(
        self, x: Rows, names: Names, *, activation: Activation = "silu", norm: Name = None
    ) -> Rows:
        """Return `activation(x @ gate) * (x @ up)`; `norm` comes before.

        `names` are those of both matrices, or of one that has both, the gate's outputs first.
        "clamped" is of both, `g * sigmoid(1.702 g) * (u + 1)` of `g` up to 7 and `u` from -7 to 7.
        """
        ...

    def head(self, x: Rows, *, norm: str | None = None, scale: float = 1.0) -> Rows:
        """Return `scale` times the logits by the LM head; `norm` comes before.

        A network has the columns of its draft vocabulary.
        """
        ...

    def silu(self, x: Rows) -> Rows: ...

    def tanh(self, x: Rows) -> Rows: ...

    def gelu(self, x: Rows, *, exact: bool = False) -> Rows:
        """Return GELU by its tanh, or if `exact` by the error function."""
        ...

    def placed(self, x: Rows, table: str) -> Rows:
        """Return rows with those of a table added that their positions name.

        The table is read from the model's file, with the numbers that it has there.
        """
        ...

    def neighbours(self, x: Rows, stride: int = 1) -> Rows:
        """Return of every `stride`-th row the one before, itself and the one behind, side by side.

        Rows beyond both ends, or that do not count as heard yet, are zeros. A matrix over them is a
        convolution of three taps.
        """
        ...

    def squares(self, x: Rows, grid: int, side: int) -> Rows:
        """Return of each square of `side` x `side` rows those rows side by side, line by line.

        The last `grid` x `grid` rows are a picture's, line by line; those before are left out.
        """
        ...

    def times(self, x: Rows, by: str | float) -> Rows:
        """Return `x` times a number, or the only one of a parameter of that name."""
        ...

    def relu2(self, x: Rows) -> Rows:
        """Return the squares of the numbers above zero, and 0 for others (So et al. 2021)."""
        ...

    def gate(self, x: Rows, by: Rows) -> Rows:
        """Return `x * sigmoid(by)`, elementwise, or a row by the one number that `by` has."""
        ...

    def concat(self, parts: Sequence[Rows]) -> Rows: ...

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]: ...

    def last(self, x: Rows, count: int = 1) -> Rows:
        """Return draft rows of `count` slots, the context rows up to those that drafts start after.

        The first row of a text stands for those before it. Above 1 a network sets `overlap`.
        """
        ...

    def slots(self, x: Rows, count: int) -> Rows:
        """Return draft rows of `count` slots, `[..., count, width]`, with the same numbers."""
        ...

    def attend(
        self, kv: int | KV, x: Rows, heads: Heads, sees: Sight = "context", newest: int = 1
    ) -> Rows:
        """Attend to what each row sees, and return `[..., heads * width]`.

        Args:
            kv: a layer, whose cache takes keys and values of `x` first; or who stored them.
            x: queries `[heads * width]`, keys and values `[kv_heads * width]` side by side; of a
                `KV` queries alone, with "last" those of the rows that `last` gives.
            heads: shape; a `KV` has that of its layer.
            sees: see `Sight`. Positions of draft rows are consecutive, from the one after the last
                context row.
            newest: with "last", how many rows are returned, as by `last`.

        Raises RuntimeUnavailable if no target lends its keys and values.
        """
        ...

    def store(self, layer: int, kv: Rows, heads: Heads) -> None:
        """Write keys and values, side by side, to a layer of the memory that is being made."""
        ...

    def convolve(self, layer: int, x: Rows, name: str, *, activated: bool = True) -> Rows:
        """Return a causal convolution of each column, `name`'s weights `[width, taps]`.

        Sums begin with "NAME.bias", if there is one. SiLU comes after, if `activated`.

        A row reads itself and the rows before it on its path, the oldest first; those before a
        text are zeros. The last of a sequence are kept in state `layer`.
        """
        ...

    def delta(self, layer: int, x: Rows, gates: Rows, name: str, of: StateHeads) -> Rows:
        """Return what queries read of state `layer`, which each row of a path changes in turn.

        The gated delta rule (Yang, Kautz and Hatamizadeh 2025, arXiv:2412.06464).

        `x` holds queries and keys `[keys]` and values `[values]` side by side, `gates` strength
        and decay `[value_heads]`. Vectors `NAME_rate` and `NAME_dt` are of the value heads. With
        queries and keys of length 1, of which queries are divided by the root of their width,
        `S = a S + k (sigmoid(strength) (v - (a S)' k))'`, where `a = exp(rate softplus(decay +
        dt))`; the result is `S' q`.
        """
        ...

    def scan(self, layer: int, x: Rows, steps: Rows, name: str, of: StateHeads) -> Rows:
        """Return what queries read of state `layer`, which each row of a path changes in turn.

        The state-space scan of Mamba 2 (Dao and Gu 2024, arXiv:2405.21060), in the words of
        `delta`.

        `x` holds values `[values]`, keys and queries `[keys]` side by side, `steps` a number of
        each value head; so do vectors `NAME_rate`, `NAME_dt` and `NAME_skip`. With `t =
        softplus(step + dt)` the state is `S = exp(rate t) S + k (t v)'`; the result is `S' q +
        skip v`.
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
        activation: Activation,
        residual: Rows = None,
    ) -> Rows:
        """Return the weighted sum of each row's experts, in order of their numbers, and `residual`.

        Matrices are `NAME.E.gate`, `NAME.E.up` and `NAME.E.down` of expert E.
        """
        ...

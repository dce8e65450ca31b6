"""Operations of drafter networks: the backend protocol of native kernels and PyTorch.

Context rows are committed tokens: the features of position t and the token of t + 1. Draft rows,
with one more axis of slots, are drafted after a context row: after every position in training
(`[batch, time, slots, width]`), after the last in decoding (`[sequences, slots, width]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

# A tensor of the backend; + and * work elementwise.
Rows: TypeAlias = Any

# "context": context rows see those up to themselves. "last": so do they, and only what `last` gives
# of the results is returned. "draft": draft rows see the context and all draft rows so far up to
# themselves. "block": so do they, and all of their own step. "again": what `last` gives of the
# context, as a block: all of it sees the context up to the newest of its rows. "slots": draft rows
# see one another, without positions or a cache.
Sight = Literal["context", "last", "draft", "block", "again", "slots"]


class Ops(Protocol):
    """A backend. Names are those of the network's parameters (`Network.shapes`)."""

    def weight(self, name: str) -> Rows: ...

    def norm(self, x: Rows, name: str) -> Rows: ...

    def linear(
        self, x: Rows, name: str, *, norm: str | None = None, plus: Rows | None = None
    ) -> Rows:
        """Return `plus` and `x` times matrix `name`, `[out, in]`; `norm` comes before."""
        ...

    def gated(self, x: Rows, name: str, *, norm: str | None = None) -> Rows:
        """Return `silu(x @ gate) * (x @ up)`, halves of matrix `name`; `norm` comes before."""
        ...

    def silu(self, x: Rows) -> Rows: ...

    def lstm_gate(self, gate: Rows, x: Rows) -> Rows:
        """Return `sigmoid(gate) * tanh(x)`, elementwise."""
        ...

    def concat(self, parts: Sequence[Rows]) -> Rows: ...

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]: ...

    def embed(self, tokens: Rows) -> Rows:
        """Return the target's frozen embeddings of token ids, `[..., width]`."""
        ...

    def embed_windows(self, tokens: Rows) -> Rows:
        """Return context rows `[..., window * width]` of `[..., window]` token ids."""
        ...

    def head(self, x: Rows, *, norm: str | None = None) -> Rows:
        """Return logits by the target's LM head, `[..., draft vocabulary]`; `norm` comes before."""
        ...

    def last(self, x: Rows, count: int = 1) -> Rows:
        """Return draft rows of `count` slots, the context rows up to those that drafts start after.

        The first row of a text stands for those before it. Above 1 a network sets `overlap`.
        """
        ...

    def slots(self, x: Rows, count: int) -> Rows:
        """Return `[..., count, width]` from draft rows of one slot, `[..., 1, count * width]`."""
        ...

    def attend(self, layer: int, x: Rows, sees: Sight) -> Rows:
        """Attend, `Network.reach` rows back, with rotary positions; return `[..., heads * width]`.

        `x` holds queries `[heads * head_dim]`, keys and values `[kv_heads * head_dim]` side by
        side. Positions of draft rows are consecutive, from the one after the last context row.
        """
        ...

    def know_target(self, make: Callable[[Ops], tuple[Rows, Rows]]) -> None:
        """Provide the target's keys and values of new context rows to `attend_target`.

        `make` computes them, `[..., kv_heads * head_dim]` each, where no target runs beside the
        network, with operations that have caches of their own and no window. Raises
        RuntimeUnavailable if the target does not share its KV cache.
        """
        ...

    def attend_target(self, queries: Rows) -> Rows:
        """Attend to the target's keys and values up to each of the rows that `attend` returned.

        In decoding these are draft rows, or the newest of the context, after `attend` with "last".
        """
        ...

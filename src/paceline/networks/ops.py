"""The few operations that drafter networks are written in, whatever runs them.

There are two kinds of rows. A *context row* is a committed token: the features of position t and
the token of t + 1; if the network reads no features, the text's first token has a row, too. A
*draft row* has one more axis, of slots: what the network drafts behind one
context row. PyTorch trains with `[batch, time, width]` context rows and `[batch, time, slots,
width]` draft rows, so that a draft starts behind every position at once; at decoding, draft rows
are `[sequences, slots, width]` and start behind each sequence's last context row. A network sees
the last axes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

Rows: TypeAlias = Any
"""A tensor of the backend. Sums and products of two are written with + and *."""


class Ops(Protocol):
    """A backend. Names are those of the network's parameters (`Network.shapes`)."""

    def weight(self, name: str) -> Rows:
        """A parameter as it is; its axes are aligned with the last axes of rows."""
        ...

    def linear(self, x: Rows, name: str) -> Rows:
        """`[..., out]` from `[..., in]` by matrix `name`, `[out, in]`."""
        ...

    def norm(self, x: Rows, name: str) -> Rows:
        """RMS norm over the last axis, times weight `name`."""
        ...

    def silu(self, x: Rows) -> Rows:
        """x sigmoid(x)."""
        ...

    def concat(self, parts: Sequence[Rows]) -> Rows:
        """Side by side on the last axis."""
        ...

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]:
        """Parts of the last axis."""
        ...

    def embed(self, tokens: Rows) -> Rows:
        """The target's embeddings of token ids, `[..., width]`; frozen."""
        ...

    def embed_windows(self, tokens: Rows) -> Rows:
        """Context rows `[..., window * width]` of `[..., window]` token ids, side by side."""
        ...

    def head(self, x: Rows) -> Rows:
        """Logits over the draft vocabulary by the target's LM head, `[..., draft vocabulary]`."""
        ...

    def last(self, x: Rows) -> Rows:
        """Draft rows of one slot from context rows: those that drafts start behind."""
        ...

    def slots(self, x: Rows, count: int) -> Rows:
        """`[..., count, width]` from draft rows of one slot, `[..., 1, count * width]`."""
        ...

    def attend_context(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Causal attention among context rows, `Network.reach` back, with rotary positions.

        Args:
            layer: which of the network's caches.
            queries: `[..., heads * head_dim]`.
            keys: `[..., kv_heads * head_dim]`.
            values: like `keys`.
        """
        ...

    def attend_draft(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Attention of draft rows over the context, earlier draft rows, and themselves causally,
        `Network.reach` back.

        Rows are at consecutive positions, the first at that behind the last context row.
        """
        ...

    def know_target(self, make: Callable[[], tuple[Rows, Rows]]) -> None:
        """Come to know the target's own keys and values of new context rows, in one layer.

        Where the target runs beside the network they are read where it keeps them.

        Args:
            make: computes them, `[..., kv_heads * head_dim]` each, where there is no target.

        Raises:
            RuntimeUnavailable: the target lends none.
        """
        ...

    def attend_target(self, queries: Rows) -> Rows:
        """Attention over the target's own keys and values of the context, up to each row.

        Args:
            queries: `[..., heads * head_dim]` of the rows that attended last, at their positions.
        """
        ...

    def attend_slots(self, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Attention of draft rows over one another, both ways; without positions or a cache."""
        ...

"""Operations of drafter networks: the backend protocol of native kernels and PyTorch.

Context rows are committed tokens: the features of position t and the token of t + 1. Draft rows,
with one more axis of slots, are drafted after a context row: after every position in training
(`[batch, time, slots, width]`), after the last in decoding (`[sequences, slots, width]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

# A tensor of the backend; + and * work elementwise.
Rows: TypeAlias = Any


class Ops(Protocol):
    """A backend. Names are those of the network's parameters (`Network.shapes`)."""

    def weight(self, name: str) -> Rows: ...

    def linear(self, x: Rows, name: str) -> Rows:
        """Multiply by matrix `name`, `[out, in]`."""
        ...

    def norm(self, x: Rows, name: str) -> Rows: ...

    def silu(self, x: Rows) -> Rows: ...

    def concat(self, parts: Sequence[Rows]) -> Rows: ...

    def split(self, x: Rows, sizes: Sequence[int]) -> list[Rows]: ...

    def embed(self, tokens: Rows) -> Rows:
        """Return the target's frozen embeddings of token ids, `[..., width]`."""
        ...

    def embed_windows(self, tokens: Rows) -> Rows:
        """Return context rows `[..., window * width]` of `[..., window]` token ids."""
        ...

    def head(self, x: Rows) -> Rows:
        """Return logits by the target's LM head, `[..., draft vocabulary]`."""
        ...

    def last(self, x: Rows) -> Rows:
        """Return draft rows of one slot from the context rows that drafts start after."""
        ...

    def slots(self, x: Rows, count: int) -> Rows:
        """Return `[..., count, width]` from draft rows of one slot, `[..., 1, count * width]`."""
        ...

    def attend_context(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Attend causally among context rows, `Network.reach` back, with rotary positions.

        Queries are `[..., heads * head_dim]`, keys and values `[..., kv_heads * head_dim]`.
        """
        ...

    def attend_draft(self, layer: int, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Attend to the context and, causally, to all draft rows so far, `Network.reach` back.

        Positions are consecutive, from the one after the last context row.
        """
        ...

    def know_target(self, make: Callable[[], tuple[Rows, Rows]]) -> None:
        """Provide the target's keys and values of new context rows to `attend_target`.

        `make` computes them, `[..., kv_heads * head_dim]` each, where no target runs beside the
        network. Raises RuntimeUnavailable if the target does not share its KV cache.
        """
        ...

    def attend_target(self, queries: Rows) -> Rows:
        """Attend to the target's keys and values up to each of the rows that attended last."""
        ...

    def attend_slots(self, queries: Rows, keys: Rows, values: Rows) -> Rows:
        """Attend among draft rows both ways, without positions or a cache."""
        ...

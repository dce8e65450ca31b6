"""The contract of a target: one ragged forward over committed tokens and drafts, and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from paceline.errors import InvalidOption
from paceline.types import Capabilities, Layout, LogitArray, TokenTree


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How a runtime is asked to load a model; None leaves the choice to the runtime.

    Attributes:
        device: "cpu", "cuda" or "cuda:N".
        precision: of weights and activations; every runtime lists its own on a wrong one.
        layout: tree layout, where the runtime has more than one.
        threads: CPU threads.
        max_context: longest sequence, at most the model's own.
        kv_tokens: tokens that all sequences together may have cached, where the runtime's memory
            has a limit. A sequence is no longer than that either.
        prefix_tokens: of these, how many are kept of ended requests for others that begin alike;
            0 shares nothing.
        kv_precision: of the key-value cache, where the runtime has more than one: "fp32", "fp16",
            "bf16", or "u8" (lossy).
    """

    device: str | None = None
    precision: str | None = None
    layout: Layout | None = None
    threads: int | None = None
    max_context: int | None = None
    kv_tokens: int | None = None
    prefix_tokens: int | None = None
    kv_precision: str | None = None

    def limit(self, context: int) -> int:
        """The longest sequence for a model whose own context is `context`.

        Raises:
            InvalidOption: the limit asked for is below 2 (a prompt token and a generated one).
        """
        if self.max_context is None:
            return context
        if self.max_context < 2:
            raise InvalidOption(f"max_context must be 2 or more, not {self.max_context}")
        return min(self.max_context, context)


DEFAULT_OPTIONS = RuntimeOptions()
"""Every choice left to the runtime."""


class Cache(Protocol):
    """Keys and values of one sequence inside a target. Opaque but for its length."""

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        ...


class Pass(NamedTuple):
    """One sequence's share of a forward.

    Attributes:
        cache: the sequence's cache, holding the tokens before `pending`.
        pending: committed tokens that are not cached yet, at least one; the last is the root.
            More than one stands here when a drafter lags behind its target.
        draft: proposed tokens under the root, or None for a plain step.
        hidden: whether hidden states are wanted as well.
        features: whether features are wanted, of the pending tokens too.
        likeliest: whether the likeliest tokens would save somebody looking for them.
    """

    cache: Any
    pending: Sequence[int]
    draft: TokenTree | None = None
    hidden: bool = False
    features: bool = False
    likeliest: bool = False


class Output(NamedTuple):
    """What a forward says of one sequence. Row 0 is the root, row i + 1 is node i of the draft.

    Attributes:
        logits: float32 `[1 + nodes, vocabulary]`; a view that the next forward may overwrite.
            Strict tests run models in float64 and get float64 rows.
        hidden: float32 `[1 + nodes, hidden_size]` before the LM head (after the final norm), if
            asked for.
        features: float32 `[pending + nodes, 4 * hidden_size]`, if asked for: side by side, what
            enters each of `Capabilities.feature_layers`, and the final hidden state; all pending
            tokens come first, then the nodes. A view like `logits`.
        likeliest: by row the token with the largest logit, of equal ones the first, or -1: to be
            looked for. Empty where the runtime does not say, or was not asked.
    """

    logits: LogitArray
    hidden: LogitArray | None = None
    features: LogitArray | None = None
    likeliest: Sequence[int] = ()


class Target(Protocol):
    """A model on a runtime: the thing whose output law is promised.

    A step is `forward` then, for each sequence, `keep`: `forward` writes keys and values of the
    pending tokens and of the draft behind the cached prefix, and `keep` makes the pending tokens
    and the accepted path part of the prefix and drops the rest. Without `keep` nothing changed.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this target can do."""
        ...

    def warm_up(self) -> None:
        """Do now what would otherwise be done, more slowly, at first use; before measurements."""
        ...

    def open(self) -> Any:
        """A new, empty cache."""
        ...

    def prefill(
        self, cache: Any, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` to the cache in chunks, computing no logits.

        Returns:
            Features `[tokens, 4 * hidden_size]` (see `Output.features`) if asked for, or None.

        Raises:
            OutOfMemory: the cache has no room.
        """
        ...

    def forward(self, passes: Sequence[Pass], rows: int = 0) -> list[Output]:
        """One ragged forward over all `passes`, in order.

        Args:
            passes: one per sequence.
            rows: a hint for runtimes that pad (`Capabilities.row_buckets`): the size to keep to
                if the passes have no more rows. It changes the time taken, never a result.
        """
        ...

    def keep(self, cache: Any, pending: int, path: Sequence[int]) -> None:
        """Commit the last forward's `pending` tokens and the nodes of `path` to `cache`."""
        ...

    def truncate(self, cache: Any, length: int) -> None:
        """Forget all cached tokens from position `length` on."""
        ...

    def fork(self, cache: Any) -> Any:
        """An independent cache with the same content."""
        ...

    def release(self, cache: Any) -> None:
        """Give the cache's memory back; the cache must not be used again."""
        ...

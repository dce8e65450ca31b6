"""Target contract: one ragged forward over committed tokens and draft trees, and its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.core.options import NAMED, among, at_least, check_fields
from paceline.core.types import BoolArray, Capabilities, IntArray, LogitArray, TokenTree
from paceline.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Options of a runtime; None leaves the choice to it.

    Raises InvalidOption for values that no runtime has.
    """

    device: Annotated[str | None, "cpu or cuda; default by runtime.", NAMED] = None
    precision: Annotated[
        str | None,
        "On cpu: file (weights as stored), int8, int4, fp32; else fp32 or bf16.",
        NAMED,
    ] = None
    threads: Annotated[int | None, "CPU threads.", at_least(1)] = None
    max_context: Annotated[int | None, "Longest sequence in tokens.", at_least(2)] = None
    kv_tokens: Annotated[
        int | None, "Size of the key-value cache in tokens, over all requests."
    ] = None
    prefix_tokens: Annotated[
        int | None, "Least part of it kept for later prompts; 0 keeps none."
    ] = None
    kv_precision: Annotated[
        str | None, "Of the key-value cache on runtime cpu: fp16 or fp32.", among("fp16", "fp32")
    ] = None

    def __post_init__(self) -> None:
        check_fields(self)

    def limit(self, context: int) -> int:
        """Return the longest sequence for a model with that context."""
        return context if self.max_context is None else min(self.max_context, context)


DEFAULT_OPTIONS = RuntimeOptions()


class Cache(Protocol):
    """Keys and values of one sequence in a target. Opaque except for its length in tokens."""

    @property
    def length(self) -> int: ...


class Pass(NamedTuple):
    """One sequence's part of a forward.

    Attributes:
        cache: holds the tokens before `pending`.
        pending: committed tokens not cached yet, at least one; the last is the root. More than one
            if a draft model lags its target.
        hidden: return hidden states of root and nodes.
        features: return features, of the pending tokens too.
        argmax: a hint: the caller can use argmax tokens.
    """

    cache: Any
    pending: Sequence[int]
    draft: TokenTree | None = None
    hidden: bool = False
    features: bool = False
    argmax: bool = False


class Output(NamedTuple):
    """Result of a forward for one sequence. Row 0 is the root, row i + 1 is node i of the draft.

    Attributes:
        logits: float32 `[1 + nodes, vocabulary]`, a view that the next forward may overwrite.
            float64 for models in float64 (strict tests).
        hidden: float32 `[1 + nodes, hidden_size]` after the final norm, before the LM head.
        features: float32 `[pending + nodes, 4 * hidden_size]`: the inputs of each of
            `Capabilities.feature_layers` and the final hidden state, concatenated. A view.
        argmax: argmax per row, ties to the lowest id, or -1 if unknown; may be empty.
    """

    logits: LogitArray
    hidden: LogitArray | None = None
    features: LogitArray | None = None
    argmax: Sequence[int] = ()


# A layer by index, or one half of it.
Half = Literal["attention", "feed-forward"]
Layer = int | tuple[int, Half]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of one sequence that are no chain with a tree: masks, blocks, other orders, repeats.

    Attributes:
        cache: of the sequence.
        tokens: int64 `[rows]`, ids.
        positions: int64 `[rows]`; they may repeat.
        sees: bool `[rows, rows]`, the rows that each row sees; its own is among them.
        cached: int64 `[rows]`, how many cached keys a row sees, from the first; None for all.
        inputs: float32 `[rows, hidden_size]`, in place of the tokens' embeddings: embeddings, or
            `BlockOutput.state` of the layers before.
        wanted: int64 `[wanted]`, ascending rows whose logits are asked for; None for all.
        pending: how many rows, from the first, `keep` gets as pending tokens and not in its path.
    """

    cache: Any
    tokens: IntArray
    positions: IntArray
    sees: BoolArray
    cached: IntArray | None = None
    inputs: LogitArray | None = None
    wanted: IntArray | None = None
    pending: int = 0

    @property
    def wanted_rows(self) -> IntArray:
        return np.arange(len(self.tokens)) if self.wanted is None else self.wanted

    @classmethod
    def chain(cls, cache: Any, tokens: Sequence[int], inputs: LogitArray | None = None) -> Block:
        """Return the rows of committed tokens after the cached ones."""
        ids = np.asarray(tokens, dtype=np.int64)
        places = np.arange(cache.length, cache.length + len(ids), dtype=np.int64)
        return cls(cache, ids, places, np.tri(len(ids), dtype=np.bool_), None, inputs)


class BlockOutput(NamedTuple):
    """Result of a block.

    Attributes:
        logits: float32 `[wanted, vocabulary]`, of the final norm and head over `state`.
        state: float32 `[rows, hidden_size]`, after the layers that were run.
    """

    logits: LogitArray
    state: LogitArray


class Target(Protocol):
    """A model on a runtime. Lossless rules preserve its output distribution.

    A step is `forward`, then `keep` per sequence. `forward` writes keys and values of pending
    tokens and drafts after the cached prefix. `keep` appends the pending tokens and the accepted
    path to the prefix and drops the rest. Without `keep` the cache is unchanged.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def warm_up(self) -> None:
        """Do all lazy initialisation now, before measurements."""
        ...

    def open(self) -> Any: ...

    def prefill(
        self, cache: Any, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks, without logits; return their `Output.features` if requested.

        Raises OutOfMemory if the cache has no room.
        """
        ...

    def forward(self, passes: Sequence[Pass]) -> list[Output]:
        """Run one ragged forward over all `passes`, in order."""
        ...

    def keep(self, cache: Any, pending: int, path: Sequence[int]) -> None:
        """Commit the last forward's `pending` tokens and the nodes of `path` to `cache`.

        Of a block `path` names any of the rows behind `Block.pending`.
        """
        ...

    def truncate(self, cache: Any, length: int) -> None:
        """Drop all cached tokens from position `length` on."""
        ...

    def fork(self, cache: Any) -> Any:
        """Return an independent cache with the same content."""
        ...

    def release(self, cache: Any) -> None:
        """Free the cache; it must not be used again."""
        ...


class BlockTarget(Target, Protocol):
    """A target with `Capabilities.blocks`."""

    def forward_blocks(
        self, blocks: Sequence[Block], layers: Sequence[Layer] | None = None, logits: bool = True
    ) -> list[BlockOutput]:
        """Run some layers, in this order; None for all. Outputs are views, as of `forward`.

        Rows are written at the same places of the cache whichever layers run, so that others can go
        on from `BlockOutput.state` before `keep`. `logits` False wants none of any block.

        Raises:
            InvalidOption: a layer is not there, or some blocks have inputs and some have none.
            OutOfMemory: the cache has no room.
        """
        ...

    def rewind(self, cache: Any, length: int) -> None:
        """Truncate, but leave keys and values of layers that were run, for others to go on."""
        ...


@runtime_checkable
class TakesMaskRows(Protocol):
    """A target whose model can be asked for masked places, by rows that were trained for it."""

    def add_mask_rows(self, trained: Any) -> None:
        """Take `networks.mask_rows.MaskRows`; then `capabilities.denoises` says how to ask."""
        ...


@runtime_checkable
class TrimsHead(Protocol):
    """A target that can leave out rows of its LM head."""

    def trim_head(self, ids: IntArray) -> None:
        """Give the logits of these token ids alone, in their order, from now on."""
        ...


def check_blocks(blocks: Sequence[Block], layers: Sequence[Layer] | None, count: int) -> bool:
    """Return whether rows start from `inputs`; errors as `BlockTarget.forward_blocks`."""
    indices = [each if isinstance(each, int) else each[0] for each in layers or ()]
    odd = [each for each in indices if not 0 <= each < count]
    if odd:
        raise InvalidOption(f"layer {odd[0]} is not one of {count}: give indices from 0 on")
    given = {each.inputs is not None for each in blocks}
    if len(given) > 1:
        raise InvalidOption("some blocks have inputs and some have none: run them apart")
    return given == {True}


def without_logits(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks that want no logits."""
    return [replace(each, wanted=np.zeros(0, dtype=np.int64)) for each in blocks]


def split_blocks(
    blocks: Sequence[Block], logits: LogitArray, state: LogitArray
) -> list[BlockOutput]:
    """Return the outputs of blocks from those of their rows side by side."""
    wanted = np.cumsum([len(each.wanted_rows) for each in blocks])[:-1]
    rows = np.cumsum([len(each.tokens) for each in blocks])[:-1]
    found = np.split(logits, wanted), np.split(state, rows)
    return [BlockOutput(*each) for each in zip(*found, strict=True)]

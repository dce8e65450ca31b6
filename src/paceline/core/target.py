"""Target contract: one ragged forward over committed tokens and draft trees, and its KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import NAMED, among, at_least, check_fields
from paceline.core.rows import RowStore
from paceline.core.types import (
    ROOT,
    BoolArray,
    Capabilities,
    Described,
    IntArray,
    LogitArray,
    TokenTree,
)
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


# A layer by index, or one half of it.
Half = Literal["attention", "feed-forward"]
Layer = int | tuple[int, Half]

# Attention sinks (arXiv:2309.17453): the first tokens of an endless text, which stay, and how many
# others leave it at once.
SINKS = 32
LEAVING = 256

# `Rows.wanted` of rows without logits.
NO_LOGITS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One sequence's rows of a forward: new tokens, then others that may be kept or not.

    `draft` makes those of a chain and a tree, `block` all others.

    Attributes:
        cache: holds the tokens before them.
        tokens: ids, at least one.
        num_new: how many, from the first, are new tokens: committed, and not cached yet. The last
            of these is the root.
        tree: the other tokens, if they are a tree after the root.
        positions: int64 `[rows]`, which may repeat; None as `tree` says.
        sees: bool `[rows, rows]`, the rows that each row sees, itself included; None as `tree`
            says.
        cached: int64 `[rows]`, how many cached keys a row sees, from the first; None for all. Or
            `[rows, keys]`, their places in the order of its sums, -1 where it sees fewer.
        inputs: float32 `[rows, hidden_size]`, in place of the tokens' embeddings: embeddings, or
            `Output.state` of the layers before.
        wanted: int64 `[wanted]`, ascending rows whose logits are asked for; None for all from the
            root on.
        hidden: return hidden states of wanted rows.
        features: return features of all rows.
        argmax: a hint: the caller can use argmax tokens.
    """

    cache: Any
    tokens: Sequence[int]
    num_new: int
    tree: TokenTree | None = None
    positions: IntArray | None = None
    sees: BoolArray | None = None
    cached: IntArray | None = None
    inputs: LogitArray | None = None
    wanted: IntArray | None = None
    hidden: bool = False
    features: bool = False
    argmax: bool = False

    @classmethod
    def draft(
        cls,
        cache: Any,
        new_tokens: Sequence[int],
        tree: TokenTree | None = None,
        *,
        inputs: LogitArray | None = None,
        wanted: IntArray | None = None,
        hidden: bool = False,
        features: bool = False,
        argmax: bool = False,
    ) -> Rows:
        """Return rows of new tokens after the cached ones, and of a draft after the last of them.

        There are more new tokens than one if a draft model lags its target.
        """
        count = len(new_tokens)
        tokens = [*new_tokens, *tree.tokens.tolist()] if tree else new_tokens
        return cls(
            cache, tokens, count, tree, None, None, None, inputs, wanted, hidden, features, argmax
        )

    @classmethod
    def block(
        cls,
        cache: Any,
        tokens: Sequence[int] | IntArray,
        positions: IntArray,
        sees: BoolArray,
        *,
        cached: IntArray | None = None,
        inputs: LogitArray | None = None,
        wanted: IntArray | None = None,
        num_new: int = 0,
    ) -> Rows:
        """Return rows that are no chain with a tree: masks, blocks, other orders, repeats."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        return cls(cache, ids, num_new, None, positions, sees, cached, inputs, wanted)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def root(self) -> int:
        """Row of the last new token; 0 if none is new."""
        return max(self.num_new - 1, 0)

    @property
    def wanted_rows(self) -> IntArray:
        return np.arange(self.root, len(self)) if self.wanted is None else self.wanted


def row_positions(rows: Rows) -> IntArray:
    """Return int64 `[rows]`, positions in the sequence; a node's is the root's plus its depth."""
    if rows.positions is not None:
        return rows.positions
    begin = rows.cache.length
    positions = np.arange(begin, begin + rows.num_new, dtype=np.int64)
    if not rows.tree:
        return positions
    return np.concatenate([positions, trees.depths(rows.tree) + positions[-1]])


def stored(cache: Any) -> int:
    """Return how many cached tokens are there: without those that have left an endless text."""
    return int(cache.length) - getattr(cache, "gone", 0)


def whole(window: int) -> int:
    """Return the most tokens that are there of an endless text."""
    return SINKS + window + LEAVING


def room_of(cache: Any) -> int:
    """Return how many tokens may follow before some leave an endless text."""
    return whole(cache.window) - stored(cache)


def goes_back(cache: Any, length: int) -> bool:
    """Return whether a text of that length still has what this cache has lost."""
    return bool(cache.gone > 0 and length < whole(cache.window) + cache.gone - LEAVING)


def sink_rows(cache: Any, tokens: Sequence[int]) -> Rows:
    """Return the rows of the first tokens of a text, right before what of it has not left.

    They see one another and nothing else, as when they were read first.
    """
    count = len(tokens)
    sees, none = np.tri(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    positions = cache.gone + np.arange(count, dtype=np.int64)
    return Rows.block(cache, tokens, positions, sees, cached=none, wanted=NO_LOGITS)


def row_parents(rows: Rows) -> list[int]:
    """Return by row of a draft the row before it on its path; -1 for the cached prefix."""
    chain = list(range(-1, rows.num_new - 1))
    if not rows.tree:
        return chain
    return chain + [
        rows.root if p == ROOT else rows.num_new + p for p in rows.tree.parents.tolist()
    ]


def row_mask(rows: Rows, window: int = 0, past: int | None = None) -> BoolArray:
    """Return what rows see, bool `[rows, past + rows]`.

    A new token sees the cached tokens and the new ones up to itself. A node sees all of those, its
    ancestors and itself. A window leaves the last so many of the positions of a draft; of the keys
    that a row of a block sees the last so many up to its own position, and those behind; 0 leaves
    all. `past` is the number of columns of cached keys; None for all.
    """
    past = stored(rows.cache) if past is None else past
    if rows.sees is not None:
        cached = np.full(len(rows), past) if rows.cached is None else rows.cached
        if cached.ndim == 2:
            mask = np.zeros((len(rows), past + len(rows)), dtype=np.bool_)
            for row, position in enumerate(row_positions(rows)):
                seen = keys_seen(rows, row, past)
                mask[row, seen[before_window(len(seen), position, window) :]] = True
            return mask
        mask = np.concatenate([np.arange(past) < cached[:, None], rows.sees], axis=1)
        if window:
            ends = mask.sum(axis=1), row_positions(rows)
            hidden = [before_window(*each, window) for each in zip(*ends, strict=True)]
            mask &= mask.cumsum(axis=1) > np.array(hidden)[:, None]
        return mask
    mask = np.tri(len(rows), past + len(rows), past, dtype=np.bool_)
    if rows.tree:
        mask[rows.num_new :, past + rows.num_new :] = trees.ancestor_mask(rows.tree)
    if window:
        own = row_positions(rows)
        mask &= np.concatenate([np.arange(past), own]) > own[:, None] - window
    return mask


def before_window(keys: int, position: int, window: int) -> int:
    """Return how many of the keys that a row at a position sees stand in front of its window."""
    return max(0, min(keys, position + 1) - window) if window else 0


def keys_seen(rows: Rows, row: int, past: int) -> IntArray:
    """Return the keys that a row of a block with places sees, in order: cached ones, then rows."""
    assert rows.cached is not None
    assert rows.sees is not None
    places = rows.cached[row]
    return np.concatenate([places[places >= 0], past + np.flatnonzero(rows.sees[row])])


NO_STATE: LogitArray = np.zeros((0, 0), dtype=np.float32)


class Output(NamedTuple):
    """Result of a forward for one sequence.

    Of `Rows.draft`, logits and hidden states begin at the root: row i + 1 is node i of the draft.

    Attributes:
        logits: float32 `[wanted, vocabulary]`, a view that the next forward may overwrite. float64
            for models in float64 (strict tests).
        hidden: float32 `[wanted, hidden_size]` after the final norm, before the LM head.
        features: float32 `[rows, 4 * hidden_size]`: the inputs of each of
            `Capabilities.feature_layers` and the final hidden state, concatenated. A view. A target
            may be told to append the states at further boundaries (`read_boundaries`).
        argmax: argmax per wanted row, ties to the lowest id, or -1 if unknown; may be empty.
        state: float32 `[rows, hidden_size]`, after the layers that were run; empty unless they
            were named. A view.
    """

    logits: LogitArray
    hidden: LogitArray | None = None
    features: LogitArray | None = None
    argmax: Sequence[int] = ()
    state: LogitArray = NO_STATE


class Target(Protocol):
    """A model on a runtime. Lossless rules preserve its output distribution.

    A step is `forward`, then `keep` per sequence. `forward` writes keys and values of its rows
    after the cached prefix. `keep` appends the new tokens and the accepted path to the prefix and
    drops the rest. Without `keep` the cache is unchanged.
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

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        """Run one ragged forward over the rows of some sequences, in order.

        Args:
            rows: of sequences that differ; those of `Rows.block` or with inputs need
                `Capabilities.blocks`.
            layers: to run, in this order; None for all. Any others need `Capabilities.blocks`.
                Rows are written at the same places of the cache whichever layers run, so that
                others can go on from `Output.state` before `keep`. Features are of all layers.

        Raises:
            InvalidOption: a layer is not there, or some rows have inputs and some have none.
            OutOfMemory: the cache has no room.
        """
        ...

    def keep(self, cache: Any, num_new: int, path: Sequence[int]) -> None:
        """Commit the last forward's new tokens, and of its other rows those of `path`.

        Row i of `path` is node i of a draft; of a block it is any row after the new ones.
        """
        ...

    def truncate(self, cache: Any, length: int, hold: bool = False) -> None:
        """Drop all cached tokens from position `length` on.

        A state cannot go back beyond `Capabilities.rollback`: then more are dropped, down to the
        newest state that is known, and the cache says its length.

        `hold` leaves their keys and values where they are, for other layers to go on from.
        """
        ...

    def fork(self, cache: Any) -> Any:
        """Return an independent cache with the same content."""
        ...

    def release(self, cache: Any) -> None:
        """Free the cache; it must not be used again."""
        ...


# From the number of rows of an LM head to ascending token ids, int64, of those that are kept.
Head = Callable[[int], IntArray]

# Tokens that a cache of a draft model can drop at any time: as deep as drafts mostly are.
ROLLBACK = 16


@runtime_checkable
class Slides(Protocol):
    """A target of `Capabilities.endless`, whose texts may lose tokens behind the first ones."""

    def slide(self, cache: Any, sinks: Sequence[int]) -> None:
        """Drop the `LEAVING` tokens behind the first `SINKS`, and read those again at their place.

        Others stay as they are stored, at the positions that they have; `sinks` are the tokens read
        again, right before them. What is cached is a multiple of `LEAVING` behind the sinks.
        """
        ...


@runtime_checkable
class GoesBack(Protocol):
    """A target with states that can open a cache which goes back."""

    def open_to_go_back(self, tokens: int) -> Any:
        """Open an empty cache, of which `truncate` can drop so many tokens at any time.

        A forward of more new tokens is final.
        """
        ...


def open_for_drafts(target: Target) -> Any:
    """Open a cache of a draft model, whose drafts are cached and dropped again."""
    if isinstance(target, GoesBack) and target.capabilities.rollback is not None:
        return target.open_to_go_back(ROLLBACK)
    return target.open()


@runtime_checkable
class TakesRows(Protocol):
    """A target that reads rows of a store where tokens could stand, as those of pictures."""

    rows: RowStore


@runtime_checkable
class Listens(Protocol):
    """A target that writes down what an encoder made of a sound, a memory.

    A memory holds keys and values by layer of the decoder, of all rows that the encoder made. It
    does not change; caches of any number of texts look at it.
    """

    @property
    def mels(self) -> int:
        """Numbers of a frame that this model hears; 0 if it has no encoder."""
        ...

    def encode(self, frames: LogitArray) -> Any:
        """Return the memory of float32 `[n, mels]`, log-mel frames.

        Raises InvalidOption for frames that the encoder does not read, OutOfMemory without room.
        """
        ...

    def encoding(self, frames: LogitArray) -> Iterator[Any]:
        """Encode in pieces: yield None after each, and in the end the memory.

        Of two at a time each begins anew when it is its turn. Errors as of `encode`.
        """
        ...

    def open_to(self, memory: Any) -> Any:
        """Open an empty cache of a text that looks at it, after `release` of the memory too."""
        ...

    def heard(self, cache: Any, layer: int, every: int = 1) -> LogitArray:
        """Return keys and values that a text looks at in a layer, of every so many rows: a copy.

        float32 `[rows, 2, kv_heads, head_dim]`; layer -1 is the last.
        """
        ...


class Heard(Protocol):
    """A sound that grows.

    Attributes:
        memory: of all rows so far, which grows; `Target.fork` keeps what it is now.
    """

    memory: Any


@runtime_checkable
class HearsOn(Protocol):
    """A target whose encoder hears a sound in parts, and makes the rows of a part once."""

    @property
    def longest_sound(self) -> int:
        """Most rows of a sound."""
        ...

    def hear(self, frames: LogitArray, sees: IntArray, heard: Heard | None = None) -> Heard:
        """Encode the next frames of a sound, or the first ones, and return it.

        Rows have the same bits in whichever parts their frames come, if `sees` says the same.

        Args:
            frames: float32 `[n, mels]`, log-mel frames, two to a row.
            sees: int64 `[n / 2]`, how many rows each row sees, from the sound's first; at least
                itself, and none of a later part.
            heard: the sound so far; None for a new one. `let_go` frees it.

        Errors are those of `Listens.encode`, which is one part of rows that all see one another.
        """
        ...

    def let_go(self, heard: Any) -> None:
        """Free a sound; texts that look at it, or at forks of its memory, go on."""
        ...


def open_for_figures(target: Target) -> Any:
    """Open an empty cache of a text that nobody reads: of silence, if the model hears."""
    if not isinstance(target, Listens) or not target.mels:
        return target.open()
    memory = target.encode(np.zeros((2, target.mels), np.float32))
    cache = target.open_to(memory)
    target.release(memory)
    return cache


class Runtime(Described):
    """What loads targets, by name: `load(source, options, **changes)`.

    Attributes:
        changes: arguments of `load` that it takes, each of which changes the model: "mask_rows", a
            `paceline.networks.mask_rows.MaskRows`, after which `Capabilities.denoises` says how to
            ask for masked places; "head", a `Head`, after which logits are of these tokens alone.
    """

    changes: ClassVar[frozenset[str]] = frozenset()


def have_inputs(
    rows: Sequence[Rows],
    layers: Sequence[Layer] | None,
    count: int,
    states: bool = False,
    lenders: Sequence[int] = (),
) -> bool:
    """Return whether rows start from inputs; errors as of `Target.forward`, of so many layers.

    A model with `states` runs drafts alone, from tokens and through all layers: what a row comes
    after is known of no other. A layer that reads keys and values of another, its one of `lenders`,
    runs behind that.
    """
    odd_rows = any(each.sees is not None or each.inputs is not None for each in rows)
    if states and (layers is not None or odd_rows):
        raise InvalidOption(
            "a model with recurrent layers runs drafts through all of its layers, and no other "
            "rows: choose a method that drafts"
        )
    indices = [each if isinstance(each, int) else each[0] for each in layers or ()]
    odd = [each for each in indices if not 0 <= each < count]
    if odd:
        raise InvalidOption(f"layer {odd[0]} is not one of {count}: give indices from 0 on")
    given = rows[0].inputs is not None
    if any((each.inputs is not None) != given for each in rows):
        raise InvalidOption("some rows have inputs and some have none: run them apart")
    before = range(min(indices)) if given and indices else ()  # what made the inputs
    for index in indices if lenders else ():
        if lenders[index] != index and lenders[index] not in (*before, *indices):
            raise InvalidOption(
                f"layer {index} of this model reads keys and values of layer {lenders[index]}, "
                "which does not run: run that too"
            )
    return given

"""States of recurrent layers: slots with reference counts, and the state of one sequence.

A slot is written by one forward and never again, so forks and checkpoints share it. A row of a
draft leaves a record of its update; `keep` takes those of the accepted path, and the next forward
replays them, to the same bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import OutOfMemory
from paceline.models.config import ModelConfig

LEAST_SLOTS = 6
"""Those of two sequences."""

RECORD_BYTES = 256 << 20
"""Those of the records of a forward, at most."""

PER_SEQUENCE = 3
"""Slots of a sequence at most: its state, the next one, and that at a border of blocks."""

_NONE = -1


@dataclass(frozen=True, slots=True)
class StateShape:
    """Float32 numbers of a state and of a record, those of all layers one behind another.

    Attributes:
        layers: recurrent ones.
        convolved: numbers that are convolved.
        tail: of a layer's last inputs; its sums are behind them.
        sums: of a layer.
        record: of a layer: inputs of the convolution, then keys, changes and decays.
    """

    layers: int
    convolved: int
    tail: int
    sums: int
    record: int

    @classmethod
    def of(cls, config: ModelConfig) -> StateShape | None:
        """Return the shape for a model; None if it has no states."""
        heads, layers = config.state_heads, len(config.recurrent)
        if not layers:  # of a family of hybrids, too
            return None
        if heads is None:
            if not config.taps:
                return None
            width = config.hidden_size
            return cls(layers, width, (config.taps - 1) * width, 0, width)
        convolved = 2 * heads.keys + heads.values
        record = convolved + heads.keys + heads.values + heads.value_heads
        tail, sums = (heads.taps - 1) * convolved, heads.values * heads.key_width
        return cls(layers, convolved, tail, sums, record)

    @property
    def size(self) -> int:
        return self.layers * (self.tail + self.sums)

    @property
    def record_size(self) -> int:
        return self.layers * self.record

    def place(self, layer: int) -> int:
        """Return where a layer begins in a state."""
        return layer * (self.tail + self.sums)


class StatePool:
    """Slots of states, and checkpoints of known prefixes, the least recently used of which go
    when slots are short."""

    def __init__(self, shape: StateShape, slots: int) -> None:
        """Reserve address space; slots take memory on first use."""
        self.shape = shape
        self.memory: LogitArray = np.zeros((slots, shape.size), dtype=np.float32)
        self._references = [0] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._checkpoints: OrderedDict[int, int] = OrderedDict()  # by block that ends there

    @property
    def sequences(self) -> int:
        """How many sequences may run beside one another."""
        return len(self._references) // PER_SEQUENCE

    @property
    def checkpoints(self) -> int:
        return len(self._checkpoints)

    def take(self) -> int:
        """Hand out a slot; raises OutOfMemory if all are held."""
        while not self._free and self._checkpoints:
            self.forget(next(iter(self._checkpoints)))
        if not self._free:
            raise OutOfMemory(
                f"all {len(self._references)} states of this model are in use: finish or cancel "
                "requests, or load the model with a larger kv_tokens"
            )
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def share(self, slot: int) -> int:
        """Add a holder, unless it is none."""
        if slot != _NONE:
            self._references[slot] += 1
        return slot

    def drop(self, slot: int) -> None:
        if slot != _NONE:
            self._references[slot] -= 1
            if not self._references[slot]:
                self._free.append(slot)

    def address(self, slot: int) -> int:
        """Return where a slot is; 0 for none."""
        return 0 if slot == _NONE else int(self.memory.ctypes.data) + slot * self.memory.strides[0]

    def save(self, block: int, slot: int) -> None:
        """Hold a state for those who find this block, the last of its prefix."""
        self.forget(block)
        self._checkpoints[block] = self.share(slot)

    def forget(self, block: int) -> None:
        self.drop(self._checkpoints.pop(block, _NONE))

    def deepest(self, blocks: Sequence[int]) -> int:
        """Return how many blocks there are up to the last that has a checkpoint."""
        return next((i for i in range(len(blocks), 0, -1) if blocks[i - 1] in self._checkpoints), 0)

    def saved(self, block: int) -> int:
        """Return the slot of a checkpoint, with a holder more."""
        self._checkpoints.move_to_end(block)
        return self.share(self._checkpoints[block])


@dataclass(eq=False)
class SequenceState:
    """State of one sequence.

    Attributes:
        pool: its slots.
        rollback: tokens that can be dropped at any time.
        slot: state of the first `at` tokens, never written again.
        late: records of the tokens behind them, float32 `[tokens, record_size]`.
        border: length and slot of a state at the newest border of blocks.
    """

    pool: StatePool
    rollback: int = 0
    slot: int = _NONE
    at: int = 0
    late: LogitArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    border: tuple[int, int] = (0, _NONE)
    _ahead: int = _NONE  # of the forward that is not kept yet: slot, steps in it, rows with records
    _stored: int = 0
    _recorded: tuple[int, int] = (0, 0)

    def begin(self, fresh: int, nodes: int, row: int, node: int) -> list[int]:
        """Return the numbers of a `Recurrence` (kernels/recurrence.hpp).

        Args:
            fresh: new tokens.
            nodes: rows after them.
            row: the first of these rows in the forward.
            node: the first of its rows with records.

        Raises:
            OutOfMemory: no slot is free.
        """
        self.discard()
        lates = len(self.late)
        if self.recorded(fresh):
            fresh, nodes = 0, fresh + nodes
            self._stored = lates - self.rollback if lates >= 2 * self.rollback else 0
        else:
            self._stored = lates + fresh
        self._recorded = node, nodes
        self._ahead = self.pool.take() if self._stored else _NONE
        places = self.pool.address(self.slot), self.pool.address(self._ahead)
        late = int(self.late.ctypes.data)
        return [*places, late, lates, fresh, nodes, self._stored, row, node]

    @property
    def recorded_rows(self) -> tuple[int, int]:
        """Rows with records in the last forward: the first, and how many."""
        return self._recorded

    def recorded(self, fresh: int) -> bool:
        """Return whether so many new tokens leave records, and so can be dropped again."""
        return 0 < fresh <= self.rollback

    def keep(self, records: LogitArray, path: Sequence[int]) -> None:
        """Commit the new tokens of the last forward, and rows with records."""
        late = self.late[self._stored :]
        if self._ahead != _NONE:
            self.pool.drop(self.slot)
            self.slot, self._ahead = self._ahead, _NONE
            self.at += self._stored
        self._stored = 0
        self.late = (
            np.concatenate([late, records[list(path)]]) if len(late) else records[list(path)]
        )

    def mark(self, block: int) -> None:
        """Hold the state if it is at a border of blocks of so many tokens."""
        if self.at and self.at % block == 0 and self.at != self.border[0]:
            self.pool.drop(self.border[1])
            self.border = self.at, self.pool.share(self.slot)

    def adopt(self, length: int, slot: int) -> None:
        """Go on from a state that is handed over."""
        self.discard()
        self.pool.drop(self.slot)
        self.slot, self.at, self.late = slot, length, self.late[:0]

    def truncate(self, length: int) -> int:
        """Go back to a known state at or before `length`; return where it is."""
        self.discard()
        if length >= self.at:
            self.late = self.late[: length - self.at]
            return length
        known, slot = self.border if self.border[0] <= length else (0, _NONE)
        self.adopt(known, self.pool.share(slot))
        return known

    def discard(self) -> None:
        """Forget the last forward."""
        self.pool.drop(self._ahead)
        self._ahead, self._stored = _NONE, 0

    def fork(self) -> SequenceState:
        length, slot = self.border
        border = length, self.pool.share(slot)
        return replace(
            self, slot=self.pool.share(self.slot), border=border, _ahead=_NONE, _stored=0
        )

    def release(self) -> None:
        self.adopt(0, _NONE)
        self.pool.drop(self.border[1])
        self.border = 0, _NONE

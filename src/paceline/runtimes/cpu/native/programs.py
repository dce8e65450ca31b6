"""The programs of a network: one drafts chains behind contexts, one takes a step of branches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.native.drafting import PICKED, Drawn
from paceline.native.packed import Packed
from paceline.networks.base import Network
from paceline.runtimes.cpu.native.lowering import Embedded, Rows, Tensors, rows_of
from paceline.runtimes.cpu.native.ops import NativeOps
from paceline.runtimes.kv_cache import BlockPool

CompositeDrafter = tuple[Network, Tensors, Packed, BlockPool, LogitArray, int]
"""What `NativeOps` is made of."""

Input = Sequence[int] | npt.NDArray[np.int32]
"""What an input is filled from."""


class Chains:
    """Takes context rows in, then drafts behind the last of each sequence.

    Inputs (int32): `features` float32 `[rows, 4 * width]`, if the network reads them, and `tokens
    [rows, window]` of the new context rows, `last_rows [s]`; where the network attends, `sequences
    [s, 3]` and `tables` as in `paceline_runs`; `noise [s, tokens, 6]`, as `noise_records` says;
    `least` float32 `[s]`, as `ContextUpdate.least`, where a step drafts one token.
    """

    def __init__(self, parts: CompositeDrafter, ids: IntArray, *, previewed: bool = False) -> None:
        """Write the program.

        Args:
            parts: of the network.
            ids: int64 `[draft vocabulary]` token ids.
            screened: as for `NativeOps`.
        """
        network = parts[0]
        ops = NativeOps(*parts, previewed=previewed)
        writing = self._writing = ops.writing
        width, slots = network.geometry.width, network.width
        features = None
        if network.reads_features:
            features = Rows(0, 4 * width, writing.buffer(0, 4 * width))
            ops.program.load("features", writing.columns(features))
        tokens = Embedded(0, width, ids="tokens", stride=max(network.window, 1))
        state = network.start(ops, features, tokens)
        self.taken_in = ops.taken_in
        """Operations until context rows are in the caches."""
        self.behind = ops.drafted
        """Rows that the first step writes behind the context of each sequence."""
        self._state = writing.columns(state)
        self.slots = state.slots
        """Rows of a state."""
        self.width = state.width
        named = [*ids, *([-1] if network.blank else [])]
        self._logits = writing.buffer(slots, len(named))
        self._picked = writing.buffer(slots, PICKED * network.steps)
        self.tokens = network.steps * slots
        """Most tokens of a chain: so many records of `noise` has each sequence."""
        self.ends: list[int] = []
        """Operations until so many steps, less one, have been drafted."""
        for step in range(network.steps):
            if step:
                picked = self._picked.part(PICKED * (step - 1), 1)
                taken = Embedded(slots, width, ids=picked)
                state = network.advance(ops, state, taken, step)
            writing.columns(network.logits(ops, state, step), self._logits)
            if not step:
                self.started = writing.operations
                """Operations until the first step's logits are there."""
            drawn = Drawn("noise", self.tokens, step * slots, slots)
            ops.program.pick(
                self._logits,
                np.array(named),
                self._picked.part(PICKED * step, PICKED),
                None if network.blank else drawn,  # which has no id, and so no noise
            )
            self.ends.append(writing.operations)
            if slots == 1 and step + 1 < network.steps:
                ops.program.leave(self._picked, step + 1, "least")
        self._network = network

    def run(
        self, rows: int, sequences: int, inputs: Mapping[str, Input], threads: int, until: int
    ) -> int:
        """Run the first so many operations, less if nothing that is drafted is likely to stand.

        Returns:
            The steps that were drafted.

        Raises:
            OutOfMemory: there is none for so many rows.
        """
        program = self._writing.program
        program.run(self._writing.counts(sequences, rows), inputs, threads, operations=until)
        return bisect_right(self.ends, program.ran)

    def begin(self, rows: int, inputs: Mapping[str, Input], threads: int, until: int) -> None:
        """`run` for one sequence, without waiting for it."""
        self._writing.program.begin(self._writing.counts(1, rows), inputs, threads, until)

    def finish(self) -> int:
        """Wait for what was begun.

        Returns:
            The steps that were drafted.

        Raises:
            OutOfMemory: there is none for so many rows.
        """
        program = self._writing.program
        program.finish()
        return bisect_right(self.ends, program.ran)

    def drafted(self, sequences: int, steps: int) -> tuple[IntArray, LogitArray]:
        """What so many steps drafted: the two likeliest token ids and their chances, `[sequences,
        steps * width, 2]`."""
        slots = self._network.width
        found = self._writing.read(self._picked, sequences * slots)[:, : PICKED * steps]
        if slots > 1:
            steps_first = found.reshape(sequences, slots, steps, PICKED).swapaxes(1, 2)
            found = np.ascontiguousarray(steps_first)
        found = found.reshape(sequences, -1, PICKED)
        return found[..., 0::2].view(np.int32), found[..., 1::2]

    def root(self, sequences: int) -> tuple[LogitArray, LogitArray]:
        """Copies of the first step's states `[sequences, slots, ...]` and logits."""
        state = self._writing.read(self._state, sequences * self.slots)
        logits = self._writing.read(self._logits, sequences * self._network.width)
        return _by_sequence(state, sequences), _by_sequence(logits, sequences)


class Steps:
    """One step of branches: the next states and logits from states and tokens.

    Inputs: `above` float32, the states that steps start from, and `tokens` int32 `[branches,
    width]`; where a step attends, `rows`, `tables` and `singles` as in `Plan`.
    """

    def __init__(self, parts: CompositeDrafter, chains: Chains) -> None:
        """Write the program.

        Args:
            parts: of the network.
            chains: where states come from.
        """
        network = parts[0]
        ops = _BranchOps(*parts)
        writing = self._writing = ops.writing
        slots = self._slots = network.width
        above = Rows(chains.slots, chains.width, writing.buffer(chains.slots, chains.width))
        ops.program.load("above", writing.columns(above))
        tokens = Embedded(slots, network.geometry.width, ids="tokens")
        state = network.advance(ops, above, tokens, 1)
        self._state = writing.columns(state)
        self._rows = state.slots
        self._logits = writing.columns(network.logits(ops, state, 1))

    def run(
        self, branches: int, inputs: Mapping[str, Input], threads: int
    ) -> tuple[LogitArray, LogitArray]:
        """States and logits, copies, `[branches, slots, ...]`."""
        self._writing.program.run(self._writing.counts(branches), inputs, threads)
        state = self._writing.read(self._state, branches * self._rows)
        logits = self._writing.read(self._logits, branches * self._slots)
        return _by_sequence(state, branches), _by_sequence(logits, branches)


class _BranchOps(NativeOps):
    """Draft rows see what a run says of them: the context, and the branch that they stand on."""

    def _see(self, before: int, slots: int) -> None:
        if self._seen is None:
            self._seen = before, slots
            self.program.paths(len(self._angles), rows_of(slots))


def _by_sequence(rows: LogitArray, sequences: int) -> LogitArray:
    return rows.copy().reshape(sequences, -1, rows.shape[1])


def bits(numbers: LogitArray) -> Input:
    """float32 as the int32 that a run is given."""
    flat = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1)
    return flat.view(np.int32)

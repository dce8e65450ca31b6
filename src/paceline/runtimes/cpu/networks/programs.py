"""Native programs of a drafter network: chains after contexts, and one step of tree branches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.native.draft_program import PICKED, ChainNoise
from paceline.native.packed import Packed
from paceline.networks.base import Network
from paceline.runtimes.cpu.networks.ops import NativeOps, Tokens, rows_of
from paceline.runtimes.cpu.networks.weights import NetworkWeights
from paceline.runtimes.kv_cache import BlockPool

# Arguments of `NativeOps`.
OpsArguments = tuple[Network, NetworkWeights, Packed, BlockPool, LogitArray, BlockPool | None]

# Source of an input.
Input = Sequence[int] | npt.NDArray[np.int32]


class ChainProgram:
    """Program that prefills context rows, then drafts chains.

    Inputs (int32): `features` float32 `[rows, 4 * width]`, if the network reads them, and `tokens
    [rows, window]` of the new context rows, `last_rows(n) [s, n]`; where the network attends,
    `sequences [s, 4]` and `tables` as in `paceline_runs`; where it reads the target, those of
    `DraftProgram.attend_lent`; `noise [s, tokens, 6]` of `noise_records`; `least` float32 `[s]`, as
    `ContextUpdate.least`, where a step drafts one token.
    """

    def __init__(self, parts: OpsArguments, ids: IntArray, *, previewed: bool = False) -> None:
        """Build the program; `ids` is int64 `[draft vocabulary]`."""
        network = parts[0]
        ops = self._ops = NativeOps(*parts, previewed=previewed)
        width, slots = network.geometry.width, network.width
        features = ops.given("features", 0, 4 * width) if network.reads_features else None
        state = network.start(ops, features, Tokens("tokens", window=max(network.window, 1)))
        # Operations until context rows are in the caches.
        self.taken_in = ops.taken_in
        # Rows that the first step writes after the context of each sequence.
        self.behind = ops.drafted
        self._state = state.columns()
        # Rows of a state.
        self.slots = state.slots
        self.width = state.width
        named = [*ids, *([-1] if network.blank else [])]
        self._picked = ops.buffer(slots, PICKED * network.steps)
        # Most tokens of a chain, and noise records per sequence.
        self.tokens = network.steps * slots
        # Operations until so many steps, less one, have been drafted.
        self.ends: list[int] = []
        for step in range(network.steps):
            if step:
                picked = self._picked.part(PICKED * (step - 1), 1)
                state = network.advance(ops, state, Tokens(picked, slots), step)
            logits = network.logits(ops, state, step).columns()
            if not step:
                # The first step's logits, and operations until they are there.
                self._logits, self.started = logits, ops.operations
            drawn = ChainNoise("noise", self.tokens, step * slots, slots)
            ops.program.pick(
                logits,
                np.array(named),
                self._picked.part(PICKED * step, PICKED),
                None if network.blank else drawn,  # which has no id, and so no noise
            )
            self.ends.append(ops.operations)
            if slots == 1 and step + 1 < network.steps:
                ops.program.leave(self._picked, step + 1, "least")
        self._network = network

    def run(
        self, rows: int, sequences: int, inputs: Mapping[str, Input], threads: int, until: int
    ) -> int:
        """Run the first `until` operations, fewer if no drafted token is likely to be accepted.

        Returns:
            The steps that were drafted.

        Raises:
            OutOfMemory: no memory for so many rows.
        """
        program = self._ops.program
        program.run(self._ops.counts(sequences, rows), inputs, threads, operations=until)
        return bisect_right(self.ends, program.ran)

    def drafted(self, sequences: int, steps: int) -> tuple[IntArray, LogitArray]:
        """Return ids and probabilities of argmax and runner-up, `[sequences, steps * width, 2]`."""
        slots = self._network.width
        found = self._ops.program.read(self._picked, sequences * slots)[:, : PICKED * steps]
        if slots > 1:
            steps_first = found.reshape(sequences, slots, steps, PICKED).swapaxes(1, 2)
            found = np.ascontiguousarray(steps_first)
        found = found.reshape(sequences, -1, PICKED)
        return found[..., 0::2].view(np.int32), found[..., 1::2]

    def root(self, sequences: int) -> tuple[LogitArray, LogitArray]:
        """Copy the first step's states `[sequences, slots, ...]` and logits."""
        state = self._ops.program.read(self._state, sequences * self.slots)
        logits = self._ops.program.read(self._logits, sequences * self._network.width)
        return _by_sequence(state, sequences), _by_sequence(logits, sequences)


class StepProgram:
    """Program of one step of branches: next states and logits from states and tokens.

    Inputs: `above` float32, parent states, and `tokens` int32 `[branches, width]`; where a step
    attends, `rows`, `tables` and `singles` as for `Program.paths`; where it reads the target, those
    of `DraftProgram.attend_lent`.
    """

    def __init__(self, parts: OpsArguments, chains: ChainProgram) -> None:
        """Build the program; `chains` gives the states."""
        network = parts[0]
        ops = self._ops = _BranchOps(*parts)
        self._slots = network.width
        above = ops.given("above", chains.slots, chains.width)
        state = network.advance(ops, above, Tokens("tokens", self._slots), 1)
        self._state = state.columns()
        self._rows = state.slots
        self._logits = network.logits(ops, state, 1).columns()
        # Whether rows of a step see one another both ways.
        self.blocks = ops.blocks

    def run(
        self, branches: int, inputs: Mapping[str, Input], threads: int
    ) -> tuple[LogitArray, LogitArray]:
        """Return copies of states and logits, `[branches, slots, ...]`."""
        program = self._ops.program
        program.run(self._ops.counts(branches), inputs, threads)
        state = program.read(self._state, branches * self._rows)
        logits = program.read(self._logits, branches * self._slots)
        return _by_sequence(state, branches), _by_sequence(logits, branches)


class _BranchOps(NativeOps):
    """Ops whose visible keys are inputs: the context and the branch itself."""

    def _see(self, before: int, slots: int, block: bool) -> None:
        if self._seen is None:
            self._seen = before, slots, block
            self.program.paths(len(self._angles), rows_of(slots))


def _by_sequence(rows: LogitArray, sequences: int) -> LogitArray:
    return rows.copy().reshape(sequences, -1, rows.shape[1])


def bits(numbers: LogitArray) -> Input:
    """View float32 as int32."""
    flat = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1)
    return flat.view(np.int32)

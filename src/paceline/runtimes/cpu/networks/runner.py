"""Runner of drafter networks on native kernels, for ragged batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import RuntimeUnavailable
from paceline.native.library import CHeads
from paceline.native.packed import Packed
from paceline.native.program import PICKED, ChainNoise, Program, noise_records
from paceline.networks.base import Network
from paceline.networks.runner import Asked, Branch, Chain, ContextUpdate, Tail, by_steps, chains
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Matrices, NetworkMatrices
from paceline.runtimes.cpu.ops import BranchSights, CpuOps, Sights, Tokens, last_rows
from paceline.runtimes.kv_cache import BLOCK, CHUNK, BlockPool, PagedCache


class NetworkParts(NamedTuple):
    """What the programs of a network share; positions are below `longest`.

    `packed` keeps what programs read, `pool` the network's keys and values; `lent` are those of
    the target or of its memories, if the network may read them.
    """

    network: Network
    matrices: NetworkMatrices
    packed: Packed
    pool: BlockPool
    longest: int
    lent: BlockPool | None = None

    def ops(self, sights: Sights, previewed: bool = False) -> CpuOps:
        """Start a program; `previewed` uses the head preview, if there is one."""
        shape = self.network.config
        fewest = min(shape.kv_heads, shape.full_kv_heads or shape.kv_heads)
        heads = CHeads(shape.heads, fewest, shape.head_dim)
        return CpuOps(
            Program(self.packed, heads, self.longest),
            self.matrices,
            self.pool,
            shape.norm_eps,
            sights=sights,
            lent=self.lent,
            memory=self.lent if self.network.looks else None,
            previewed=previewed,
        )


# Source of an input.
Input = Sequence[int] | npt.NDArray[np.int32]


class ChainProgram:
    """Program that prefills context rows, then drafts chains.

    Inputs (int32): `features` float32 `[rows, feature_width]`, if the network reads them, and
    `tokens [rows]` of the new context rows, `last_rows(n) [s, n]`; where the network
    attends, `sequences [s, 4]` and `tables` as in `paceline_runs`; where it reads the target, the
    same of its cache, `lent_sequences` and `lent_tables`; `noise [s, tokens, 6]` of
    `noise_records`; `least` float32 `[s]`, as `ContextUpdate.least`, where a step drafts one token.
    """

    def __init__(self, parts: NetworkParts, ids: IntArray, *, previewed: bool = False) -> None:
        """Build the program; `ids` is int64 `[draft vocabulary]`."""
        network, sights = parts.network, Sights()
        ops = self._ops = parts.ops(sights, previewed)
        slots, wide = network.width, network.feature_width
        features = ops.loaded("features", 0, wide) if network.reads_features else None
        state = network.start(ops, features, Tokens("tokens"))
        # Operations until context rows are in the caches.
        self.taken_in = ops.taken_in
        # Rows that the first step writes after the context of each sequence.
        self.behind = max(sights.drafted.values(), default=0)
        self._state = state.columns()
        # Rows of a state.
        self.slots = state.slots
        self.width = state.width
        named = np.array([*ids, -1])
        self._picked = ops.program.buffer(ops.count(slots), PICKED * network.steps)
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
            noise = drawn if logits.width == len(ids) else None  # a column of no token has none
            ops.program.pick(logits, named, self._picked.part(PICKED * step, PICKED), noise)
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
    attends, `rows`, `tables` and `singles` as for `Program.paths`; where it reads the target,
    `lent_rows` and `lent_tables` likewise.
    """

    def __init__(self, parts: NetworkParts, chains: ChainProgram, step: int) -> None:
        """Build the program; `chains` gives the states."""
        network, sights = parts.network, BranchSights()
        ops = self._ops = parts.ops(sights)
        self._slots = network.width
        above = ops.loaded("above", chains.slots, chains.width)
        state = network.advance(ops, above, Tokens("tokens", self._slots), step)
        self._state = state.columns()
        self._rows = state.slots
        self._logits = network.logits(ops, state, step).columns()
        # Whether rows of a step see one another both ways, and whether they stand at the root.
        self.blocks, self.roots = sights.blocks, sights.roots

    def run(
        self, branches: int, inputs: Mapping[str, Input], threads: int
    ) -> tuple[LogitArray, LogitArray]:
        """Return copies of states and logits, `[branches, slots, ...]`."""
        program = self._ops.program
        program.run(self._ops.counts(branches), inputs, threads)
        state = program.read(self._state, branches * self._rows)
        logits = program.read(self._logits, branches * self._slots)
        return _by_sequence(state, branches), _by_sequence(logits, branches)


class DigestProgram:
    """Program of `Network.digest`. Input: `picture` float32 `[rows, width]`."""

    def __init__(self, parts: NetworkParts, rows: int) -> None:
        """Build the program for so many rows."""
        ops = self._ops = parts.ops(Sights())
        width = parts.network.config.hidden_size
        self._out = parts.network.digest(ops, ops.loaded("picture", rows, width)).columns()

    def run(self, rows: LogitArray, threads: int) -> LogitArray:
        """Return a copy of the result, `[numbers]`."""
        program = self._ops.program
        program.run(self._ops.counts(1), {"picture": bits(rows)}, threads)
        return program.read(self._out, 1).copy().reshape(-1)


def _by_sequence(rows: LogitArray, sequences: int) -> LogitArray:
    return rows.copy().reshape(sequences, -1, rows.shape[1])


def bits(numbers: LogitArray) -> Input:
    """View float32 as int32."""
    flat = np.ascontiguousarray(numbers, dtype=np.float32).reshape(-1)
    return flat.view(np.int32)


def pool_for(network: Network, tokens: int, precision: str) -> BlockPool:
    """Reserve keys and values for `tokens` of all sequences; fp32 only if matrices are.

    Raises:
        MemoryError: there is no memory for them.
    """
    shape = network.config
    return BlockPool(
        max(network.layers, 1),
        shape.kv_heads,
        shape.head_dim,
        tokens // BLOCK,
        keep=0,
        dtype=np.float32 if precision == "fp32" else np.float16,
    )


@dataclass(eq=False, slots=True)
class NetworkCache:
    """Context rows of one sequence.

    Attributes:
        paged: keys and values of the network's layers.
        tail: last context rows.
        branched: rows of branches stored after the context until the next draft.
        left: rows that a window has left, in front of those in `paged`.
        lent: blocks of the target that hold the context, where the network reads them.
        seen: rows of the target that it reads.
    """

    paged: PagedCache
    tail: Tail
    branched: int = 0
    left: int = 0
    lent: Sequence[int] = ()
    seen: int = 0

    def slide(self, reach: int) -> None:
        """Release the blocks in front of a window of `reach` rows; 0 keeps all.

        Sums over keys are cut by `CHUNK`: whole ones go, so that no bit changes.
        """
        gone = max(0, self.paged.length - reach + 1) // CHUNK * CHUNK if reach else 0
        self.paged.drop_first(gone // BLOCK)
        self.left += gone

    def prune(self) -> None:
        """Drop all branches and release their blocks."""
        if self.branched:
            self.paged.truncate(self.paged.length)
            self.branched = 0


@dataclass(frozen=True, slots=True)
class State:
    """State of a branch.

    Attributes:
        value: float32 `[slots, ...]`, the network's.
        places: cache positions of the rows that its steps wrote, in order.
    """

    value: LogitArray
    places: tuple[int, ...] = ()


class Branches:
    """Batched steps of branches."""

    def __init__(self, parts: NetworkParts, chains: ChainProgram, threads: int) -> None:
        network = self._network = parts.network
        self._of_step = cache(partial(StepProgram, parts, chains))
        self._threads = threads
        self._width = network.width
        self._attends = network.layers > 0
        self._behind = chains.behind
        self._lent = network.reads_target

    def advance(self, asked: Asked) -> list[Branch]:
        return by_steps(self._network, asked, self._advance)

    def _advance(self, asked: Asked, step: int) -> list[Branch]:
        program = self._of_step(step)
        inputs: dict[str, Input] = {
            "above": bits(np.stack([branch.state.value for branch, _ in asked])),
            "tokens": [token for _, tokens in asked for token in tokens],
        }
        places: list[tuple[int, ...]] = [()] * len(asked)
        if self._attends:
            places = [self._store(branch) for branch, _ in asked]
        if self._attends or self._lent:
            inputs |= self._paths(program, asked, places)
        found = program.run(len(asked), inputs, self._threads)
        return [
            Branch(branch.cache, branch, tokens, State(state, stored), row)
            for (branch, tokens), stored, state, row in zip(asked, places, *found, strict=True)
        ]

    def _store(self, branch: Branch) -> tuple[int, ...]:
        # Positions of the branch's rows, its parents' first; OutOfMemory if the cache is full.
        cache: NetworkCache = branch.cache
        behind = self._behind + cache.branched
        cache.paged.reserve(behind + self._width)
        cache.branched += self._width
        begin = cache.paged.length + behind
        return (*branch.state.places, *range(begin, begin + self._width))

    def _paths(
        self, program: StepProgram, asked: Asked, places: Sequence[tuple[int, ...]]
    ) -> dict[str, Input]:
        rows: list[int] = []
        tables: list[int] = []
        singles: list[int] = []
        lent_rows: list[int] = []
        lent_tables: list[int] = []
        last: PagedCache | None = None
        table = lent = 0
        for (branch, _), stored in zip(asked, places, strict=True):
            cache: NetworkCache = branch.cache
            paged, left = cache.paged, cache.left
            if paged is not last:
                last, table, lent = paged, len(tables), len(lent_tables)
                tables += paged.blocks
                lent_tables += cache.lent
            # Rows that the first step wrote behind the context are seen by every branch.
            run, begin = paged.length + self._behind, len(singles)
            singles += stored
            for seen in range(len(stored))[-self._width :]:
                slot = paged.blocks[stored[seen] // BLOCK] * BLOCK + stored[seen] % BLOCK
                sees = len(stored) if program.blocks else seen + 1
                rows += (left + run + seen, slot, table, run, begin, run + sees)
            if self._lent:
                context = cache.seen
                place = context if program.roots else left + run + len(stored) - 1
                lent_rows += (place, 0, lent, context, 0, context)
        found: dict[str, Input] = {"rows": rows, "tables": tables, "singles": singles}
        return found | {"lent_rows": lent_rows, "lent_tables": lent_tables, "lent_singles": []}


# Context rows per prefill chunk.
_CHUNK = 512


class CpuRunner:
    """A network as native programs. Implements `networks.runner.Runner`."""

    def __init__(
        self,
        trained: Trained,
        target: Matrices,
        threads: int,
        *,
        precision: str,
        max_context: int,
        kv_tokens: int,
        lent: BlockPool | None = None,
    ) -> None:
        """Pack the weights and build the chain program.

        Args:
            trained: network and parameters.
            target: the target's weights.
            threads: to run on.
            precision: "fp32" keeps the network's matrices; any other makes int8 and int4.
            max_context: longest sequence.
            kv_tokens: capacity of the network's own cache over all sequences.
            lent: the target's keys and values, for networks that read them.

        Raises:
            InvalidOption: the target lacks layers whose weights the network shares.
            MemoryError: no memory for the cache.
            RuntimeUnavailable: the network reads the target's keys and values, and there are none.
        """
        network, self._threads = trained.network, threads
        self._network = network
        self._pool = pool_for(network, kv_tokens, precision)
        packed = Packed()
        matrices = NetworkMatrices(trained, target, precision, packed)
        longest = max_context + network.depth + 1
        ids = trained.draft_ids
        self._parts = NetworkParts(network, matrices, packed, self._pool, longest, lent)
        self._chains = ChainProgram(self._parts, ids, previewed=True)
        # Roots of trees need exact logits of the whole head.
        self._roots = None if matrices.previews else self._chains
        self._ids = ids
        self._silence = np.zeros(self._chains.tokens * 6, dtype=np.int32)
        self._branches: Branches | None = None
        self._digest = cache(partial(DigestProgram, self._parts))
        self._lent = lent if network.reads_target or network.looks else None

    @property
    def depth(self) -> int:
        return self._network.depth

    def warm_up(self) -> None:
        """Draft once, so that all memory is allocated."""
        cache = self.open()
        features = np.zeros((1, self._network.feature_width), dtype=np.float32)
        target = None if self._lent is None else PagedCache(self._lent)
        if target is not None:
            target.reserve(1)
            target.length = 1
            if self._network.looks:
                target = PagedCache(target.pool, memory=target)
        self.draft([ContextUpdate(cache, features, [0], target)], self.depth)
        self.release(cache)
        if target is not None:
            target.release()

    def open(self) -> NetworkCache:
        return NetworkCache(PagedCache(self._pool), Tail(self._network))

    def release(self, cache: NetworkCache) -> None:
        cache.paged.release()
        cache.lent = ()

    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        network = self._network
        steps, until = self._steps(depth)
        ahead = max(steps * network.width, network.rows) if steps else 0
        steps = self._take_in(self._chains, context_update, until, ahead)
        if not steps:
            return []
        return chains(*self._chains.drafted(len(context_update), steps), depth)

    def _steps(self, depth: int) -> tuple[int, int]:
        # Steps of so many tokens, and their operations.
        steps = min(-(-depth // self._network.width), self._network.steps)
        return steps, self._chains.ends[steps - 1] if steps else self._chains.taken_in

    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        if self._roots is None:
            self._roots = ChainProgram(self._parts, self._ids)
        self._take_in(self._roots, context_update, self._roots.started, self._roots.behind)
        states, logits = self._roots.root(len(context_update))
        return [
            Branch(each.cache, None, (), State(state), row)
            for each, state, row in zip(context_update, states, logits, strict=True)
        ]

    def advance(self, asked: Asked) -> list[Branch]:
        if self._branches is None:
            self._branches = Branches(self._parts, self._chains, self._threads)
        return self._branches.advance(asked)

    def hidden(self, branch: Branch) -> LogitArray:
        state: State = branch.state
        return state.value

    def digest(self, rows: LogitArray) -> LogitArray:
        return self._digest(len(rows)).run(rows, self._threads)

    def _take_in(
        self, program: ChainProgram, context_update: Sequence[ContextUpdate], until: int, ahead: int
    ) -> int:
        # Run `until` operations, long prompts before them in chunks; `ahead` rows are written after
        # each context. Returns the steps drafted.
        rest = []
        for each in context_update:
            if len(each.tokens) > _CHUNK:
                *heads, each = each.parts(_CHUNK)
                for head in heads:
                    self._run(program, [head], program.taken_in, 0)
            rest.append(each)
        return self._run(program, rest, until, ahead)

    def _run(
        self, program: ChainProgram, context_update: Sequence[ContextUpdate], until: int, ahead: int
    ) -> int:
        read = [each.cache.tail.again(each) for each in context_update]
        rows, inputs = self._inputs(read, ahead)
        drafted = program.run(rows, len(read), inputs, self._threads, until)
        for each, again in read:
            each.cache.paged.length += len(each.tokens) - again if self._network.layers else 0
            each.cache.tail.extend(each)
        return drafted

    def _inputs(
        self, read: Sequence[tuple[ContextUpdate, int]], ahead: int
    ) -> tuple[int, dict[str, Input]]:
        # Reserves room for the new rows, behind those that are read again, and `ahead` more.
        network, rows = self._network, 0
        context_update = [each for each, _ in read]
        tokens: list[int] = []
        newest: list[int] = []
        block: list[int] = []
        sequences: list[int] = []
        tables: list[int] = []
        lent_sequences: list[int] = []
        lent_tables: list[int] = []
        for each, again in read:
            cache, count = each.cache, len(each.tokens)
            rows += count
            newest.append(rows - 1)
            block += [max(rows - count, rows - back) for back in range(network.overlap + 1, 0, -1)]
            tokens += each.tokens
            if network.layers:
                cache.prune()
                cache.slide(network.reach)
                cache.paged.reserve(count - again + ahead)
                sequences += (cache.paged.length - again, count, len(tables), cache.left)
                tables += cache.paged.blocks
            if self._lent is not None:
                target = self._lent_by(each)
                # A network without layers of its own keeps no count of rows.
                own = cache.left + cache.paged.length - again + count
                cache.seen = own if network.layers and not network.looks else target.length
                cache.lent = target.blocks[: -(-cache.seen // BLOCK)]
                # Rows of a memory have no positions.
                behind = -cache.seen if network.looks else 0
                lent_sequences += (cache.seen, 0, len(lent_tables), behind)
                lent_tables += cache.lent
        inputs: dict[str, Input] = {
            "tokens": tokens,
            last_rows(1): newest,
            last_rows(network.overlap + 1): block,
            "sequences": sequences,
            "tables": tables,
            "lent_sequences": lent_sequences,
            "lent_tables": lent_tables,
            "noise": self._noise(context_update),
            "least": bits(np.array([each.least for each in context_update], dtype=np.float32)),
        }
        if network.reads_features:
            features = [each.features for each in context_update]
            inputs["features"] = bits(
                features[0] if len(features) == 1 else np.concatenate(features)
            )
        return rows, inputs

    def _lent_by(self, context_update: ContextUpdate) -> PagedCache:
        target: PagedCache | None = context_update.target
        if target is not None and self._network.looks:
            target = target.memory
        if target is None:
            raise RuntimeUnavailable(
                f"network '{self._network.name}' reads keys and values of its target, and was "
                "given none: give `ContextUpdate` the target's cache"
            )
        return target

    def _noise(self, context_update: Sequence[ContextUpdate]) -> Input:
        depth = self._chains.tokens
        if len(context_update) == 1:
            noise = context_update[0].noise
            return noise_records(*noise, depth).ravel() if noise else self._silence
        given = (each.noise or (b"", 1.0) for each in context_update)
        return np.concatenate([noise_records(*each, depth) for each in given]).ravel()

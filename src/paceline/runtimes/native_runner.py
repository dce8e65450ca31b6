"""Runs a drafter network by native operations, for ragged batches of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.native.drafting import noise_records
from paceline.native.packed import Packed
from paceline.networks.runner import Branch, Chain, Grown, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.native_branches import Asked, Branches, State
from paceline.runtimes.native_network import rotary_table
from paceline.runtimes.native_network_cache import NetworkCache, pool_for
from paceline.runtimes.native_network_fit import padded
from paceline.runtimes.native_network_narrow import narrowed
from paceline.runtimes.native_network_programs import Chains, Input, Parts, bits
from paceline.runtimes.native_network_screen import packed_screen
from paceline.runtimes.network_weights import packed
from paceline.runtimes.paged_cache import PagedCache
from paceline.types import LogitArray

_CHUNK = 512
"""Context rows of a prompt taken in together."""


class NativeRunner:
    """A network as programs. Implements `networks.runner.Runner`."""

    def __init__(
        self,
        trained: Trained,
        target: Mapping[str, np.ndarray],
        threads: int,
        *,
        precision: str,
        max_context: int,
        kv_tokens: int,
    ) -> None:
        """Pack the weights and write the program of chains.

        Args:
            trained: network and parameters; one that `native_network_fit.takes` takes.
            target: the target's prepared weights: embedding, head and what is borrowed.
            threads: to run on.
            precision: of the network's matrices, "fp32" or "int8".
            max_context: longest sequence.
            kv_tokens: capacity of the network's own cache over all sequences.

        Raises:
            InvalidOption: the target lacks layers that the network borrows.
            MemoryError: there is none for the cache.
        """
        network, self._threads = trained.network, threads
        self._network = network
        self._pool = pool_for(network, kv_tokens, precision)
        tensors = narrowed(
            padded(packed(trained, target, precision)), trained.parameters, precision
        )
        tensors |= packed_screen(trained.screen, precision)
        angles = rotary_table(network, max_context + network.depth + 1)
        ids = trained.draft_ids
        self._parts: Parts = network, tensors, Packed(often=True), self._pool, angles, len(ids)
        self._chains = Chains(self._parts, ids, screened=True)
        self._roots = None if trained.screen is not None else self._chains
        """Where trees begin, whose logits are the whole head's."""
        self._ids = ids
        self._silence = np.zeros(self._chains.tokens * 6, dtype=np.int32)
        self._branches: Branches | None = None
        self._begun: tuple[Grown, int] | None = None
        self._finished: Chain | None = None

    @property
    def depth(self) -> int:
        """Most tokens of a draft."""
        return self._network.depth

    def warm_up(self) -> None:
        """Draft once: memory of rows and weights is there then."""
        cache = self.open()
        width = 4 * self._network.geometry.width if self._network.reads_features else 0
        self.draft([Grown(cache, np.zeros((1, width), dtype=np.float32), [0])], self.depth)
        self.release(cache)

    def open(self) -> NetworkCache:
        """A new, empty cache."""
        return NetworkCache(PagedCache(self._pool), Tail(self._network))

    def release(self, cache: NetworkCache) -> None:
        """Give its blocks back."""
        self._settle()
        cache.paged.release()

    def draft(self, grown: Sequence[Grown], depth: int) -> list[Chain]:
        """Take in what is new and draft."""
        self._settle()
        network = self._network
        steps, until = self._steps(depth)
        steps = self._take_in(self._chains, grown, until, steps * network.width)
        if not steps:
            return []
        return chains(network, *self._chains.drafted(len(grown), steps), depth)

    def begin(self, grown: Grown, depth: int) -> None:
        """The same for one sequence of few new rows, on other threads while the caller goes on."""
        self._settle()
        steps, until = self._steps(depth)
        rows, inputs = self._inputs([grown], steps * self._network.width)
        self._chains.begin(rows, inputs, self._threads, until)
        self._begun = grown, depth

    def finish(self) -> Chain:
        """What was begun."""
        self._settle()
        chain, self._finished = self._finished, None
        assert chain is not None
        return chain

    def _settle(self) -> None:
        """Wait for what was begun, and keep what came of it: its buffers are wanted."""
        if self._begun is None:
            return
        (grown, depth), self._begun = self._begun, None
        steps = self._chains.finish()
        self._taken([grown])
        [self._finished] = chains(self._network, *self._chains.drafted(1, steps), depth)

    def _steps(self, depth: int) -> tuple[int, int]:
        """Steps that so many tokens take, and the operations of those."""
        steps = min(-(-depth // self._network.width), self._network.steps)
        return steps, self._chains.ends[steps - 1] if steps else self._chains.taken_in

    def start(self, grown: Sequence[Grown]) -> list[Branch]:
        """Take in what is new, and stop at the first step's logits."""
        self._settle()
        if self._roots is None:
            self._roots = Chains(self._parts, self._ids)
        self._take_in(self._roots, grown, self._roots.started, self._roots.behind)
        states, logits = self._roots.root(len(grown))
        return [
            Branch(each.cache, None, (), State(state), row)
            for each, state, row in zip(grown, states, logits, strict=True)
        ]

    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        """One step of all branches at once."""
        self._settle()
        if self._branches is None:
            self._branches = Branches(self._parts, self._chains, self._threads)
        return self._branches.advance(asked)

    def hidden(self, branch: Branch) -> LogitArray:
        """As it left the program."""
        state: State = branch.state
        return state.value

    def _take_in(self, program: Chains, grown: Sequence[Grown], until: int, ahead: int) -> int:
        """Run so many operations; long prompts go before them in chunks.

        Args:
            program: of chains, with or without the screen.
            grown: one per sequence.
            until: operations to run.
            ahead: rows that they write behind the context of each sequence.

        Returns:
            Steps that were drafted.
        """
        rest = []
        for each in grown:
            if len(each.tokens) > _CHUNK:
                *heads, each = each.parts(_CHUNK)
                for head in heads:
                    self._run(program, [head], program.taken_in, 0)
            rest.append(each)
        return self._run(program, rest, until, ahead)

    def _run(self, program: Chains, grown: Sequence[Grown], until: int, ahead: int) -> int:
        rows, inputs = self._inputs(grown, ahead)
        drafted = program.run(rows, len(grown), inputs, self._threads, until)
        self._taken(grown)
        return drafted

    def _inputs(self, grown: Sequence[Grown], ahead: int) -> tuple[int, dict[str, Input]]:
        """How many rows are new, and what a run is given; there is room for them then, and for
        `ahead` more."""
        network, rows = self._network, 0
        tokens: list[int] = []
        last_rows: list[int] = []
        sequences: list[int] = []
        tables: list[int] = []
        for each in grown:
            cache, count = each.cache, len(each.tokens)
            rows += count
            last_rows.append(rows - 1)
            if network.window > 1:
                tokens += cache.tail.windows(each.tokens).ravel().tolist()
            else:
                tokens += each.tokens
            if network.layers:
                cache.prune()
                cache.paged.reserve(count + ahead)
                sequences += (cache.paged.length, count, len(tables))
                tables += cache.paged.blocks
        inputs: dict[str, Input] = {
            "tokens": tokens,
            "last_rows": last_rows,
            "sequences": sequences,
            "tables": tables,
            "noise": self._noise(grown),
            "least": bits(np.array([each.least for each in grown], dtype=np.float32)),
        }
        if network.reads_features:
            features = [each.features for each in grown]
            inputs["features"] = bits(
                features[0] if len(features) == 1 else np.concatenate(features)
            )
        return rows, inputs

    def _taken(self, grown: Sequence[Grown]) -> None:
        """What was new is in the caches."""
        for each in grown:
            each.cache.paged.length += len(each.tokens) if self._network.layers else 0
            each.cache.tail.extend(each.tokens)

    def _noise(self, grown: Sequence[Grown]) -> Input:
        """Records of all sequences, zero where tokens are not drawn."""
        depth = self._chains.tokens
        if len(grown) == 1:
            noise = grown[0].noise
            return noise_records(*noise, depth).ravel() if noise else self._silence
        given = (each.noise or (b"", 1.0) for each in grown)
        return np.concatenate([noise_records(*each, depth) for each in given]).ravel()

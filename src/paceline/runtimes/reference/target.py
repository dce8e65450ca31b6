"""The reference: models in NumPy, in the canonical arithmetic that every processor must give.

Slow, and without the native kernels, whose logits these are to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from paceline.core.rows import RowStore
from paceline.core.target import (
    DEFAULT_OPTIONS,
    LEAVING,
    NO_LOGITS,
    NO_STATE,
    SINKS,
    Layer,
    Output,
    Rows,
    Runtime,
    RuntimeOptions,
    goes_back,
    have_inputs,
    sink_rows,
    stored,
)
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.models import families
from paceline.models.config import ModelConfig, features_with
from paceline.models.families import base
from paceline.models.families.whisper import check_frames, check_sight, needs_sound, neighbours_of
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.native.blocks import GROUP
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Formats, check_precision
from paceline.runtimes.cpu.target import check_kv_precision
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.networks import ReferenceRunner
from paceline.runtimes.reference.ops import AskedRows, ReferenceCache, ReferenceOps

_CHUNK = 128  # tokens per prefill pass: bounds memory


@dataclass(slots=True)
class ReferenceSound:
    """A sound that grows: keys of the encoder's layers, what it has written, its last frames."""

    keys: ReferenceCache
    memory: ReferenceCache
    tail: LogitArray = field(default_factory=lambda: np.zeros((0, 0), np.float32))


class ReferenceTarget(Runtime):
    """A model in NumPy, sequence by sequence."""

    name = "reference"
    guarantee = "bit-exact"
    requires = "patience: NumPy"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        precision: str = "file",
        kv_precision: str | None = None,
    ) -> None:
        """Bind them; precisions and errors are those of `CpuTarget`."""
        kv_precision = kv_precision or ("fp32" if precision == "fp32" else "fp16")
        check_precision(precision)
        check_kv_precision(kv_precision)
        self.config = config
        self.rows = RowStore(config.vocab_size, config.hidden_size)
        self._formats = Formats(weights, precision)
        self._boundaries: tuple[int, ...] = ()
        self._matrix = cache(lambda name: matrix(*self._formats.blocks(name)))
        known = config.capabilities("reference", "cpu", precision)
        self.capabilities = replace(
            known, bit_exact=True, endless=config.slides, kv_precision=kv_precision
        )

    @classmethod
    def load(
        cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS
    ) -> ReferenceTarget:
        """Load a model; errors are those of `CpuTarget.load`."""
        if options.device not in (None, "cpu"):
            raise InvalidOption(f"runtime 'reference' runs on cpu, not {options.device!r}")
        config = replace(source.config, max_context=options.limit(source.config.max_context))
        precision = options.precision or source.precision
        return cls(config, source.weights(), precision, options.kv_precision)

    def run_network(self, trained: Trained) -> ReferenceRunner:
        """Return a runner of a drafter network, in fp32 if the target is, else int8."""
        if trained.network.looks:
            self.config.refuse_to_look(trained.network.name)
        return ReferenceRunner(trained, self._formats, self.capabilities.precision)

    def read_boundaries(self, boundaries: Sequence[int]) -> list[int]:
        layers, known = self.config.layers, self._boundaries
        self._boundaries, places = features_with(layers, known, boundaries)
        return places

    def warm_up(self) -> None: ...

    def open(self) -> ReferenceCache:
        if self.config.encoder is not None:
            raise needs_sound(self.config.family)
        return self._empty(len(self.config.attention_layers))

    @property
    def mels(self) -> int:
        return 0 if self.config.encoder is None else self.config.encoder.mels

    def encoding(self, frames: LogitArray) -> Iterator[ReferenceCache]:
        yield self.encode(frames)

    def open_to(self, memory: ReferenceCache) -> ReferenceCache:
        cache = self._empty(self.config.layers)
        cache.memory = replace(memory)
        return cache

    def heard(self, cache: ReferenceCache, layer: int, every: int = 1) -> LogitArray:
        memory = cache.memory
        assert memory is not None
        rows = memory.read(layer, slice(0, memory.length, every), *self.config.widest)
        return rows.swapaxes(0, 1).astype(np.float32)

    def encode(self, frames: LogitArray) -> ReferenceCache:
        return self.hear(frames, np.full(len(frames) // 2, len(frames) // 2)).memory

    @property
    def longest_sound(self) -> int:
        return 0 if self.config.encoder is None else self.config.encoder.rows

    def hear(
        self, frames: LogitArray, sees: IntArray, heard: ReferenceSound | None = None
    ) -> ReferenceSound:
        past, rows = 0 if heard is None else heard.memory.length, len(frames) // 2
        shape = check_frames(self.config, frames, past)
        check_sight(sees, past)
        if heard is None:
            heard = ReferenceSound(self._empty(shape.layers), self._empty(self.config.layers))
        else:
            frames = np.concatenate([heard.tail, frames])
        visible = past + np.arange(rows) < sees[:, None]
        asked = Rows.block(heard.keys, np.zeros(rows, np.int64), past + np.arange(rows), visible)
        sights = AskedRows(asked, heard.memory, neighbours_of(sees, past))
        ops = ReferenceOps(self._formats, self._matrix, self.config.norm_eps, sights)
        encoder = families.family_of(self.config).encoder
        assert encoder is not None
        with np.errstate(all="ignore"):
            wide = np.pad(frames, ((0, 0), (0, -shape.mels % GROUP)))
            encoder(ops, self.config, shape, wide, True)
        heard.memory.length = heard.keys.length = past + rows
        heard.tail = frames[-2:].copy()
        return heard

    def let_go(self, heard: ReferenceSound) -> None:
        for each in (heard.keys, heard.memory):
            self.release(each)

    def _empty(self, layers: int) -> ReferenceCache:
        kv_heads, width = self.config.widest
        dtype = np.float32 if self.capabilities.kv_precision == "fp32" else np.float16
        return ReferenceCache(np.zeros((layers, 2, 0, kv_heads, width), dtype))

    def prefill(
        self, cache: ReferenceCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        parts = len(self.capabilities.feature_layers) + 1 + len(self._boundaries)
        seen = [np.zeros((0, parts * self.config.hidden_size), np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            rows = Rows.draft(
                cache, tokens[start : start + _CHUNK], wanted=NO_LOGITS, features=features
            )
            found = self._run(rows).features
            cache.length += len(rows)
            cache.keep(0)
            if found is not None:
                seen.append(found)
        return np.concatenate(seen) if features else None

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        if rows:
            have_inputs(
                rows, layers, self.config.layers, bool(self.config.recurrent), self.config.lenders
            )
        return [self._run(each, layers) for each in rows]

    def _run(self, rows: Rows, layers: Sequence[Layer] | None = None) -> Output:
        config, tokens = self.config, np.array(rows.tokens)
        asked = rows if config.recurrent else None
        parts = self._formats, self._matrix, config.norm_eps, AskedRows(rows), asked, self.rows
        ops = ReferenceOps(*parts)
        features: list[LogitArray] = []
        states: list[LogitArray] = []
        with np.errstate(all="ignore"):
            x = rows.inputs
            x = base.embed(ops, config, tokens) if x is None else x
            halves = families.halves_of(config, ops, tokens)
            x = base.forward(
                ops,
                config,
                halves,
                x,
                layers=layers,
                features=features,
                states=states,
                boundaries=self._boundaries,
            )
            hidden = x[rows.wanted_rows]
            logits = base.head(ops, config, hidden)
        return Output(
            logits,
            hidden if rows.hidden else None,
            np.concatenate(features, axis=-1) if rows.features else None,
            state=NO_STATE if layers is None else states[0],
        )

    def keep(self, cache: ReferenceCache, num_new: int, path: Sequence[int]) -> None:
        start = stored(cache) + num_new
        end, cache.length = start + len(path), cache.length + num_new + len(path)
        cache.data[:, :, start:end] = cache.data[:, :, [start + node for node in path]]
        cache.keep(path[-1] + 1 if len(path) else 0)

    def slide(self, cache: ReferenceCache, sinks: Sequence[int]) -> None:
        first = cache.data[:, :, :SINKS], cache.data[:, :, SINKS + LEAVING : stored(cache)]
        cache.data = np.concatenate(first, axis=2)
        cache.gone += LEAVING
        self._run(sink_rows(cache, sinks))
        end = stored(cache)
        cache.data[:, :, :SINKS] = cache.data[:, :, end : end + SINKS]

    def truncate(self, cache: ReferenceCache, length: int, hold: bool = False) -> None:
        if cache.states and length < cache.length:
            cache.states, length = {}, 0
        if goes_back(cache, length):
            cache.gone = length = 0
        cache.length = min(cache.length, length)

    def fork(self, cache: ReferenceCache) -> ReferenceCache:
        twin = ReferenceCache(cache.data.copy(), cache.length, dict(cache.states))
        twin.memory, twin.window, twin.gone = cache.memory, cache.window, cache.gone
        return twin

    def release(self, cache: ReferenceCache) -> None:
        cache.data, cache.length, cache.gone = cache.data[:, :, :0].copy(), 0, 0

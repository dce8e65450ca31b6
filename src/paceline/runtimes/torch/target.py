"""PyTorch runtime on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.processor import usable_threads
from paceline.core.rows import RowStore
from paceline.core.target import (
    DEFAULT_OPTIONS,
    NO_STATE,
    Head,
    Layer,
    Output,
    Rows,
    RuntimeOptions,
    have_inputs,
    row_mask,
    row_positions,
)
from paceline.core.types import BoolArray, IntArray, LogitArray
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.config import ModelConfig, features_with
from paceline.models.ops import Heads
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.weights import Trained
from paceline.runtimes.torch.cache import RecurrentRows, TorchCache, attend, reserve
from paceline.runtimes.torch.hybrid import LONG
from paceline.runtimes.torch.model import Attend, TorchModel
from paceline.runtimes.torch.runner import TorchRunner, target_weights_for

# Dtype of weights, activations and cache by precision.
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}

_CHUNK = 512  # tokens per prefill pass: bounds the mask and the activations


class TorchTarget:
    """A model as a `Target`.

    Linear layers run over the rows of all sequences at once, attention per sequence with a boolean
    mask. Logits are float32, or float64 at precision "fp64".

    Args:
        config: shape of the model.
        weights: tensors by canonical name.
        device: "cpu", "cuda" or "cuda:N".
        precision: "fp32", "bf16" or "fp64".
        head: see `paceline.core.target.Runtime.changes`.

    Raises:
        InvalidOption: unknown device or precision.
        RuntimeUnavailable: there is no such device.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights | Mapping[str, LogitArray],
        device: str = "cpu",
        precision: str = "fp32",
        head: Head | None = None,
    ) -> None:
        self._device = torch_device(device)
        self._dtype = torch_dtype(precision)
        self._network = TorchModel(config, weights, self._device, self._dtype)
        kept = None if head is None else head(config.vocab_size)
        if kept is not None:
            self._network.trim_head(torch.from_numpy(kept))
        self.config = config
        self.rows = RowStore(config.vocab_size, config.hidden_size)
        self._boundaries: tuple[int, ...] = ()
        self.capabilities = replace(
            config.capabilities("torch", self._device.type, precision),
            embeddings=not config.layer_inputs,
            head=None if kept is None else tuple(kept.tolist()),
        )

    @classmethod
    def load(
        cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS, **changes: Any
    ) -> TorchTarget:
        """Load a model; `changes` are the constructor's.

        Raises:
            ModelError: the model is unreadable or of another family.
            InvalidOption: unknown device or precision.
            RuntimeUnavailable: there is no such device.
        """
        if options.threads is not None:
            torch.set_num_threads(usable_threads(options.threads))
        config = source.config
        if config.encoder is not None:
            raise RuntimeUnavailable("runtime 'torch' hears no sound: use --runtime cpu")
        config = replace(config, max_context=options.limit(config.max_context))
        place = options.device or "cpu", options.precision or "fp32"
        return cls(config, source.weights(), *place, **changes)

    def run_network(self, trained: Trained) -> TorchRunner:
        """Return a runner of a drafter network in the target's precision."""
        if trained.network.looks:
            self.config.refuse_to_look(trained.network.name)  # this runtime loads none that hears
        if trained.network.reads_target:
            self.config.refuse_to_lend(trained.network.name, trained.network.config)
        network = self._network
        lent = target_weights_for(trained.network, network)
        return TorchRunner(trained, network.tensor("embed"), network.head, lent)

    def read_boundaries(self, boundaries: Sequence[int]) -> list[int]:
        """Let features have the states at these boundaries from now on, behind what they have.

        Return the place of each among the parts of `Output.features`.
        """
        layers, known = self.config.layers, self._boundaries
        self._boundaries, places = features_with(layers, known, boundaries)
        return places

    def warm_up(self) -> None: ...

    def open(self) -> TorchCache:
        kv_heads, width = self.config.widest
        place = self._dtype, self._device
        return TorchCache.empty(len(self.config.attention_layers), kv_heads, width, place)

    @torch.inference_mode()
    def prefill(
        self, cache: TorchCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        width = (4 + len(self._boundaries)) * self.config.hidden_size
        seen = [np.zeros((0, width), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            streams: list[Tensor] | None = [] if features else None
            self._hidden([Rows.draft(cache, chunk)], streams=streams)
            self.keep(cache, len(chunk), ())
            if streams:
                seen.append(to_numpy(torch.cat(streams, dim=-1)))
        return np.concatenate(seen) if features else None

    @torch.inference_mode()
    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        if not rows:
            return []
        embeddings = None
        if have_inputs(
            rows, layers, self.config.layers, bool(self.config.recurrent), self.config.lenders
        ):
            inputs = np.concatenate([each.inputs for each in rows if each.inputs is not None])
            embeddings = torch.from_numpy(inputs).to(self._device, self._dtype)
        streams: list[Tensor] | None = [] if any(each.features for each in rows) else None
        states: list[Tensor] | None = None if layers is None else []
        hidden = self._hidden(rows, embeddings, streams, layers, states)
        sizes = list(map(len, rows))
        features = torch.cat(streams, dim=-1) if streams else hidden
        state = states[0] if states else hidden
        # New tokens before the root need no logits.
        wanted = [
            part[each.root :] if each.wanted is None else part[torch.from_numpy(each.wanted)]
            for each, part in zip(rows, hidden.split_with_sizes(sizes), strict=True)
        ]
        counts = list(map(len, wanted))
        logits = to_numpy(self._network.logits(torch.cat(wanted)))
        parts = zip(
            rows,
            wanted,
            np.split(logits, np.cumsum(counts)[:-1]),
            features.split_with_sizes(sizes),
            state.split_with_sizes(sizes),
            strict=True,
        )
        return [
            Output(
                made,
                to_numpy(normed) if each.hidden else None,
                to_numpy(streamed) if each.features else None,
                state=to_numpy(after) if states else NO_STATE,
            )
            for each, normed, made, streamed, after in parts
        ]

    def add_embeddings(self, rows: LogitArray) -> int:
        """Add embeddings that draft nodes may carry in place of tokens.

        Args:
            rows: float32 `[m, hidden_size]`, at least one.

        Returns:
            The id of the first row, at least `vocab_size`; the others follow it. Ids of rows added
            before stay.

        Raises:
            InvalidOption: as of `RowStore.append`; or layers of the model read tokens too.
        """
        self.config.refuse_added_embeddings()
        return self.rows.append(rows)

    @torch.inference_mode()
    def forward_superposed(
        self, cache: TorchCache, tokens: Sequence[int], weights: Sequence[float]
    ) -> LogitArray:
        """Append one position whose input is a weighted sum of token embeddings.

        Args:
            cache: of one sequence; grows by one.
            tokens: `[k]` token ids, at least one.
            weights: `[k]` weights, which sum to one.

        Returns:
            float32 `[vocabulary]`, logits after that position.

        Raises InvalidOption if layers of the model read tokens too.
        """
        self.config.refuse_added_embeddings()
        embeddings = self._network.embed(torch.tensor(list(tokens), device=self._device))
        exact = torch.tensor([list(weights)], dtype=torch.float64)
        weighted = exact.to(embeddings) @ embeddings
        hidden = self._hidden([Rows.draft(cache, tokens[:1])], weighted)
        self.keep(cache, 1, ())
        logits: LogitArray = to_numpy(self._network.logits(hidden))[0]
        return logits

    @torch.inference_mode()
    def keep(self, cache: TorchCache, num_new: int, path: Sequence[int]) -> None:
        start = cache.length + num_new
        if list(path) != list(range(len(path))):
            rows = torch.tensor(path, device=self._device) + start
            cache.data[:, :, :, start : start + len(path)] = cache.data[:, :, :, rows]
        cache.length = start + len(path)
        if cache.rows:
            cache.keep(path[-1] + 1 if len(path) else 0)

    def truncate(self, cache: TorchCache, length: int, hold: bool = False) -> None:
        if cache.states and length < cache.length:
            cache.states, length = {}, 0
        cache.length = min(cache.length, length)

    def fork(self, cache: TorchCache) -> TorchCache:
        data = cache.data[:, :, :, : cache.length].clone()
        return TorchCache(data, cache.length, dict(cache.states))

    def release(self, cache: TorchCache) -> None:
        cache.data = cache.data[:, :, :, :0].clone()
        cache.length, cache.states, cache.rows = 0, {}, {}

    def _hidden(
        self,
        rows: Sequence[Rows],
        embeddings: Tensor | None = None,
        streams: list[Tensor] | None = None,
        layers: Sequence[Layer] | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        # Final hidden states `[rows, hidden_size]`; fills the caches. `embeddings` replace those of
        # the tokens; `streams` gets the parts of the features, `states` what `layers` made.
        ids = np.concatenate([np.asarray(each.tokens, dtype=np.int64) for each in rows])
        embeddings = self._embed(ids) if embeddings is None else embeddings
        positions = np.concatenate([row_positions(each) for each in rows])
        places = torch.from_numpy(positions).to(self._device)
        attended = self._attention(rows)
        recurrent = RecurrentRows(rows) if self.config.recurrent else None
        return self._network(
            embeddings,
            places,
            attended,
            streams,
            layers,
            states,
            recurrent=recurrent,
            boundaries=self._boundaries,
            tokens=torch.from_numpy(ids).to(self._device),
        )

    def _attention(self, rows: Sequence[Rows]) -> Attend:
        # Makes room for the rows, which attend to their own sequences.
        for each in rows:
            reserve(each.cache, each.cache.length + len(each))
        sizes = list(map(len, rows))
        masks: dict[int, list[Tensor]] = {}

        def attended(
            layer: int, heads: Heads, queries: Tensor, keys: Tensor, values: Tensor
        ) -> Tensor:
            if heads.window not in masks:
                made = [_mask(each, heads.window) for each in rows]
                masks[heads.window] = [torch.from_numpy(each).to(self._device) for each in made]
            split = [x.split_with_sizes(sizes) for x in (queries, keys, values)]
            sinks = None if heads.sinks is None else self._network.tensor(heads.sinks)
            out = []
            for each, m, q, k, v in zip(rows, masks[heads.window], *split, strict=True):
                cache = each.cache
                past = cache.length + len(m) - m.shape[1]
                stored = cache.data[layer, :, : heads.kv_heads, :, : heads.width]
                out.append(attend(stored, m, q, k, v, heads.scale, past=past, sinks=sinks))
            return torch.cat(out)

        return attended

    def _embed(self, ids: IntArray) -> Tensor:
        extra = ids >= self.config.vocab_size
        tokens = torch.from_numpy(np.where(extra, 0, ids)).to(self._device)
        embeddings = self._network.embed(tokens)
        if extra.any():
            rows = torch.from_numpy(self.rows.rows(ids[extra]))
            embeddings[torch.from_numpy(extra).to(self._device)] = rows.to(embeddings)
        return embeddings


def _mask(rows: Rows, window: int) -> BoolArray:
    # Without a window a draft's rows see all that is cached: no mask is made for that.
    apart = rows.tree and not window and rows.cache.length >= LONG
    return row_mask(rows, window, 0 if apart else None)


def to_numpy(x: Tensor) -> LogitArray:
    """Return a float32 array (float64 of a float64 tensor) in host memory."""
    wide = x if x.dtype == torch.float64 else x.float()
    array: LogitArray = wide.cpu().numpy()
    return array


def torch_device(name: str) -> torch.device:
    """Return the device called `name`.

    Raises:
        InvalidOption: torch does not know the kind of device.
        RuntimeUnavailable: this machine has no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidOption(f"unknown device {name!r}: use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidOption(f"device {name!r} is not supported: use cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RuntimeUnavailable(f"torch sees no device {name!r} here: use --device cpu")
    return device


def torch_dtype(precision: str) -> torch.dtype:
    """Return the dtype of a precision; raise InvalidOption if unknown."""
    if precision not in PRECISIONS:
        raise InvalidOption(
            f"precision {precision!r} is not one of {', '.join(PRECISIONS)}, which this runtime has"
        )
    return PRECISIONS[precision]

"""PyTorch runtime on CPU and CUDA: the reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.processor import usable_threads
from paceline.core.target import (
    DEFAULT_OPTIONS,
    Block,
    BlockOutput,
    Layer,
    Output,
    Pass,
    RuntimeOptions,
    check_blocks,
    split_blocks,
    without_logits,
)
from paceline.core.types import BoolArray, Capabilities, IntArray, LogitArray
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.config import ModelConfig, feature_layers
from paceline.models.ops import Heads
from paceline.models.source import ModelSource
from paceline.models.weights import Weights
from paceline.networks.weights import Trained
from paceline.runtimes.passes import (
    block_mask,
    no_rows,
    pass_mask,
    pass_positions,
    pass_rows,
    pass_tokens,
    with_rows,
)
from paceline.runtimes.torch.cache import TorchCache, attend, reserve
from paceline.runtimes.torch.hybrid import LONG
from paceline.runtimes.torch.model import Attend, TorchModel
from paceline.runtimes.torch.ops import target_weights_for
from paceline.runtimes.torch.runner import TorchRunner

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
    ) -> None:
        self._device = torch_device(device)
        self._dtype = torch_dtype(precision)
        self._network = TorchModel(config, weights, self._device, self._dtype)
        self.config = config
        self._extra = no_rows(config.hidden_size)
        self._capabilities = Capabilities(
            runtime="torch",
            device=self._device.type,
            precision=precision,
            vocab_size=config.vocab_size,
            max_context=config.max_context,
            hidden_size=config.hidden_size,
            hidden_states=True,
            bit_exact=False,
            feature_layers=feature_layers(config.layers),
            blocks=True,
            denoises=config.denoises,
        )

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS) -> TorchTarget:
        """Load a model.

        Raises:
            ModelError: the model is unreadable or of another family.
            InvalidOption: unknown device or precision.
            RuntimeUnavailable: there is no such device.
        """
        if options.threads is not None:
            torch.set_num_threads(usable_threads(options.threads))
        config = source.config
        config = replace(config, max_context=options.limit(config.max_context))
        return cls(config, source.weights(), options.device or "cpu", options.precision or "fp32")

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def run_network(self, trained: Trained) -> TorchRunner:
        """Return a runner of a drafter network in the target's precision."""
        network = self._network
        lent = target_weights_for(trained.network, network)
        return TorchRunner(trained, network.tensor("embed"), network.head, lent)

    def warm_up(self) -> None: ...

    def open(self) -> TorchCache:
        config = self.config
        place = self._dtype, self._device
        return TorchCache.empty(config.layers, config.kv_heads, config.head_dim, place)

    @torch.inference_mode()
    def prefill(
        self, cache: TorchCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        seen = [np.zeros((0, 4 * self.config.hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            streams: list[Tensor] | None = [] if features else None
            self._hidden([Pass(cache, chunk)], streams=streams)
            cache.length += len(chunk)
            if streams:
                seen.append(to_numpy(torch.cat(streams, dim=-1)))
        return np.concatenate(seen) if features else None

    @torch.inference_mode()
    def forward(self, passes: Sequence[Pass]) -> list[Output]:
        if not passes:
            return []
        streams: list[Tensor] | None = [] if any(p.features for p in passes) else None
        hidden = self._hidden(passes, streams=streams)
        sizes = [pass_rows(p) for p in passes]
        features = torch.cat(streams, dim=-1) if streams else hidden
        # Pending tokens before the root need no logits.
        wanted = [
            rows[len(p.pending) - 1 :]
            for p, rows in zip(passes, hidden.split_with_sizes(sizes), strict=True)
        ]
        counts = [len(rows) for rows in wanted]
        logits = to_numpy(self._network.logits(torch.cat(wanted)))
        starts = np.cumsum([0, *counts])
        return [
            Output(
                logits[start : start + count],
                to_numpy(rows) if p.hidden else None,
                to_numpy(streamed) if p.features else None,
            )
            for p, rows, start, count, streamed in zip(
                passes, wanted, starts[:-1], counts, features.split_with_sizes(sizes), strict=True
            )
        ]

    def trim_head(self, ids: IntArray) -> None:
        self._network.trim_head(torch.from_numpy(ids))

    def add_embeddings(self, rows: LogitArray) -> int:
        """Add embeddings that draft nodes may carry in place of tokens.

        Args:
            rows: float32 `[m, hidden_size]`, at least one.

        Returns:
            The id of the first row, at least `vocab_size`; the others follow it. Ids of rows added
            before stay.

        Raises:
            InvalidOption: no rows, another width, or values that are not finite.
        """
        self._extra, first = with_rows(self._extra, rows)
        return self.config.vocab_size + first

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
        """
        embeddings = self._network.embed(torch.tensor(list(tokens), device=self._device))
        exact = torch.tensor([list(weights)], dtype=torch.float64)
        weighted = exact.to(embeddings) @ embeddings
        hidden = self._hidden([Pass(cache, tokens[:1])], weighted)
        cache.length += 1
        logits: LogitArray = to_numpy(self._network.logits(hidden))[0]
        return logits

    @torch.inference_mode()
    def forward_blocks(
        self, blocks: Sequence[Block], layers: Sequence[Layer] | None = None, logits: bool = True
    ) -> list[BlockOutput]:
        if not logits:
            blocks = without_logits(blocks)
        given = check_blocks(blocks, layers, self.config.layers)
        sizes = [len(each.tokens) for each in blocks]
        attended = self._attention(
            [each.cache for each in blocks],
            sizes,
            lambda window: [block_mask(each, window) for each in blocks],
        )
        positions = torch.from_numpy(np.concatenate([each.positions for each in blocks]))
        if given:
            rows = np.concatenate([each.inputs for each in blocks if each.inputs is not None])
            x = torch.from_numpy(rows).to(self._device, self._dtype)
        else:
            x = self._embed(np.concatenate([each.tokens for each in blocks]))
        states: list[Tensor] = []
        at = positions.to(self._device)
        hidden = self._network(x, at, attended, layers=layers, states=states)
        if any(each.wanted is not None for each in blocks):
            starts = np.cumsum([0, *sizes])[:-1]
            asked = [s + each.wanted_rows for s, each in zip(starts, blocks, strict=True)]
            hidden = hidden[torch.from_numpy(np.concatenate(asked)).to(self._device)]
        found = to_numpy(self._network.logits(hidden))
        return split_blocks(blocks, found, to_numpy(states[0]))

    @torch.inference_mode()
    def keep(self, cache: TorchCache, pending: int, path: Sequence[int]) -> None:
        start = cache.length + pending
        if list(path) != list(range(len(path))):
            rows = torch.tensor(path, device=self._device) + start
            cache.data[:, :, :, start : start + len(path)] = cache.data[:, :, :, rows]
        cache.length = start + len(path)

    def truncate(self, cache: TorchCache, length: int) -> None:
        cache.length = min(cache.length, length)

    rewind = truncate  # which frees nothing

    def fork(self, cache: TorchCache) -> TorchCache:
        return TorchCache(cache.data[:, :, :, : cache.length].clone(), cache.length)

    def release(self, cache: TorchCache) -> None:
        cache.data = cache.data[:, :, :, :0].clone()
        cache.length = 0

    def _hidden(
        self,
        passes: Sequence[Pass],
        embeddings: Tensor | None = None,
        streams: list[Tensor] | None = None,
    ) -> Tensor:
        # Final hidden states `[rows of all passes, hidden_size]`; fills the caches. `embeddings`
        # replace those of the tokens; `streams` gets the four parts of the features.
        attended = self._attention(
            [p.cache for p in passes],
            [pass_rows(p) for p in passes],
            lambda window: [_mask(p, window) for p in passes],
        )
        positions = np.concatenate([pass_positions(p, p.cache.length) for p in passes])
        if embeddings is None:
            tokens = np.concatenate([pass_tokens(p) for p in passes])
            embeddings = self._embed(tokens)
        places = torch.from_numpy(positions).to(self._device)
        return self._network(embeddings, places, attended, streams)

    def _attention(
        self,
        caches: Sequence[TorchCache],
        sizes: Sequence[int],
        masks_of: Callable[[int], list[BoolArray]],
    ) -> Attend:
        # Makes room for so many rows; `masks_of` gives each sequence's mask under a window.
        for cache, size in zip(caches, sizes, strict=True):
            reserve(cache, cache.length + size)
        masks: dict[int, list[Tensor]] = {}

        def attended(
            layer: int, heads: Heads, queries: Tensor, keys: Tensor, values: Tensor
        ) -> Tensor:
            if heads.window not in masks:
                made = masks_of(heads.window)
                masks[heads.window] = [torch.from_numpy(each).to(self._device) for each in made]
            split = [x.split_with_sizes(list(sizes)) for x in (queries, keys, values)]
            out = []
            for c, m, q, k, v in zip(caches, masks[heads.window], *split, strict=True):
                past = c.length + len(m) - m.shape[1]
                out.append(attend(c.data[layer], m, q, k, v, heads.scale, past=past))
            return torch.cat(out)

        return attended

    def _embed(self, ids: IntArray) -> Tensor:
        extra = ids >= self.config.vocab_size
        tokens = torch.from_numpy(np.where(extra, 0, ids)).to(self._device)
        embeddings = self._network.embed(tokens)
        if extra.any():
            rows = torch.from_numpy(self._extra[ids[extra] - self.config.vocab_size])
            embeddings[torch.from_numpy(extra).to(self._device)] = rows.to(embeddings)
        return embeddings


def _mask(p: Pass, window: int) -> BoolArray:
    # Without a window a draft's rows see all that is cached: no mask is made for that.
    apart = p.draft and not window and p.cache.length >= LONG
    return pass_mask(p, 0 if apart else p.cache.length, window)


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

"""Transformers runtime: any causal language model of that library, correct before fast."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from paceline.core import tree
from paceline.core.processor import usable_threads
from paceline.core.target import DEFAULT_OPTIONS, Output, Pass, RuntimeOptions
from paceline.core.types import Capabilities, IntArray, TokenTree
from paceline.errors import ModelError, RuntimeUnavailable
from paceline.models.config import ModelConfig, inverse_frequencies
from paceline.models.source import ModelSource
from paceline.models.weights import Weights, canonical_name
from paceline.runtimes.passes import pass_mask, pass_positions, pass_tokens
from paceline.runtimes.torch.target import to_numpy, torch_device, torch_dtype


def load(source: ModelSource, dtype: torch.dtype) -> Any:
    """Load the library's model of a source, on the CPU.

    Raises:
        OSError, ValueError, KeyError, ImportError, RuntimeError: the library cannot read it.
        ModelError: its weights are damaged.
    """
    auto = transformers.AutoModelForCausalLM
    if not source.path.is_file():
        return auto.from_pretrained(str(source.path), dtype=dtype, local_files_only=True)
    try:
        config = source.config
    except ModelError:  # of a family that paceline does not know, but transformers may
        folder, name = str(source.path.parent), source.path.name
        return auto.from_pretrained(folder, gguf_file=name, dtype=dtype)
    if not config.is_plain:
        folder, name = str(source.path.parent), source.path.name
        return auto.from_pretrained(folder, gguf_file=name, dtype=dtype)
    # The library's own reader takes many times longer, and needs the package accelerate.
    return _from_weights(config, source.weights(), dtype)


def _from_weights(config: ModelConfig, weights: Weights, dtype: torch.dtype) -> Any:
    theirs = transformers.AutoConfig.for_model(
        config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.ffn_size,
        max_position_embeddings=config.max_context,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_base},
        tie_word_embeddings=config.tied_embeddings,
        attention_bias=config.qkv_bias,
        sliding_window=None,
    )
    kind: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(theirs)]
    with torch.device("meta"):
        names = list(kind(theirs).state_dict())
    state = {
        name: torch.from_numpy(weights[canonical_name(name)])
        for name in names
        if not (config.tied_embeddings and name == "lm_head.weight")
    }
    model = kind.from_pretrained(None, config=theirs, state_dict=state, dtype=dtype)
    model.model.rotary_emb.inv_freq = torch.from_numpy(inverse_frequencies(config)).float()
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library's progress bars and advice."""
    logging: Any = transformers.utils.logging
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


_CHUNK = 512  # tokens per prefill pass
_CONTEXT = 2048  # assumed where a model's config does not say


@dataclass(slots=True)
class TransformersCache:
    """Keys and values of one sequence.

    Attributes:
        inner: a `DynamicCache`; its tensors `[1, kv_heads, tokens, head_dim]` are replaced, never
            written in place, so forks may share them.
        length: cached tokens. What `inner` has beyond belongs to the last forward.
    """

    inner: Any
    length: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    logits: Tensor
    hidden: Tensor


class TransformersTarget:
    """A causal language model of the transformers library as a `Target`.

    Sequences of a batch run one after the other. A draft with branches runs as one masked pass if a
    probe at loading shows that the model can, else path by path. Logits are float32, or float64
    of a float64 model.

    Args:
        model: in evaluation mode on its device.
        precision: name of its dtype, for display.
        options: only the context limit is used.

    Raises:
        RuntimeUnavailable: the cache is not one of plain keys and values, so drafts cannot be
            rolled back.
    """

    def __init__(
        self, model: Any, precision: str = "fp32", options: RuntimeOptions = DEFAULT_OPTIONS
    ) -> None:
        self._model = model
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        self._few_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        config = model.config.get_text_config()
        self._masked = False
        probe = self._probe(config)
        # A window per layer needs a mask per layer, which only the model itself can build.
        self._masked = not _slides(config) and self._masks_work(probe)
        self._capabilities = Capabilities(
            runtime="transformers",
            device=self._device.type,
            precision=precision,
            vocab_size=probe.logits.shape[1],
            max_context=options.limit(getattr(config, "max_position_embeddings", None) or _CONTEXT),
            hidden_size=probe.hidden.shape[1],
            hidden_states=True,
            bit_exact=False,
        )

    @classmethod
    def load(
        cls,
        source: ModelSource,
        options: RuntimeOptions = DEFAULT_OPTIONS,
    ) -> TransformersTarget:
        """Load a model.

        Raises:
            ModelError: transformers cannot read the model.
            InvalidOption: unknown device or precision.
            RuntimeUnavailable: there is no such device, or the model's cache cannot roll back.
        """
        if options.threads is not None:
            torch.set_num_threads(usable_threads(options.threads))
        precision = options.precision or "fp32"
        place, dtype = torch_device(options.device or "cpu"), torch_dtype(precision)
        try:
            with quiet():
                model = load(source, dtype).to(place)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ModelError(
                f"transformers cannot load {source.name} ({reason}): check the model's files"
            ) from error
        return cls(model, precision, options)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def warm_up(self) -> None: ...

    def open(self) -> TransformersCache:
        return TransformersCache(transformers.DynamicCache())

    @torch.inference_mode()
    def prefill(
        self, cache: TransformersCache, tokens: Sequence[int], features: bool = False
    ) -> None:
        _cut(cache.inner, cache.length)
        for start in range(0, len(tokens), _CHUNK):
            p = Pass(cache, tokens[start : start + _CHUNK])
            self._run(cache.inner, pass_tokens(p), pass_positions(p, cache.length), 1)
            cache.length += len(p.pending)

    @torch.inference_mode()
    def forward(self, passes: Sequence[Pass]) -> list[Output]:
        outputs = []
        for p in passes:
            result = self._rows(p)
            hidden = to_numpy(result.hidden) if p.hidden else None
            outputs.append(Output(to_numpy(result.logits), hidden))
        return outputs

    def keep(self, cache: TransformersCache, pending: int, path: Sequence[int]) -> None:
        start = cache.length + pending
        if list(path) != list(range(len(path))):
            rows = torch.tensor([*range(start), *(start + node for node in path)])
            for layer in cache.inner.layers:
                index = rows.to(layer.keys.device)
                layer.keys = layer.keys.index_select(-2, index)
                layer.values = layer.values.index_select(-2, index)
        cache.length = start + len(path)

    def truncate(self, cache: TransformersCache, length: int) -> None:
        cache.length = min(cache.length, length)

    def fork(self, cache: TransformersCache) -> TransformersCache:
        fork = self.open()
        if cache.length:
            for index, layer in enumerate(cache.inner.layers):
                keys = layer.keys[..., : cache.length, :]
                fork.inner.update(keys, layer.values[..., : cache.length, :], index)
        fork.length = cache.length
        return fork

    def release(self, cache: TransformersCache) -> None:
        cache.inner, cache.length = transformers.DynamicCache(), 0

    def _rows(self, p: Pass) -> _Rows:
        cache, draft = p.cache, p.draft
        _cut(cache.inner, cache.length)
        if draft is not None and not tree.is_chain(draft) and not self._masked:
            return self._by_paths(p, draft)
        mask = None
        if draft is not None and not tree.is_chain(draft):
            seen = torch.from_numpy(pass_mask(p, cache.length)).to(self._device)
            blank = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
            mask = blank.masked_fill(~seen, torch.finfo(self._dtype).min)[None, None]
        tokens, positions = pass_tokens(p), pass_positions(p, cache.length)
        return self._run(cache.inner, tokens, positions, len(tokens) - len(p.pending) + 1, mask)

    def _by_paths(self, p: Pass, draft: TokenTree) -> _Rows:
        # Every root-to-leaf path as a continuation of the pending tokens.
        inner, plain = p.cache.inner, Pass(p.cache, p.pending)
        positions = pass_positions(p, p.cache.length)
        pending = len(p.pending)
        root = self._run(inner, pass_tokens(plain), positions[:pending], 1)
        base = p.cache.length + pending
        runs: list[_Rows] = []
        written: list[list[tuple[Tensor, Tensor]]] = []  # of each path: keys and values by layer
        place: dict[int, int] = {}  # node to its row in the paths put end to end
        total = 0
        for path in tree.leaf_paths(draft):
            nodes = np.asarray(path)
            runs.append(
                self._run(inner, draft.tokens[nodes], positions[pending + nodes], len(path))
            )
            written.append([(x.keys[..., base:, :], x.values[..., base:, :]) for x in inner.layers])
            _cut(inner, base)
            place.update((node, total + i) for i, node in enumerate(path))
            total += len(path)
        order = torch.tensor([place[node] for node in range(len(draft))], device=self._device)
        for layer, parts in zip(inner.layers, zip(*written, strict=True), strict=True):
            index = order.to(layer.keys.device)
            keys = torch.cat([keys for keys, _ in parts], -2).index_select(-2, index)
            values = torch.cat([values for _, values in parts], -2).index_select(-2, index)
            layer.keys = torch.cat([layer.keys, keys], -2)
            layer.values = torch.cat([layer.values, values], -2)
        logits, hidden = torch.cat([r.logits for r in runs]), torch.cat([r.hidden for r in runs])
        return _Rows(
            torch.cat([root.logits, logits[order]]), torch.cat([root.hidden, hidden[order]])
        )

    def _run(
        self,
        inner: Any,
        tokens: IntArray,
        positions: IntArray,
        last: int,
        mask: Tensor | None = None,
    ) -> _Rows:
        few = {"logits_to_keep": last} if self._few_logits else {}
        out = self._model(
            input_ids=torch.from_numpy(tokens).to(self._device)[None],
            position_ids=torch.from_numpy(positions).to(self._device)[None],
            attention_mask=mask,
            past_key_values=inner,
            use_cache=True,
            output_hidden_states=True,
            **few,
        )
        return _Rows(out.logits[0, -last:], out.hidden_states[-1][0, -last:])

    def _probe(self, config: Any) -> _Rows:
        try:
            rows, layers = self._try_draft(config)
        except Exception as error:  # foreign model code may raise anything
            reason = " ".join(str(error).split())
            raise RuntimeUnavailable(
                f"the transformers runtime cannot drive {config.model_type} models ({reason}): "
                "choose another model"
            ) from error
        sizes = [getattr(layer, "keys", torch.empty(0, 0)).shape[-2] for layer in layers]
        if not sizes or set(sizes) != {len(_PROMPT) + len(_BRANCHED)}:
            raise RuntimeUnavailable(
                f"{config.model_type} models keep a state that cannot be rolled back: choose one "
                "with plain attention"
            )
        return rows

    @torch.inference_mode()
    def _try_draft(self, config: Any) -> tuple[_Rows, list[Any]]:
        cache = self.open()
        rows = self._rows(Pass(cache, _PROMPT, _BRANCHED))
        return rows, cache.inner.layers

    def _masks_work(self, expected: _Rows) -> bool:
        self._masked = True
        try:
            found = self._try_draft(None)[0].logits.float()
        except Exception:  # a model that takes no such mask may fail in any way
            return False
        wanted = expected.logits.float()
        noise = max(1e-3, 8 * torch.finfo(self._dtype).eps)
        return bool((found - wanted).abs().max() <= noise * wanted.abs().max())


_PROMPT = (1, 2, 3)
_BRANCHED = tree.merge(tree.chain([4, 5]), tree.chain([6, 5]))


def _cut(inner: Any, length: int) -> None:
    if inner.get_seq_length() > length:
        for layer in inner.layers:
            layer.keys = layer.keys[..., :length, :]
            layer.values = layer.values[..., :length, :]


def _slides(config: Any) -> bool:
    window = getattr(config, "sliding_window", None)
    return window is not None and getattr(config, "use_sliding_window", True)

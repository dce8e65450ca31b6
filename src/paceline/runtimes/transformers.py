"""Transformers runtime: ragged batches of trees on any causal model of that library.

A sequence is a row of padded key-value buffers, its keys from slot 0 on and those of a forward
right behind them, so that nothing is realigned when sequences accept different numbers of tokens.
What a row sees goes into the model's own masks, by the positions of tokens in their own sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from paceline.core import tree
from paceline.core.processor import usable_threads
from paceline.core.target import (
    DEFAULT_OPTIONS,
    Layer,
    Output,
    Rows,
    RuntimeOptions,
    row_mask,
    row_positions,
)
from paceline.core.types import BoolArray, Capabilities, IntArray
from paceline.errors import InvalidOption, ModelError, RuntimeUnavailable
from paceline.models.config import ELSEWHERE, ModelConfig, inverse_frequencies
from paceline.models.quantised import quantization_of
from paceline.models.source import ModelSource
from paceline.models.tokenizer import read_json
from paceline.models.weights import Weights, canonical_name
from paceline.runtimes.torch.target import to_numpy, torch_device, torch_dtype


def load(source: ModelSource, dtype: torch.dtype) -> Any:
    """Load the library's model of a source, on the CPU.

    Raises:
        OSError, ValueError, KeyError, ImportError, RuntimeError: the library cannot read it.
        ModelError: its weights are damaged.
    """
    auto = transformers.AutoModelForCausalLM
    if not source.path.is_file():
        _refuse_unknown_quantisation(source)
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


def _refuse_unknown_quantisation(source: ModelSource) -> None:
    # The library passes over what it does not know, and reads codes as weights.
    said = quantization_of(read_json(source.path / "config.json"))
    method = said.get("quant_method")
    if said and method not in (*AUTO_QUANTIZATION_CONFIG_MAPPING, "bitsandbytes"):
        raise ModelError(
            f"{source.path} is quantised by {method!r}, which neither paceline nor transformers "
            "knows: use the model as it was before, or another quantisation of it"
        )


def _why_not_here(source: ModelSource) -> str:
    # The fix, after what the CPU runtime says of the model.
    try:
        source.config  # noqa: B018 (raises for families that are not written here)
    except ModelError as error:
        return f", and paceline reads no such model: {str(error).removesuffix(f': {ELSEWHERE}')}"
    return ": check the model's files"


def _from_weights(config: ModelConfig, weights: Weights, dtype: torch.dtype) -> Any:
    theirs = transformers.AutoConfig.for_model(
        config.family,
        **config.hf_sizes(),
        max_position_embeddings=config.max_context,
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
_ROOM = 64  # spare slots of new buffers
_LONG = 16  # more pending tokens than this, without a draft, would pad all others: a forward apart


class Shape(Enum):
    """What a model can verify in one forward, from most to least; a check at loading decides."""

    TREES = "a row per sequence, trees by masks"
    PATHS = "a row per path of a tree"  # its keys' positions are their slots (ALiBi)
    LENGTHS = "a row per path, sequences of equal length"  # it counts positions by itself


class Buffers(transformers.Cache):  # type: ignore[misc]
    """Keys and values of some sequences, a row for each; what a forward of the library writes to.

    Attributes:
        keys, values: per layer `[rows, kv_heads, capacity, head_dim]`, made at its first update.
            Slots that were never written are zeros, never NaN.
        width, end: new tokens per row in this forward, padding included, and the end of the last.
        updated: layers that have written in it.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.rows, self.capacity = rows, capacity
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.begin([0] * rows, 0)

    def begin(self, starts: Sequence[int], width: int) -> None:
        """Start a forward: cached tokens of each row, new ones per row."""
        self.width, self.end = width, max(starts) + width
        self._slots = torch.tensor(starts)[:, None] + torch.arange(width)
        self._level = min(starts) == max(starts)
        self.updated: set[int] = set()

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.updated.add(layer)
        return self._write(self.keys, keys, layer), self._write(self.values, values, layer)

    def _write(self, buffers: dict[int, Tensor], new: Tensor, layer: int) -> Tensor:
        if layer not in buffers:
            _, heads, _, size = new.shape
            buffers[layer] = new.new_zeros(self.rows, heads, self.capacity, size)
        buffer = buffers[layer]
        if self._level:
            buffer[:, :, self.end - self.width : self.end] = new
        else:
            self._slots = self._slots.to(new.device)
            rows = torch.arange(self.rows, device=new.device)[:, None]
            buffer[rows, :, self._slots] = new.transpose(1, 2)
        return buffer[:, :, : self.end]

    def copy(self, row: int, source: Buffers, theirs: int, length: int) -> None:
        for mine, other in ((self.keys, source.keys), (self.values, source.values)):
            for layer, buffer in other.items():
                if layer not in mine:
                    _, heads, _, size = buffer.shape
                    mine[layer] = buffer.new_zeros(self.rows, heads, self.capacity, size)
                mine[layer][row, :, :length] = buffer[theirs, :, :length]

    def move(self, row: int, start: int, path: Sequence[int]) -> None:
        """Gather the nodes of an accepted path behind slot `start`."""
        for buffers in (self.keys, self.values):
            for buffer in buffers.values():
                slots = torch.tensor(path, device=buffer.device) + start
                buffer[row, :, start : start + len(path)] = buffer[row, :, slots]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.end - self.width if layer_idx not in self.updated else self.end

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.end - self.width

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.end - self.width + query_length, 0


@dataclass(slots=True)
class TransformersCache:
    """Keys and values of one sequence: the first `length` slots of a row.

    `paths` has, after a forward with a row per path, the row and nodes of each.
    """

    buffers: Buffers | None = None
    row: int = 0
    length: int = 0
    paths: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Lane:
    """A row of a forward: tokens and positions `[n]`, what they see of each other `[n, n]`, the
    first token whose logits are wanted.
    """

    cache: TransformersCache
    tokens: IntArray
    positions: IntArray
    seen: BoolArray
    first: int
    nodes: tuple[int, ...] | None = None  # the path, if it is one of several of a draft


@dataclass(frozen=True, slots=True)
class _Visible:
    """What the rows of a running forward see, in place of what the library would work out.

    Attributes:
        seen: bool `[rows, 1, width, keys]`.
        queries, keys: int64 positions `[rows, 1, width, 1]` and `[rows, 1, 1, keys]`.
    """

    seen: Tensor
    queries: Tensor
    keys: Tensor


_VISIBLE: ContextVar[_Visible | None] = ContextVar("visible", default=None)


def _mask(library: Callable[..., Any], **options: Any) -> Any:
    # The library's function of a layer (causal, window, chunk), at positions instead of slots.
    visible = _VISIBLE.get()
    if visible is None:
        return library(**options)
    rows = torch.arange(len(visible.seen), device=visible.seen.device)[:, None, None, None]
    allowed = options["mask_function"](rows, 0, visible.queries, visible.keys)
    mask = visible.seen & allowed
    if library is not _EAGER:
        return mask
    blank = torch.zeros(mask.shape, dtype=options["dtype"], device=mask.device)
    return blank.masked_fill(~mask, torch.finfo(blank.dtype).min)


_EAGER = AttentionMaskInterface._global_mapping["eager"]
for _name in ("eager", "sdpa"):
    _theirs = AttentionMaskInterface._global_mapping[_name]
    AttentionMaskInterface.register(_name, partial(_mask, _theirs))


class TransformersTarget:
    """A causal language model of the transformers library as a `Target`.

    All sequences of a batch run in one forward as far as the model can, see `Shape`; chunks of
    prompts run apart. Logits are float32, or float64 of a float64 model.

    Args:
        model: in evaluation mode on its device.
        precision: name of its dtype, for display.
        options: only the context limit is used.

    Raises:
        RuntimeUnavailable: with its cache in rows the model does not compute what it computes
            without, so drafts cannot be rolled back.
    """

    def __init__(
        self, model: Any, precision: str = "fp32", options: RuntimeOptions = DEFAULT_OPTIONS
    ) -> None:
        self._model = model
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        taken = inspect.signature(model.forward).parameters
        self._few_logits, self._placed = "logits_to_keep" in taken, "position_ids" in taken
        config = model.config.get_text_config()
        self._alone = _stretches(config)
        self.shape, (vocabulary, hidden) = self._check(config)
        self.capabilities = Capabilities(
            runtime="transformers",
            device=self._device.type,
            precision=precision,
            vocab_size=vocabulary,
            max_context=options.limit(getattr(config, "max_position_embeddings", None) or _CONTEXT),
            hidden_size=hidden,
            hidden_states=True,
            bit_exact=False,
        )

    @classmethod
    def load(
        cls, source: ModelSource, options: RuntimeOptions = DEFAULT_OPTIONS
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
        except ModelError:
            raise
        except Exception as error:  # checks of configs there have kinds of their own
            reason = " ".join(str(error).split())
            raise ModelError(
                f"transformers cannot load {source.name} ({reason}){_why_not_here(source)}"
            ) from error
        return cls(model, precision, options)

    def warm_up(self) -> None: ...

    def open(self) -> TransformersCache:
        return TransformersCache()

    @torch.inference_mode()
    def prefill(
        self, cache: TransformersCache, tokens: Sequence[int], features: bool = False
    ) -> None:
        for start in range(0, len(tokens), _CHUNK):
            chunk = Rows.draft(cache, tokens[start : start + _CHUNK])
            self._run(_lanes(chunk, self.shape), hidden=False)
            self.keep(cache, chunk.num_new, ())

    @torch.inference_mode()
    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        if layers is not None or any(
            each.sees is not None or each.inputs is not None for each in rows
        ):
            raise InvalidOption(
                "runtime 'transformers' runs whole models over tokens alone, no layers or blocks: "
                "use cpu or torch"
            )
        lanes = [_lanes(each, self.shape) for each in rows]
        logits: dict[int, Tensor] = {}
        hidden: dict[int, Tensor] = {}
        for group in self._groups(rows):
            wanted = any(rows[i].hidden for i in group)
            found, states = self._run([lane for i in group for lane in lanes[i]], wanted)
            for i in group:
                mine, found = found[: len(lanes[i])], found[len(lanes[i]) :]
                logits[i] = _by_node(lanes[i], mine)
                if states:
                    mine, states = states[: len(lanes[i])], states[len(lanes[i]) :]
                    hidden[i] = _by_node(lanes[i], mine)
        return [
            Output(to_numpy(logits[i]), to_numpy(hidden[i]) if each.hidden else None)
            for i, each in enumerate(rows)
        ]

    @torch.inference_mode()
    def keep(self, cache: TransformersCache, num_new: int, path: Sequence[int]) -> None:
        start = cache.length + num_new
        if cache.paths:
            count, nodes = len(path), tuple(path)
            cache.row = next(row for row, has in cache.paths if has[:count] == nodes)
        elif list(path) != list(range(len(path))):
            assert cache.buffers is not None
            cache.buffers.move(cache.row, start, path)
        cache.length, cache.paths = start + len(path), []

    def truncate(self, cache: TransformersCache, length: int, hold: bool = False) -> None:
        cache.length = min(cache.length, length)

    @torch.inference_mode()
    def fork(self, cache: TransformersCache) -> TransformersCache:
        fork = TransformersCache(length=cache.length)
        if cache.buffers is not None:
            fork.buffers = Buffers(1, cache.length + _ROOM)
            fork.buffers.copy(0, cache.buffers, cache.row, cache.length)
        return fork

    def release(self, cache: TransformersCache) -> None:
        cache.buffers, cache.length = None, 0

    def _groups(self, rows: Sequence[Rows]) -> Iterable[list[int]]:
        # Sequences of one forward each, by index.
        groups: dict[int, list[int]] = {}
        for i, each in enumerate(rows):
            apart = self._alone or (each.tree is None and each.num_new > _LONG)
            same = each.cache.length if self.shape is Shape.LENGTHS else 0
            groups.setdefault(-1 - i if apart else same, []).append(i)
        return groups.values()

    def _run(self, lanes: list[_Lane], hidden: bool) -> tuple[list[Tensor], list[Tensor]]:
        # Per lane: logits of its tokens from `first` on, and their hidden states if wanted.
        width = max(len(lane.tokens) for lane in lanes)
        buffers = _joined(lanes, width)
        starts = [lane.cache.length for lane in lanes]
        buffers.begin(starts, width)
        tokens, positions = np.zeros((2, len(lanes), width), np.int64)
        for row, lane in enumerate(lanes):
            tokens[row, : len(lane.tokens)] = lane.tokens
            positions[row] = lane.positions[-1]  # of padding: one that the model has
            positions[row, : len(lane.positions)] = lane.positions
        few = width - min(lane.first for lane in lanes)
        options: dict[str, Any] = {"logits_to_keep": few} if self._few_logits else {}
        if self._placed:
            options["position_ids"] = torch.from_numpy(positions).to(self._device)
        own = self.shape is not Shape.LENGTHS and not _plain(lanes)
        token = _VISIBLE.set(self._visible(lanes, positions, buffers.end) if own else None)
        try:
            out = self._model(
                input_ids=torch.from_numpy(tokens).to(self._device),
                attention_mask=None,
                past_key_values=buffers,
                use_cache=True,
                output_hidden_states=hidden,
                **options,
            )
        finally:
            _VISIBLE.reset(token)
        if not buffers.updated or buffers.updated != set(buffers.keys):
            raise ValueError("it wrote no keys and values")
        skipped = width - out.logits.shape[1]
        ends = [(lane.first, len(lane.tokens)) for lane in lanes]
        logits = [out.logits[i, a - skipped : b - skipped] for i, (a, b) in enumerate(ends)]
        states = out.hidden_states[-1] if hidden else None
        return logits, [] if states is None else [states[i, a:b] for i, (a, b) in enumerate(ends)]

    def _visible(self, lanes: list[_Lane], positions: IntArray, end: int) -> _Visible:
        # Padding sees itself alone (no row may see nothing) and is seen by no other row.
        rows, width = positions.shape
        seen = np.zeros((rows, width, end), np.bool_)
        keys = np.tile(np.arange(end), (rows, 1))
        for row, lane in enumerate(lanes):
            start, count = lane.cache.length, len(lane.tokens)
            seen[row, :count, :start] = True
            seen[row, :count, start : start + count] = lane.seen
            padding = np.arange(count, width)
            seen[row, padding, start + padding] = True
            keys[row, start : start + width] = positions[row]
        place = self._device
        return _Visible(
            torch.from_numpy(seen).to(place)[:, None],
            torch.from_numpy(positions).to(place)[:, None, :, None],
            torch.from_numpy(keys).to(place)[:, None, None],
        )

    def _check(self, config: Any) -> tuple[Shape, tuple[int, int]]:
        """Return what the loaded model can do, and its vocabulary and hidden size."""
        reason = "its logits differ"
        for self.shape in Shape:
            try:
                sizes = self._agrees()
            except Exception as error:  # foreign model code may raise anything
                reason = " ".join(f"{error}".split()) or type(error).__name__
                continue
            if sizes is not None:
                return self.shape, sizes
        raise RuntimeUnavailable(
            f"the transformers runtime cannot run {config.model_type} models: they compute "
            f"something else from a cache that can be rolled back ({reason}); choose a model with "
            "plain attention"
        )

    @torch.inference_mode()
    def _agrees(self) -> tuple[int, int] | None:
        # Two steps of a small ragged batch, against whole sequences without any cache.
        most = self._model.config.get_text_config().vocab_size
        texts = [[token % most for token in text] for text in _TEXTS]
        caches = [self.open() for _ in texts]
        for cache, text in zip(caches, texts, strict=True):
            self.prefill(cache, text[:-2])
        sizes = (0, 0)
        for path in ((2, 3), ()):
            rows = [
                Rows.draft(cache, text[cache.length :], draft, hidden=True)
                for cache, text, draft in zip(caches, texts, _DRAFTS, strict=True)
            ]
            for each, text, output in zip(rows, texts, self.forward(rows), strict=True):
                draft = each.tree or tree.EMPTY
                for nodes in tree.leaf_paths(draft) or [()]:
                    whole = self._uncached(text + draft.tokens[list(nodes)].tolist())
                    found = output.logits[[0, *(node + 1 for node in nodes)]]
                    if not _near(found, whole[-len(found) :], self._dtype):
                        return None
                assert output.hidden is not None
                sizes = output.logits.shape[1], output.hidden.shape[1]
            for each, text in zip(rows, texts, strict=True):
                taken = path if each.tree is _BRANCHED else ()
                self.keep(each.cache, each.num_new, taken)
                text += [*_BRANCHED.tokens[list(taken)].tolist(), 3 % most]
        return sizes

    def _uncached(self, tokens: list[int]) -> Tensor:
        ids = torch.tensor([tokens], device=self._device)
        logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        return logits


_BRANCHED = tree.merge(tree.chain([4, 5]), tree.chain([6, 5]))
_TEXTS = ((1, 2, 3, 1, 5, 2, 4), (4, 2), (3, 6, 1, 2), (5, 3, 2, 2))
_DRAFTS = (None, _BRANCHED, _BRANCHED, tree.chain([6, 1, 2]))


def _near(found: Any, wanted: Tensor, dtype: torch.dtype) -> bool:
    # Float32 at best: many models take softmax and rotations in it, whatever their dtype.
    noise = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) ** 0.5 * wanted.abs().max()
    return bool((torch.from_numpy(found) - torch.from_numpy(to_numpy(wanted))).abs().max() <= noise)


def _stretches(config: Any) -> bool:
    """Whether the longest sequence of a forward sets the rotations of all."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    return any(each.get("rope_type") in ("dynamic", "longrope") for each in kinds)


def _plain(lanes: list[_Lane]) -> bool:
    """Whether the library's own masks do: chains at the same positions."""
    first = lanes[0].positions
    chain = bool(first[-1] - first[0] == len(first) - 1)
    return chain and all(np.array_equal(lane.positions, first) for lane in lanes)


def _lanes(rows: Rows, shape: Shape) -> list[_Lane]:
    """Return the rows of a sequence: one, or one per path of a tree."""
    cache, tokens, positions = rows.cache, np.asarray(rows.tokens), row_positions(rows)
    if not rows.tree or shape is Shape.TREES or tree.is_chain(rows.tree):
        return [_Lane(cache, tokens, positions, row_mask(rows, past=0), rows.root)]
    lanes = []
    for path in tree.leaf_paths(rows.tree):
        own = np.array([*range(rows.num_new), *(rows.num_new + node for node in path)])
        chain = np.tri(len(own), dtype=np.bool_)
        lanes.append(_Lane(cache, tokens[own], positions[own], chain, rows.root, path))
    return lanes


def _by_node(lanes: list[_Lane], rows: list[Tensor]) -> Tensor:
    """Return the rows of a pass's root and nodes, in their order."""
    if lanes[0].nodes is None:
        return rows[0]
    found = {-1: rows[0][0]}
    for lane, mine in zip(lanes, rows, strict=True):
        found.update(zip(lane.nodes or (), mine[1:], strict=True))
    return torch.stack([found[node] for node in sorted(found)])


def _joined(lanes: list[_Lane], width: int) -> Buffers:
    """Return buffers whose rows are the lanes, with room for a forward.

    The last forward's are taken again while the batch is the same; only then nothing is copied.
    """
    caches = [lane.cache for lane in lanes]
    end = max(cache.length for cache in caches) + width
    last = caches[0].buffers
    fits = last is not None and last.rows == len(lanes) and end <= last.capacity
    if not fits or any(c.buffers is not last or c.row != row for row, c in enumerate(caches)):
        last = Buffers(len(lanes), end + max(_ROOM, end // 4))
        for row, cache in enumerate(caches):
            if cache.buffers is not None:
                last.copy(row, cache.buffers, cache.row, cache.length)
    assert last is not None
    for cache in caches:
        cache.paths = []
    for row, lane in reversed(list(enumerate(lanes))):
        lane.cache.buffers, lane.cache.row = last, row
        if lane.nodes is not None:
            lane.cache.paths.insert(0, (row, lane.nodes))
    return last

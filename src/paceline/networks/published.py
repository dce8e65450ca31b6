"""Drafters that others publish, in the layouts of those who train them.

A head reads the target's hidden states at some boundaries, and may have a width, rotary positions,
an embedding and a LM head of its own. Boundary b is the state that enters layer b; that of as many
layers as there are comes before the final norm, and `FINAL` is the state after it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.core.options import require
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption, ModelError
from paceline.models import kinds
from paceline.models.config import FINAL, ModelConfig, feature_layers
from paceline.models.families import hf_config
from paceline.models.families.base import GGUF_PARTS, HF_PARTS, LayerNames
from paceline.models.gguf import GGUFFile, dequantize
from paceline.models.hub import from_hub
from paceline.models.ops import Ops, Rows, Sight
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.source import unknown_model
from paceline.models.tokenizer import read_json
from paceline.models.weights import Weights
from paceline.networks import assistant
from paceline.networks.base import Network, Shapes
from paceline.networks.blocks import before, decoder_layer, family_shapes, with_biases
from paceline.networks.dflash import DSpark, MaskedBlock, PublishedDFlash
from paceline.networks.last_state import MlpSpeculator, PublishedEagle, PublishedMedusa
from paceline.networks.pickled import PickledTensors
from paceline.networks.weights import LazyTensors, Trained, as_stored

# Those that are read, and the drafters that run them.
DRAFTERS = {
    "EAGLE-3": "eagle3",
    "P-EAGLE": "eagle3",
    "DFlash": "dflash",
    "DSpark": "dspark",
    "EAGLE-1": "eagle",
    "Medusa": "medusa",
    "MLP speculator": "mlp-speculator",
    assistant.KIND: assistant.Assistant.name,
}
# Those for which nothing is trained here.
ALONE = ("dspark", "mlp-speculator", assistant.Assistant.name)
_STEPS = 7  # of a draft at most, where the config names none

# Tensors outside the layers in safetensors and pickles, and in GGUF files. Of the first layer
# "attention_norm" norms the embeddings and "hidden_norm" the states beside them.
_HF_ENDS = {
    **{"fc": "fc", "norm": "norm", "head": "lm_head", "embed": "embed_tokens"},
    "hidden_norm": "hidden_norm",
    "markov_in": "markov_head.markov_w1",
    "markov_out": "markov_head.markov_w2",
    "markov_gate": "markov_head.gate_proj",
}
# Files of weights in a directory, the first that is there.
_FILES = (
    "model.safetensors",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.pt",
)
# Names of Medusa's heads, as FasterDecoding and vLLM have them.
_MEDUSA = (
    (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.\2."),
    (r"^(\d+)\.\d+\.weight$", r"heads.\1.weight"),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.", r"blocks.\1.\2."),
    (r"^lm_heads\.(\d+)\.weight$", r"heads.\1.weight"),
    (r"^lm_head\.weight$", "head.weight"),
)
_GGUF_ENDS = {
    **{"fc": "fc", "norm": "output_norm", "head": "output", "embed": "token_embd"},
    "hidden_norm": "enc.output_norm",
    "markov_in": "markov_w1",
    "markov_out": "markov_w2",
}
# Entries of a block drafter that change what is computed; of the latter two what is so always.
_GGUF_BLOCK = (
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.causal",
    "rope.dimension_sections",
)
_HIDDEN_NORMS = ("attn_norm_2", "hidden_norm")
# What a checkpoint may hold that says nothing of a draft, or that is computed.
_SPARE = (
    "t2d",
    "verifier_norm",
    "verifier_lm_head",
    "rotary_emb",
    "rope_freqs",
    "confidence_head",  # how far a draft goes is learned from what is accepted
)


class _Tensors(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> LogitArray: ...

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring(ABC):
    """How a drafter is put together, where those of its kind differ.

    Attributes:
        width: of the target's hidden states.
        boundaries: those that it reads; empty for the usual three.
        doubts: what its config does not say, or says in a way that is read in two.
    """

    width: int
    boundaries: tuple[int, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    @abstractmethod
    def kind(self) -> str:
        """What its publishers call it, of `DRAFTERS`."""

    @property
    def drafter(self) -> str:
        """The drafter that runs it."""
        return DRAFTERS[self.kind]

    @abstractmethod
    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        """Build the network of layers of this shape.

        Args:
            config: of its layers.
            read: numbers of a row of features.
            present: its tensors.
            steps: most tokens of a draft, if nothing else says so.
            drafted: size of the draft vocabulary.
        """

    @abstractmethod
    def said(self) -> dict[str, Any]:
        """Return what a reader of its card wants to know, as words and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWiring(Wiring):
    """That of EAGLE-3 and P-EAGLE heads.

    Attributes:
        slots: tokens that are foretold in one pass; 0 for one (EAGLE-3).
        mask: id that stands for those behind the root, where there are slots.
        norms: RMS norms before `fc`: over all it reads ("whole"), over each part, or none.
        norm_before_residual: the stream of the first layer begins after its norm.
        norm_output: what goes on to the next step is normed.
    """

    slots: int = 0
    mask: int = 0
    norms: str = ""
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def kind(self) -> str:
        return "P-EAGLE" if self.slots else "EAGLE-3"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        kind = PublishedPEagle if self.slots else PublishedEagle3
        return kind(config, self, read // self.width, present, self.slots or steps)

    def said(self) -> dict[str, Any]:
        norms = {"whole": "all states as one", "parts": "each state"}.get(self.norms, "nothing")
        block = f"{self.slots} in one pass, mask {self.mask}" if self.slots else "one in a pass"
        return {
            "foretells": block,
            "norms_before_fc": norms,
            "norm_before_residual": self.norm_before_residual,
            "norm_output": self.norm_output,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWiring(Wiring):
    """That of DFlash and DSpark drafters."""

    block: MaskedBlock

    @property
    def kind(self) -> str:
        return "DSpark" if self.block.rank else "DFlash"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        if self.block.rank:
            return DSpark(config, self.block, read, present, drafted)
        return PublishedDFlash(config, self.block, read, present)

    def said(self) -> dict[str, Any]:
        block = self.block
        count = block.slots - (not block.anchored)
        table = f"of rank {block.rank}" + ", gated by the hidden state" * block.gated
        return {
            "block": f"{block.slots} slots, of which {count} foretell a token, mask {block.mask}",
            "causal_layers": sorted(block.causal) or "none",
            "token_before": table if block.rank else "not read",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWiring(Wiring):
    """That of heads that read the last hidden state.

    Attributes:
        heads: of Medusa, each of so many `blocks`.
        inner: width of an MLP speculator's states; the first is `normed`, steps are `tied`.
    """

    boundaries: tuple[int, ...] = (FINAL,)
    heads: int = 0
    blocks: int = 0
    inner: int = 0
    tied: bool = False
    normed: bool = False

    @property
    def kind(self) -> str:
        return "Medusa" if self.heads else "MLP speculator" if self.inner else "EAGLE-1"

    def network(
        self, config: ModelConfig, read: int, present: frozenset[str], steps: int, drafted: int
    ) -> Network:
        if self.heads:
            return PublishedMedusa(config, self.heads, self.blocks, "heads.0" in present)
        if self.inner:
            return MlpSpeculator(config, self.inner, self.tied, self.normed, steps)
        return PublishedEagle(config, present, steps)

    def said(self) -> dict[str, Any]:
        many = {"foretells": f"{self.heads} in one pass", "blocks_of_a_head": self.blocks}
        return many if self.heads else {"foretells": "one in a pass"}


class PublishedEagle3(Network):
    """Draft one token per pass of the layers, whose shape is `config`'s; names are families'."""

    name: ClassVar[str] = "eagle3"

    def __init__(
        self,
        config: ModelConfig,
        wiring: HeadWiring,
        parts: int,
        present: frozenset[str],
        steps: int,
    ) -> None:
        """Set the shape; `parts` are read of a row of features, and `present` optional tensors."""
        super().__init__(config, steps=steps)
        self.wiring, self.parts, self.present = wiring, parts, present
        self.layers = config.layers  # type: ignore[misc]

    @property
    def feature_width(self) -> int:
        return self.parts * self.wiring.width

    def shapes(self) -> Shapes:
        width = self.config.hidden_size
        out: Shapes = {"fc": (width, self.feature_width), "norm": (width,)}
        if self.wiring.norms == "whole":
            out["input_norm"] = (self.feature_width,)
        elif self.wiring.norms:
            out |= {f"fc_norm.{part}": (self.wiring.width,) for part in range(self.parts)}
        out |= family_shapes(self.config, 2 * width) | {"layers.0.hidden_norm": (width,)}
        return with_biases(out, self.present)

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return self._layers(ops, self._fused(ops, features), ops.embed(tokens), "last")

    def _fused(self, ops: Ops, features: Rows) -> Rows:
        if self.wiring.norms == "whole":
            features = ops.norm(features, "input_norm")
        elif self.wiring.norms:
            each = ops.split(features, (self.wiring.width,) * self.parts)
            features = ops.concat([ops.norm(x, f"fc_norm.{i}") for i, x in enumerate(each)])
        return ops.linear(features * ops.weight("scale"), ["fc"])

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(state, norm=None if self.wiring.norm_output else "norm")

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._layers(ops, state, ops.embed(tokens), "draft")

    def _layers(self, ops: Ops, x: Rows, embedded: Rows, sees: Sight) -> Rows:
        normed = ops.norm(x, "layers.0.hidden_norm")
        read = ops.concat([ops.norm(embedded, "layers.0.attention_norm"), normed])
        x = normed if self.wiring.norm_before_residual else x
        for index in range(self.config.layers):
            here = sees if index + 1 == self.config.layers else before(sees)
            names = LayerNames.of(index)
            if not index:  # what it reads is normed
                names = names._replace(norm=None)
            x = decoder_layer(ops, self.config, names, x, here, index, read=None if index else read)
        return ops.norm(x, "norm") if self.wiring.norm_output else x


class PublishedPEagle(PublishedEagle3):
    """Draft `width` tokens in one pass (P-EAGLE): behind the root stand masks, which see it.

    Parameters "masks" and "mask_features" are embeddings and features of these, all alike,
    `[masks, ...]`; "no_root" and "no_features" are zeros, which take away those of the root.
    """

    def __init__(
        self,
        config: ModelConfig,
        wiring: HeadWiring,
        parts: int,
        present: frozenset[str],
        slots: int,
    ) -> None:
        super().__init__(config, wiring, parts, present, 1)
        self.width = slots

    @property
    def rows(self) -> int:
        return self.width - 1

    def shapes(self) -> Shapes:
        return super().shapes() | {"mask_hidden": (self.feature_width,)}

    @property
    def mask(self) -> int:
        return self.wiring.mask

    def constants(
        self, mask: LogitArray, read: Callable[[str], LogitArray]
    ) -> dict[str, LogitArray]:
        """Return parameters that no file holds, of a mask's embedding `[1, width]` and tensors."""
        features = read("mask_hidden").reshape(1, -1)
        return {
            "no_root": np.zeros_like(mask[0]),
            "no_features": np.zeros_like(features[0]),
            "masks": np.tile(mask, (self.rows, 1)),
            "mask_features": np.tile(features, (self.rows, 1)),
        }

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        first = super().start(ops, features, tokens)
        last, root = ops.last(features), ops.last(ops.embed(tokens))
        read = last * ops.weight("no_features") + ops.weight("mask_features")
        embedded = root * ops.weight("no_root") + ops.weight("masks")
        others = self._layers(ops, self._fused(ops, read), embedded, "draft")
        return ops.slots(ops.concat([first, ops.slots(others, 1)]), self.width)


@dataclass(frozen=True, slots=True)
class WiringChanges:
    """Settings of a head other than it says; `boundaries` are as "3.17.30", `shift` counts on."""

    boundaries: str = ""
    shift: int = 0
    norm_output: Literal["auto", "true", "false"] = "auto"


@dataclass(frozen=True, slots=True)
class PublishedHead:
    """A head's files, opened: what it is, and what it asks of a target.

    Attributes:
        path: file or directory.
        layout: whose names its tensors have.
        config: of its layers; `vocab_size` is the target's.
        steps: most tokens of a draft.
        made_for: name of the target in its config, if it says one.
        metadata: what the safetensors files say beside.
        names: of its tensors, by ours.
    """

    path: Path
    layout: str
    config: ModelConfig
    wiring: Wiring
    steps: int
    made_for: str
    metadata: Mapping[str, str]
    tensors: _Tensors
    names: Mapping[str, str]

    @property
    def bytes(self) -> int:
        return sum(self.tensors.stored(name)[1].nbytes for name in self.names.values())

    @property
    def draft_vocabulary(self) -> int:
        """Return how many tokens it may draft."""
        return len(self._ids()) if "d2t" in self.names else self.config.vocab_size

    def boundaries(self, layers: int) -> tuple[int, ...]:
        """Return the boundaries that it reads of a target with so many layers."""
        return self.wiring.boundaries or feature_layers(layers)

    def changed(self, changes: WiringChanges, layers: int) -> PublishedHead:
        """Return it with other settings, for a target with so many layers; raises InvalidOption."""
        wiring, found = self.wiring, self.boundaries(layers)
        if changes.norm_output != "auto":
            if not isinstance(wiring, HeadWiring):
                raise InvalidOption(
                    f"{self.path} is a {wiring.kind} drafter, whose output no next step reads: "
                    "leave out norm_output"
                )
            wiring = replace(wiring, norm_output=changes.norm_output == "true")
        if changes.boundaries:
            texts = changes.boundaries.split(".")
            good = len(texts) == len(found) and all(each.isdecimal() for each in texts)
            rule = f"{len(found)} numbers, such as {'.'.join(map(str, found))}"
            require(good, "boundaries", changes.boundaries, rule)
            found = tuple(map(int, texts))
        found = tuple(each if each == FINAL else each + changes.shift for each in found)
        return replace(self, wiring=replace(wiring, boundaries=found))

    def fit(self, target: ModelConfig, weights: Weights, model: str) -> Trained:
        """Return the head as a network for a target, whose fingerprint is `model`.

        Its embedding and LM head are the target's where they are the same, or nearly.

        Raises:
            InvalidOption: it was made for another model, or lacks a tensor.
        """
        config, wiring = self.config, self.wiring
        for what, mine, theirs in (
            ("hidden states of width", wiring.width, target.hidden_size),
            ("a vocabulary of", config.vocab_size, target.vocab_size),
        ):
            if mine != theirs:
                raise self._other(f"{what} {mine}, and the model has {theirs}")
        boundaries = self.boundaries(target.layers)
        if not all(each == FINAL or 0 <= each <= target.layers for each in boundaries):
            raise self._other(f"states {boundaries}, and the model has {target.layers} layers")
        own = config.hidden_size
        if own != target.hidden_size and not {"embed", "head"} <= self.names.keys():
            raise self._other(f"embeddings of width {own}, and the model has {target.hidden_size}")
        ids, order = self._vocabulary()
        read_of = len(boundaries) * wiring.width
        present = frozenset(self.names)
        network = wiring.network(config, read_of, present, self.steps, len(ids))
        self._check(network.shapes(), len(ids))
        read: dict[str, Callable[[], LogitArray]] = {
            name: self._reader(name) for name in network.shapes()
        }
        if "fc" in read:
            scale = self._scale(read["fc"]())
            read |= {"scale": lambda: scale, "fc": lambda: self._fc(scale)}
        near = np.arange(config.vocab_size)
        if "embed" in self.names and not self._is(
            "embed", weights, near, self._read("embed"), 0.08
        ):
            read["embed"] = self._reader("embed")
        if "head" in self.names and not self._is(
            "head", weights, ids, self._read("head")[order], 0
        ):
            read["head"] = lambda: np.ascontiguousarray(self._read("head")[order])
        if isinstance(network, PublishedDFlash | PublishedPEagle):
            place, own_table = near[network.mask][None], "embed" in read
            mask = self._read("embed")[place] if own_table else _rows(weights, "embed", place)
            for name, made in network.constants(mask, self._read).items():
                read[name] = partial(np.asarray, made)
        if isinstance(network, MlpSpeculator) and network.normed:
            read["input_norm"] = partial(np.full, wiring.width, math.sqrt(0.5), np.float32)
        return Trained(network, LazyTensors(read), ids, {"model": model, "published": self.layout})

    def _other(self, why: str) -> InvalidOption:
        named = f" ({self.made_for})" if self.made_for else ""
        return InvalidOption(
            f"{self.path} was made for another model{named}: it reads {why}: use a head of the "
            "model, or leave out --draft-model"
        )

    def _damaged(self, why: str) -> InvalidOption:
        return _no_whole(self.path, self.wiring.kind, why)

    def _check(self, shapes: Shapes, drafted: int) -> None:
        width = self.config.hidden_size
        wanted = {**shapes, "head": (drafted, width), "embed": (self.config.vocab_size, width)}
        for name in shapes:
            if name not in self.names:
                raise self._damaged(f"it has no tensor for {name}")
        for name, theirs in self.names.items():
            if name in ("d2t", "t2d"):
                continue
            if name not in wanted:
                raise self._damaged(f"tensor {theirs} is unknown")
            shape = self.tensors.shape(theirs)
            if name == "mask_hidden" and shape:  # of one row, in two dimensions or three
                shape = shape[-1:] if math.prod(shape) == shape[-1] else shape
            if shape != wanted[name]:
                found = "x".join(map(str, shape))
                should = "x".join(map(str, wanted[name]))
                raise self._damaged(f"{theirs} is {found} and not {should}")

    def _ids(self) -> IntArray:
        # Of d2t: offsets from the place in the draft vocabulary, or ids themselves, as llama.cpp
        # writes. Offsets do not rise all the way, since frequent tokens have ids side by side.
        size, given = self.config.vocab_size, self._integers("d2t")
        if not len(given):
            raise self._damaged("d2t is empty")
        forms = [given + np.arange(len(given)), given]
        if (np.diff(given) > 0).all() and len(given) > 1:
            forms.reverse()
        known = np.flatnonzero(self._integers("t2d")) if "t2d" in self.names else None
        for ids in forms:
            found = np.unique(ids)
            fits = len(found) == len(ids) and found[0] >= 0 and found[-1] < size
            if fits and (known is None or np.array_equal(known, found)):
                return ids
        why = f"{len(given)} different tokens of {size}" if known is None else "the tokens of t2d"
        raise self._damaged(f"d2t does not map to {why}")

    def _integers(self, name: str) -> IntArray:
        kind, raw = self.tensors.stored(self.names[name])
        kinds_of = {"I64": "<i8", "I32": "<i4", "BOOL": "u1", "U8": "u1", "I8": "i1"}
        if kind not in kinds_of:
            raise self._damaged(f"{name} holds {kind} and no whole numbers")
        return raw.reshape(-1).view(kinds_of[kind]).astype(np.int64)

    def _vocabulary(self) -> tuple[IntArray, IntArray]:
        # Token ids in order, and the row of the LM head of each.
        size = self.config.vocab_size
        ids = self._ids() if "d2t" in self.names else np.arange(size, dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def _reader(self, name: str) -> Callable[[], LogitArray]:
        return lambda: self._read(name)

    def _read(self, name: str) -> LogitArray:
        values = self.tensors.read(self.names[name])
        part = name.removesuffix(".bias").rpartition(".")[2]
        if self.layout == "GGUF" and self.wiring.kind == "EAGLE-3" and part in ("q", "k"):
            # Both rotary halves of a head lie row by row in turns.
            rows = np.arange(len(values)).reshape(-1, self.config.head_dim // 2, 2)
            values = values[rows.swapaxes(1, 2).reshape(-1)]
        return values

    def _scale(self, fc: LogitArray) -> LogitArray:
        # Of features: few axes outweigh all others, which would drown in 8 bits. The product is
        # the same by a power of two; own exports name the scale that they were trained with.
        if "feature_scale" in self.metadata:
            try:
                told: LogitArray = np.frombuffer(
                    bytes.fromhex(self.metadata["feature_scale"]), "<f4"
                )
            except ValueError as error:
                raise self._damaged("feature_scale is no text of numbers") from error
            if told.shape != fc.shape[1:] or not np.isfinite(told).all() or not told.all():
                raise self._damaged("feature_scale does not fit fc")
            return told
        _, exponents = np.frexp(np.abs(fc).max(axis=0))
        return np.asarray(np.ldexp(np.float32(1), exponents), np.float32)

    def _fc(self, scale: LogitArray) -> LogitArray:
        fc: LogitArray = self._read("fc") / scale
        return as_stored(fc, self.metadata) if "feature_scale" in self.metadata else fc

    def _is(
        self, name: str, weights: Weights, ids: IntArray, mine: LogitArray, error: float
    ) -> bool:
        # Whether rows are the target's up to a relative error: some of them, then all.
        if mine.shape[1] != weights.stored(name if name in weights else "embed").shape[1]:
            return False
        for rows in (slice(None, None, max(1, len(mine) // 16)), slice(None)):
            known = _rows(weights, name, ids[rows])
            apart = np.linalg.norm(mine[rows] - known, axis=1)
            if (apart > error * np.linalg.norm(known, axis=1)).any():
                return False
        return True


def _no_whole(path: Path, kind: str, why: str) -> InvalidOption:
    return InvalidOption(f"{path} is no whole {kind} head ({why}): download it again")


# A drafter of others, opened.
Published: TypeAlias = PublishedHead | assistant.PublishedAssistant


def _rows(weights: Weights, name: str, ids: IntArray) -> LogitArray:
    # Of the target's embedding or LM head.
    table = weights.stored(name if name in weights else "embed")
    return dequantize(table.kind, table.blocks[ids if table.order is None else table.order[ids]])


def open_head(path: Path) -> Published | None:
    """Open a published drafter: a directory, a safetensors file in one, or a GGUF file.

    Return None for a model, and for what is not known at all.

    Raises:
        InvalidOption: it is a published drafter of a kind that is not read, or half of one.
        ModelError: its files cannot be read.
    """
    if path.suffix == ".gguf":
        return _in_gguf(path)
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    kind = kinds.drafter_kind(config)
    _check_kind(path, kind)
    if kind == assistant.KIND:
        return assistant.assistant_in(path, config)
    try:
        tensors, names, metadata = _opened(path)
    except ModelError:
        if kind is None:
            return None
        raise
    kind = kind or _kind_of(names)
    if kind is None:
        return None
    if kind == "Medusa":
        return _medusa(path, config, tensors, names)
    if kind == "MLP speculator":
        return _speculator(path, config, tensors, names)
    return _in_directory(path, config, kind, tensors, names, metadata)


def _opened(path: Path) -> tuple[_Tensors, list[str], Mapping[str, str]]:
    # The tensors of a file or directory, their names, and what the file says beside.
    if path.is_dir() and not (path / "model.safetensors.index.json").is_file():
        there = (path / name for name in _FILES)
        path = next((each for each in there if each.is_file()), path)
    if path.is_file() and path.suffix != ".safetensors":
        pickled = PickledTensors(path)
        return pickled, pickled.names(), {}
    files = SafetensorsFiles(path)
    return files, list(files.index()), files.metadata


def _kind_of(names: Sequence[str]) -> str | None:
    # Of a drafter whose config is that of a plain model, or says nothing.
    found = set(names)
    if any(re.fullmatch(r"(medusa_head\.)?0\.0\.linear\.weight", each) for each in names):
        return "Medusa"
    if "fc.weight" not in found:
        return None
    if "midlayer.hidden_norm.weight" in found:
        return "EAGLE-3"
    alone = "layers.0.self_attn.q_proj.weight" in found and "norm.weight" not in found
    return "EAGLE-1" if alone else None


def published_head(named: str) -> Published | None:
    """Open what is named as a draft model, if that is a published drafter: a path, or a hub id.

    Return None for a model. Raises as `open_head`.
    """
    path = Path(named).expanduser()
    if not path.exists() and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", named):
        path = from_hub(named, None, partial(unknown_model, named), drafter=True)
    return open_head(path) if path.exists() else None


def _check_kind(path: Path, kind: str | None) -> None:
    if kind not in (None, *DRAFTERS):
        raise InvalidOption(
            f"{path} is a published drafter of kind {kind}, which is not read: give one of kind "
            f"{', '.join(DRAFTERS)}, or a draft model"
        )


# An entry of a config, wherever it stands there, or else a default.
Said: TypeAlias = Callable[..., Any]


def _in_directory(
    path: Path,
    config: Mapping[str, Any],
    kind: str,
    tensors: _Tensors,
    found: Sequence[str],
    metadata: Mapping[str, str],
) -> PublishedHead:
    names = dict(_named(found))
    layer = config.get("transformer_layer_config") or config.get("model") or config
    places = [config, *(config.get(each) or {} for each in ("eagle_config", "dflash_config"))]

    def said(name: str, default: Any = None) -> Any:
        given = (each.get(name) for each in places)
        return next((each for each in given if each is not None), default)

    try:
        family = layer.get("model_type")
        own = hf_config(
            {
                "max_position_embeddings": 2048,
                "num_key_value_heads": layer["num_attention_heads"],
                "sliding_window": said("swa_window_size"),
                **layer,
                "model_type": family if family == "qwen3" else "llama",
                "architectures": None,
                "attention_bias": False,  # which tensors say
                "use_sliding_window": "sliding_attention" in (layer.get("layer_types") or ()),
            }
        )
        own = replace(own, qk_norm="layers.0.q_norm" in names, qkv_bias=False)
        inputs = tensors.shape(names["fc"])[1]
        layout: str
        wiring: Wiring
        proposals = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        steps = int(proposals[0].get("speculative_tokens") or said("ttt_length") or _STEPS)
        if kind == "EAGLE-1":
            layout, wiring = "SafeAILab", StateWiring(width=inputs // 2)
        elif kind in ("EAGLE-3", "P-EAGLE"):
            layout, wiring = _head_wiring(said, layer is not config, names, inputs)
            if kind == "P-EAGLE" or "mask_hidden" in names:  # which others call EAGLE-3
                ids = (said(each) for each in ("mask_token_id", "pard_token", "ptd_token_id"))
                mask = int(next((each for each in ids if each is not None), -1))
                if not 0 <= mask < own.vocab_size or steps < 2:
                    raise ValueError(f"{steps} slots with mask {mask} of {own.vocab_size} tokens")
                wiring = replace(wiring, slots=steps, mask=mask)
        else:
            layout, wiring = _block_wiring(path, said, layer is not config, own, inputs)
        verifier = (config.get("speculators_config") or {}).get("verifier") or {}
        return PublishedHead(
            path,
            layout,
            own,
            wiring,
            steps,
            str(verifier.get("name_or_path") or ""),
            metadata,
            tensors,
            names,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ModelError) as error:
        raise _no_whole(path, kind, f"config.json: {error}") from error


def _medusa(
    path: Path, config: Mapping[str, Any], tensors: _Tensors, found: Sequence[str]
) -> PublishedHead:
    names = {}
    for name in found:
        plain = name.removeprefix("medusa_head.")
        for form, ours in _MEDUSA:
            plain = re.sub(form, ours, plain)
        names[plain.removesuffix(".weight")] = name
    blocks = [each.split(".") for each in names if re.fullmatch(r"blocks\.\d+\.\d+", each)]
    if not blocks:
        raise _no_whole(path, "Medusa", "no residual block")
    (width, *_), tables = tensors.shape(names["blocks.0.0"]), ("heads.0", "head")
    known = next((tensors.shape(names[each])[0] for each in tables if each in names), 0)
    own = _without_layers(width, int(config.get("vocab_size") or known))
    heads, deep = (1 + max(int(each[place]) for each in blocks) for place in (1, 2))
    wiring = StateWiring(width=width, heads=heads, blocks=deep)
    layout = "vLLM" if found and any(".layers." in each for each in found) else "FasterDecoding"
    made_for = str(config.get("base_model_name_or_path") or "")
    return PublishedHead(path, layout, own, wiring, 1, made_for, {}, tensors, names)


def _without_layers(width: int, vocabulary: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=width,
        layers=0,
        heads=1,
        kv_heads=1,
        head_dim=2,
        ffn_size=0,
        rope_base=1e4,
        norm_eps=1e-6,
        max_context=0,
        tied_embeddings=False,
    )


def _speculator(
    path: Path, config: Mapping[str, Any], tensors: _Tensors, found: Sequence[str]
) -> PublishedHead:
    names, tied = dict[str, str](), bool(config.get("tie_weights"))
    for name in found:
        part, _, rest = name.removeprefix("speculator.").partition(".")
        step = rest.partition(".")[0]
        plain = f"{'heads' if part == 'head' else part}.{rest}".removesuffix(".weight")
        shared = tied and step.isdecimal() and int(step) > (part == "proj")
        names |= {} if shared else {"fc" if plain == "proj.0" else plain: name}
    try:
        width, steps = int(config["emb_dim"]), int(config["n_predict"])
        inner, normed = int(config["inner_dim"]) or width, bool(config.get("scale_input"))
        wiring = StateWiring(width=width, inner=inner, tied=tied, normed=normed)
        own = _without_layers(width, int(config["vocab_size"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _no_whole(path, "MLP speculator", f"config.json: {error}") from error
    return PublishedHead(path, "IBM", own, wiring, steps, "", {}, tensors, names)


def _head_wiring(
    said: Said, speculators: bool, names: Mapping[str, str], inputs: int
) -> tuple[str, HeadWiring]:
    # Layout and wiring of an EAGLE-3 head, whose "fc" reads so many numbers.
    layout = "speculators" if speculators else "SafeAILab"
    ids = said("eagle_aux_hidden_state_layer_ids")
    doubts = [] if said("norm_output") is not None else ["norm_output"]
    if ids is None and said("target_layer_ids") is not None:  # of outputs
        layout, ids = "DeepSpec", [each + 1 for each in said("target_layer_ids")]
    elif ids and not speculators:
        doubts.append("boundaries")
        ids = [each + 1 for each in ids] if ids[0] == 1 else ids  # which are outputs then
    if said("use_aux_hidden_state", True) is False:
        ids = [FINAL]
    norms = "whole" if said("norm_before_fc") else ""
    return layout, HeadWiring(
        width=int(said("target_hidden_size") or inputs // (len(ids) if ids else 3)),
        boundaries=tuple(map(int, ids or ())),
        doubts=tuple(doubts),
        norms="parts" if said("fc_norm") or "fc_norm.0" in names else norms,
        norm_before_residual=bool(said("norm_before_residual")),
        norm_output=bool(said("norm_output")),
    )


def _block_wiring(
    path: Path, said: Said, speculators: bool, own: ModelConfig, inputs: int
) -> tuple[str, BlockWiring]:
    # The same of a DFlash or DSpark drafter, whose layers are `own`.
    markov, rank = str(said("markov_head_type", "vanilla")), int(said("markov_rank", 0))
    sinks = said("attention_sink_bias")
    unread = "attention sinks" if sinks else f"a Markov head of type {markov}"
    if sinks or (rank and markov not in ("vanilla", "gated")):
        raise InvalidOption(
            f"{path} is a published drafter with {unread}, which is not read: give another, or a "
            "draft model"
        )
    layout = "DeepSpec" if said("num_anchors") is not None else "z-lab"
    ids = said("aux_hidden_state_layer_ids")
    if ids is None:  # of outputs; the last is read after the norm
        last = int(said("num_target_layers", 0)) - 1
        ids = [FINAL if each == last else each + 1 for each in said("target_layer_ids")]
    both_ways = speculators and said("sliding_window_non_causal")
    causal = {i for i, window in enumerate(own.windows) if window and not both_ways}
    causal |= set(range(own.layers)) if not speculators and said("causal") else set()
    block = MaskedBlock(
        int(said("block_size")),
        int(said("mask_token_id")),
        bool(said("sample_from_anchor", rank > 0 or layout == "DeepSpec")),
        frozenset(causal),
        rank,
        markov == "gated",
    )
    width = int(said("target_hidden_size") or inputs // len(ids))
    wiring = BlockWiring(
        width=width, boundaries=tuple(map(int, ids)), block=_fitting(block, own.vocab_size)
    )
    return "speculators" if speculators else layout, wiring


def _fitting(block: MaskedBlock, tokens: int) -> MaskedBlock:
    if not 0 <= block.mask < tokens or block.slots < 3:
        raise ValueError(f"{block.slots} slots with mask {block.mask} of {tokens} tokens")
    return block


def _named(found: Sequence[str]) -> Iterator[tuple[str, str]]:
    # Our names of the tensors of a checkpoint, and its own; unknown ones keep theirs.
    parts = {theirs: mine for mine, theirs in HF_PARTS.items()} | {"hidden_norm": "hidden_norm"}
    ends = {theirs: mine for mine, theirs in _HF_ENDS.items()}
    ends |= {f"aux_norm_{name}": f"fc_norm.{i}" for i, name in enumerate(("low", "mid", "high"))}
    for name in found:
        plain = name.removeprefix("model.")
        plain = plain.replace("midlayer.", "layers.0.", 1)
        body, _, kind = plain.rpartition(".")
        bias = ".bias" if kind == "bias" else ""
        layer, _, part = body.removeprefix("layers.").partition(".")
        if plain in ("d2t", "t2d"):
            yield plain, name
        elif body in ends:
            yield f"{ends[body]}{bias}", name
        elif body == "input_norm" or body.startswith("fc_norm."):
            yield body, name
        elif body.startswith("layers.") and part in parts:
            yield f"layers.{layer}.{parts[part]}{bias}", name
        elif not any(each in plain for each in _SPARE):
            yield plain, name


def _in_gguf(path: Path) -> Published | None:
    file = GGUFFile(path)
    said = {"general.architecture": file.metadata.get("general.architecture")}
    kind = kinds.drafter_kind(said)
    _check_kind(path, kind)
    if kind is None:
        return None
    if kind == assistant.KIND:
        return assistant.assistant_of(file)
    if kind not in ("EAGLE-3", "DFlash"):
        raise InvalidOption(
            f"{path} is a {kind} drafter as GGUF, which is not read: give its directory of "
            "safetensors"
        )
    get, arch = file.metadata.get, said["general.architecture"]

    def told(name: str, default: Any = 0) -> Any:
        return get(f"{arch}.{name}", default)

    names: dict[str, str] = {"d2t": "d2t"} if "d2t" in file else {}
    names |= {"d2t": "d2t.weight"} if "d2t.weight" in file else {}
    names |= {a: f"{b}.weight" for a, b in _GGUF_ENDS.items() if f"{b}.weight" in file}
    parts = [*GGUF_PARTS.items(), *(("hidden_norm", each) for each in _HIDDEN_NORMS)]
    for index in range(int(told("block_count", 1))):
        for mine, theirs in parts:
            for end in ("weight", "bias"):
                name = f"blk.{index}.{theirs}.{end}"
                tail = "" if end == "weight" else ".bias"
                names |= {f"layers.{index}.{mine}{tail}": name} if name in file else {}
    for norm in ("input_norm", "enc.input_norm", "fc_norm"):
        names |= {"input_norm": f"{norm}.weight"} if f"{norm}.weight" in file else {}
    known = {*names.values(), "t2d", "t2d.weight"}
    spare = ("rope_freqs", "conf_proj")
    names |= {e: e for e in file.tensors if e not in known and not any(x in e for x in spare)}
    tokens = get("tokenizer.ggml.tokens")
    layers = told("target_layers", told("extract_layers", ()))
    try:
        vocabulary = file.shape(names["embed"])[0] if "embed" in names else len(tokens or ())
        size = int(told("vocab_size")) or vocabulary or file.shape(names["head"])[0]
        shapes = {name: info.shape for name, info in file.tensors.items()}
        shapes["token_embd.weight"] = (size, int(told("embedding_length")))
        rope = next((each for each in file.tensors if each.endswith("rope_freqs.weight")), None)
        divisors = {} if rope is None else {"rope_freqs.weight": file.read(rope).tolist()}
        ids, windows = tuple(map(int, layers)), tuple[int, ...]()
        width = int(told("target_hidden_size")) or file.shape(names["fc"])[1] // (len(ids) or 3)
        wiring: Wiring
        if kind == "EAGLE-3":
            read = ["norm_before_residual", "norm_before_fc", "norm_output"]
            first, whole, output = (bool(told(each)) for each in read)
            wiring = HeadWiring(
                width=width,
                boundaries=ids,
                doubts=("boundaries", "norm_output"),
                norms="whole" if whole else "",
                norm_before_residual=first,
                norm_output=output,
            )
        else:
            read = list(_GGUF_BLOCK)
            window, pattern = map(told, read[:2])
            windows = tuple(int(window) * bool(each) for each in (pattern if window else ()))
            causal = frozenset(place for place, each in enumerate(windows) if each)
            rank = file.shape(names["markov_in"])[1] if "markov_in" in names else 0
            mask = int(get("tokenizer.ggml.mask_token_id", -1))
            block = MaskedBlock(int(told("block_size")), mask, rank > 0, causal, rank)
            wiring = BlockWiring(width=width, boundaries=ids, block=_fitting(block, size))

        def entries(get: Callable[..., Any]) -> dict[str, Any]:
            for each in read:
                get(each, 0)
            return {"windows": windows}

        own = ModelConfig.from_gguf(file.metadata, shapes, "llama", entries, divisors)
        metadata = {"feature_scale": str(get("paceline.feature_scale"))}
        stored = {"stored": str(get("paceline.stored", "F16")), **metadata}
        return PublishedHead(
            path,
            "GGUF",
            own,
            wiring,
            _STEPS,
            str(get("general.base_model.0.name", "")),
            stored if get("paceline.feature_scale") else {},
            file,
            names,
        )
    except (KeyError, TypeError, ValueError, IndexError, ModelError) as error:
        raise _no_whole(path, kind, str(error)) from error

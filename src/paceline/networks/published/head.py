"""A published drafter's files, opened: checked against a target, and made a network for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.core.options import require
from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import FINAL, ModelConfig, feature_layers
from paceline.models.gguf import dequantize
from paceline.models.weights import Weights
from paceline.networks.base import Shapes
from paceline.networks.dflash import PublishedDFlash
from paceline.networks.last_state import MlpSpeculator
from paceline.networks.published.eagle3 import HeadWiring, PublishedPEagle
from paceline.networks.published.wirings import Wiring, WiringChanges
from paceline.networks.weights import LazyTensors, Trained, as_stored


class HeadTensors(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> LogitArray: ...

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]: ...


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
    tensors: HeadTensors
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
                    f"{self.path} is of kind {wiring.kind}, whose output no next step reads: "
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
        return no_whole(self.path, self.wiring.kind, why)

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


def no_whole(path: Path, kind: str, why: str) -> InvalidOption:
    return InvalidOption(f"{path} is no whole {kind} head ({why}): download it again")


def _rows(weights: Weights, name: str, ids: IntArray) -> LogitArray:
    # Of the target's embedding or LM head.
    table = weights.stored(name if name in weights else "embed")
    return dequantize(table.kind, table.blocks[ids if table.order is None else table.order[ids]])

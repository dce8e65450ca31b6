"""Whisper files of CTranslate2 (`model.bin`), as tensors under the names of checkpoints.

Little-endian: version, name of the specification, revision, number of variables; of each its name,
rank, sizes, type, bytes and numbers. Behind them come pairs of names of the same numbers. A matrix
of codes has scales, of its rows or of all of it; a code divided by its scale is a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray
from paceline.errors import ModelError
from paceline.models.quantised import Made
from paceline.models.speech_file import SpeechFile

_VERSION, _SPEC = 6, "WhisperSpec"
# By their numbers; those of None are whole, and codes that need a scale.
_TYPES = ("F32", None, None, None, "F16", "BF16")
_CODES = {1: "<i1", 2: "<i2"}
_SCALARS = (4, 1, 2, 4, 2, 2)  # bytes of each type
_STEP = 4096  # rows of floats that are made at once

# Parts of a layer: the variable, which of its parts one above another, and of how many.
_LOOK, _SELF = "attention", "self_attention"
_PARTS: dict[str, tuple[str, int, int]] = {
    "self_attn_layer_norm": (f"{_SELF}/layer_norm", 0, 1),
    "self_attn.q_proj": (f"{_SELF}/linear_0", 0, 3),
    "self_attn.k_proj": (f"{_SELF}/linear_0", 1, 3),
    "self_attn.v_proj": (f"{_SELF}/linear_0", 2, 3),
    "self_attn.out_proj": (f"{_SELF}/linear_1", 0, 1),
    "encoder_attn_layer_norm": (f"{_LOOK}/layer_norm", 0, 1),
    "encoder_attn.q_proj": (f"{_LOOK}/linear_0", 0, 1),
    "encoder_attn.k_proj": (f"{_LOOK}/linear_1", 0, 2),
    "encoder_attn.v_proj": (f"{_LOOK}/linear_1", 1, 2),
    "encoder_attn.out_proj": (f"{_LOOK}/linear_2", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
}
_ENDS = {
    "embed_tokens": "embeddings",
    "embed_positions": "position_encodings",
    "layer_norm": "layer_norm",
    "conv1": "conv1",
    "conv2": "conv2",
}
_NAME = re.compile(r"model\.(encoder|decoder)\.(?:layers\.(\d+)\.)?(.+)\.(weight|bias)")


def is_ct2(path: Path) -> bool:
    """Return whether a directory holds a model of CTranslate2, of whatever specification."""
    try:
        with (path / "model.bin").open("rb") as file:
            head = file.read(32)
    except OSError:
        return False
    return head[:4] == _VERSION.to_bytes(4, "little") and head[6 : head.find(b"\0", 6)].isalnum()


class _Variable(NamedTuple):
    # Of a variable's numbers in the file.
    kind: int
    shape: tuple[int, ...]
    begin: int
    size: int


class CT2File(SpeechFile):
    """A `model.bin`; `coded` tells whether its matrices are codes."""

    def __init__(self, path: Path) -> None:
        """Read the places of all variables; ModelError if the file is no whole Whisper."""
        super().__init__(path)
        self._places = self._variables()
        self._scales = {
            place: self._scales_of(name, place)
            for name, place in self._places.items()
            if place.shape and _TYPES[place.kind] is None
        }
        self.coded = bool(self._scales)
        self.config = self._config()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        place, rows = self._known(name)
        return (rows.stop - rows.start, *place.shape[1:])

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8] | Made]:
        place, rows = self._known(name)
        kind, raw = _TYPES[place.kind], self._numbers_of(place)
        if kind is not None:
            return kind, raw[rows]
        codes, scales = raw.view(_CODES[place.kind]), self._scales[place]

        def floats(wanted: IntArray) -> npt.NDArray[np.uint8]:
            found = codes[wanted].astype(np.float32) / scales[wanted, None]
            return found.view(np.uint8)

        return "F32", Made(floats, range(rows.start, rows.stop), _STEP)

    def _numbers_of(self, place: _Variable) -> npt.NDArray[np.uint8]:
        # Bytes of each row.
        return self._raw[place.begin : place.begin + place.size].reshape(place.shape[0], -1)

    def _scales_of(self, name: str, place: _Variable) -> LogitArray:
        scale = self._places.get(f"{name}_scale")
        if (
            place.kind not in _CODES
            or scale is None
            or _TYPES[scale.kind] != "F32"
            or math.prod(scale.shape) not in (1, place.shape[0])
        ):
            raise self._damaged(f"{name}_scale")
        found = self._raw[scale.begin : scale.begin + scale.size].view("<f4")
        if not (np.isfinite(found) & (found > 0)).all():
            raise self._damaged(f"{name}_scale")
        return np.broadcast_to(found, place.shape[:1])

    def _known(self, name: str) -> tuple[_Variable, slice]:
        found = self._find(name)
        if found is None:
            raise self._lacks(name)
        return found

    def _find(self, name: str) -> tuple[_Variable, slice] | None:
        # A variable, and which of its rows.
        parts = _NAME.fullmatch(name)
        if parts is None:
            return None
        side, layer, part, kind = parts.groups()
        if layer is None:
            module, own, count = _ENDS.get(part, ""), 0, 1
        else:
            module, own, count = _PARTS.get(part, ("", 0, 1))
            module = f"layer_{layer}/{module}"
        if part.endswith("k_proj") and kind == "bias":
            return None  # it is stored, and zero: a checkpoint has none
        if module.endswith("layer_norm"):
            kind = {"weight": "gamma", "bias": "beta"}[kind]
        elif module == "position_encodings":
            kind = "encodings"
        place = self._places.get(f"{side}/{module}/{kind}")
        if place is None or not place.shape:
            return None
        height = place.shape[0] // count
        return place, slice(own * height, (own + 1) * height)

    def _variables(self) -> dict[str, _Variable]:
        places: dict[str, _Variable] = {}
        version, spec, _, count = self._number(4), self._text(), self._number(4), self._number(4)
        if version != _VERSION or spec != _SPEC:
            raise ModelError(
                f"{self.path} is no Whisper of CTranslate2 (specification {spec[:20]!r}, version "
                f"{version}): convert it again with ctranslate2 3 or later"
            )
        for _ in range(count):
            name, rank = self._text(), self._number(1)
            shape = tuple(self._number(4) for _ in range(rank))
            kind, size = self._number(1), self._number(4)
            if kind >= len(_TYPES) or math.prod(shape) * _SCALARS[kind] != size or name in places:
                raise self._damaged(name)
            places[name] = _Variable(kind, shape, self._at, size)
            self._take(size)
        for _ in range(self._number(4)):  # such as the head's, which is tied
            self._text(), self._text()
        if self._at != len(self._raw):
            raise self._damaged("its end")
        return places

    def _config(self) -> dict[str, Any]:
        def size(name: str, axis: int) -> int:
            place = self._places.get(name)
            if place is None or len(place.shape) <= axis:
                raise self._damaged(name)
            return place.shape[axis]

        layers: Mapping[str, int] = {
            side: len({each.split("/")[1] for each in self._places if f"{side}/layer_" in each})
            - (f"{side}/layer_norm/gamma" in self._places)
            for side in ("encoder", "decoder")
        }
        heads = {side: self._scalar(f"{side}/num_heads") for side in layers}
        if self._scalar("decoder/pre_norm") != 1 or self._scalar("decoder/activation") != 3:
            raise self._damaged("decoder/activation")
        return {
            "model_type": "whisper",
            "vocab_size": size("decoder/embeddings/weight", 0),
            "d_model": size("decoder/embeddings/weight", 1),
            "num_mel_bins": size("encoder/conv1/weight", 1),
            "max_source_positions": size("encoder/position_encodings/encodings", 0),
            "max_target_positions": size("decoder/position_encodings/encodings", 0),
            **{f"{side}_layers": count for side, count in layers.items()},
            **{f"{side}_attention_heads": count for side, count in heads.items()},
            **{f"{s}_ffn_dim": size(f"{s}/layer_0/ffn/linear_0/weight", 0) for s in layers},
        }

    def _scalar(self, name: str) -> int:
        place = self._places.get(name)
        if place is None or place.shape or _TYPES[place.kind] is not None:
            raise self._damaged(name)
        return int.from_bytes(self._raw[place.begin : place.begin + place.size].tobytes(), "little")

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size).tobytes(), "little")

    def _text(self) -> str:
        text = self._take(self._number(2)).tobytes()
        if not text.endswith(b"\0") or not text.isascii():
            raise self._damaged("a name")
        return text[:-1].decode()

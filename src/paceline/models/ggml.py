"""Whisper files of whisper.cpp (`ggml-*.bin`), as tensors under the names of checkpoints.

Little-endian: a magic number, eleven sizes, mel filters, words as bytes, and tensors up to the end:
of each its rank, the length of its name, type, sizes from the last on, name and numbers.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import ModelError
from paceline.models.speech_file import SpeechFile
from paceline.native.blocks import KINDS, PLAIN, TYPES

_MAGIC = b"lmgg"
_SIZES = """
vocab_size max_source_positions d_model encoder_attention_heads encoder_layers max_target_positions
decoder_width decoder_attention_heads decoder_layers num_mel_bins type
"""
_BINS = 201  # of a mel filter
_BLOCKS = 2  # version of blocks that the types have: the type is this many thousands

_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr
bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn
yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su
yue
"""
_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
_TIMES = 1501  # marks of times
_MULTILINGUAL, _WORDS = 51_865, 50_257  # ids and words from which on, and of which, models are

# Parts of names in checkpoints, and what they are here.
_PARTS = {
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "final_layer_norm": "mlp_ln",
    "self_attn": "attn",
    "encoder_attn": "cross_attn",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "layers": "blocks",
}
_ENDS = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "decoder.embed_tokens": "decoder.token_embedding",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
}


def is_ggml(path: Path) -> bool:
    """Return whether a file begins as those of whisper.cpp do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False


class _TensorPlace(NamedTuple):
    # Of a tensor's numbers in the file.
    kind: str
    shape: tuple[int, ...]
    begin: int
    size: int


class GGMLFile(SpeechFile):
    """A file of whisper.cpp.

    Attributes:
        words: bytes of the first ids.
        marks: special tokens, of the ids behind.
    """

    def __init__(self, path: Path) -> None:
        """Read the places of all tensors; ModelError if the file is no whole Whisper."""
        super().__init__(path)
        self._take(len(_MAGIC))
        names = _SIZES.split()
        sizes = dict(zip(names, self._numbers(len(names)), strict=True))
        mels, bins = self._numbers(2)
        if (mels, bins) != (sizes["num_mel_bins"], _BINS) or min(sizes.values()) < 0:
            raise ModelError(f"{path} is no Whisper of whisper.cpp: give a ggml-*.bin of it")
        self._take(4 * mels * bins)
        version = sizes.pop("type") // 1000
        words = [self._take(self._numbers(1)[0]).tobytes() for _ in range(self._numbers(1)[0])]
        self._places: dict[str, _TensorPlace] = {}
        while self._at < len(self._raw):
            self._tensor()
        coded = any(place.kind not in PLAIN for place in self._places.values())
        if coded and version != _BLOCKS:
            raise ModelError(f"{path} is of an old whisper.cpp: quantise the model again")
        self._set_config(sizes)
        self._set_words(words)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _theirs(name) in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        return self._known(name).shape

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        place = self._known(name)
        raw = self._raw[place.begin : place.begin + place.size]
        return place.kind, raw.reshape(math.prod(place.shape[:-1]), -1)

    def _known(self, name: str) -> _TensorPlace:
        place = self._places.get(_theirs(name))
        if place is None:
            raise self._lacks(name)
        return place

    def _tensor(self) -> None:
        rank, length, number = self._numbers(3)
        shape = self._numbers(rank)[::-1] if 0 < rank < 4 else ()
        name = self._take(length).tobytes().decode("latin-1")
        kind = next((each for each in KINDS if TYPES[each].number == number), None)
        if not shape or min(shape) <= 0 or name in self._places:
            raise self._damaged(name or "a tensor")
        if kind is None or shape[-1] % TYPES[kind].inputs:
            raise ModelError(
                f"{self.path} holds {name} as type {number}, which does not run here: quantise the "
                "model as q8_0 or q5_0, or take its f16 file"
            )
        size = math.prod(shape) // TYPES[kind].inputs * TYPES[kind].size
        begin = self._at
        self._take(size)
        column = len(shape) == 2 and name.endswith(".bias")  # those of convolutions
        self._places[name] = _TensorPlace(kind, shape[:1] if column else shape, begin, size)

    def _set_config(self, sizes: dict[str, int]) -> None:
        parts = {side: f"model.{side}.layers.0.fc1.weight" for side in ("encoder", "decoder")}
        table = self._known("model.decoder.embed_tokens.weight").shape
        if table != (sizes["vocab_size"], sizes["d_model"]):
            raise self._damaged("its sizes")
        self.config = {"model_type": "whisper", **sizes}
        self.config |= {f"{side}_ffn_dim": self.shape(name)[0] for side, name in parts.items()}

    def _set_words(self, words: list[bytes]) -> None:
        # Some converters list special tokens among the words.
        ids = self.config["vocab_size"]
        words = words[: _WORDS - (ids < _MULTILINGUAL)]
        count = ids - len(words) - 2 - len(_TASKS) - _TIMES
        languages = _LANGUAGES.split()
        if len({*words}) < len(words) or not 0 <= count <= len(languages):
            raise self._damaged("its words")
        names = ("endoftext", "startoftranscript", *languages[:count], *_TASKS)
        self.words, self.marks = words, [f"<|{each}|>" for each in names]

    def _numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", self._take(4 * count).tobytes())


def _theirs(name: str) -> str:
    own = name.removeprefix("model.")
    for theirs, here in _ENDS.items():
        if own.startswith(theirs):
            return own.replace(theirs, here, 1)
    return re.sub(r"[a-z_0-9]+", lambda part: _PARTS.get(part[0], part[0]), own)

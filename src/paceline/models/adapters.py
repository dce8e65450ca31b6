"""LoRA adapters (Hu et al. 2021), of PEFT or in GGUF files, merged into the weights of a model.

A merged matrix is W + scale B A, in fp32 by the native kernels: the same bits on every processor,
for every runtime and drafter. Where W is quantised, what runs is the sum in blocks of eight bits
(Q8_0), since its own few bits would swallow what an adapter adds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from paceline.core.types import LogitArray
from paceline.errors import ModelError, RuntimeUnavailable
from paceline.models.config import ModelConfig
from paceline.models.families import family_of
from paceline.models.gguf import GGUFFile, quantize
from paceline.models.quantised import Made
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.weights import FileWeights, Stored, Weights
from paceline.native.blocks import GROUP, PLAIN
from paceline.native.library import library
from paceline.native.packed import Packed
from paceline.native.program import Program
from paceline.weights import path_or_shipped

_ROWS = 1024  # of a matrix, merged at once

# Fields of PEFT's configs that are read, or say nothing about results.
_KNOWN = (
    "peft_type r lora_alpha use_rslora rank_pattern alpha_pattern init_lora_weights task_type "
    "auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules "
    "exclude_modules lora_dropout layers_to_transform layers_pattern megatron_config "
    "megatron_core loftq_config eva_config runtime_config qalora_group_size ensure_weight_tying"
)
# Beginnings of factors after which the base is as it was; of others it was changed as well.
_INNOCENT = (True, False, None, "gaussian", "eva", "orthogonal")
_WHOLE = "merge it with PEFT's merge_and_unload, and give the model that comes of it"
_PEFT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(embedding_)?([AB])(?:\.\w+)?")
_WRAPPED = re.compile(r"(?:(?:model|language_model)\.)*((?:layers|embed_tokens|lm_head)\b.*)")


class Factors(NamedTuple):
    """What is added to a matrix, `scale * up @ down`: float32 `[rank, in]` and `[out, rank]`."""

    down: LogitArray
    up: LogitArray
    scale: float


class LoraAdapter:
    """An adapter as its files have it: factors by the names of the matrices that they change."""

    def __init__(self, given: str) -> None:
        """Read PATH or PATH=SCALE: a GGUF file, PEFT's folder, or the name of one that ships.

        Raises ModelError if there is none, it is damaged, or it says more than factors can.
        """
        path, sign, scale = given.rpartition("=")
        if not sign or Path(given).expanduser().exists():
            path, scale = given, "1"
        self.path = path_or_shipped(path, "adapters")
        try:
            self.scale = float(scale)
        except ValueError:
            self.scale = math.nan
        if not math.isfinite(self.scale):
            raise self.wrong(f"has scale {scale!r}: give --adapter PATH=NUMBER")
        self.name = self.path.resolve().stem + (f"={self.scale:g}" if self.scale != 1 else "")
        self._digest = hashlib.sha256(repr(self.scale).encode())
        self.gguf = self.path.is_file()
        self.factors: dict[str, Factors] = {}
        if self.gguf:
            self._read_gguf()
        elif (self.path / "adapter_config.json").is_file():
            self._read_peft()
        else:
            raise self.wrong("is no adapter: give its GGUF file, or the folder of PEFT")
        if not self.factors:
            raise self.wrong("holds no matrices: save the adapter again")
        self.fingerprint = self._digest.hexdigest()[:16]

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"adapter {self.path} {what}")

    def _read_gguf(self) -> None:
        file = GGUFFile(self.path)
        said = file.metadata
        kind = said.get("adapter.type"), said.get("general.type")
        if kind != ("lora", "adapter"):
            raise self.wrong("is a GGUF file but no LoRA adapter: give that, and this as --model")
        if "adapter.alora.invocation_tokens" in said:
            raise self.wrong("acts behind its own tokens alone (aLoRA), as is not done here")
        self.architecture = said.get("general.architecture")
        self._digest.update(self.path.read_bytes())
        pairs: dict[str, dict[str, LogitArray]] = {}
        for name in file.tensors:
            matrix, _, part = name.rpartition(".lora_")
            if part not in ("a", "b"):
                raise self.wrong(f"changes {name} otherwise than by factors: {_WHOLE}")
            pairs.setdefault(matrix, {})[part.upper()] = file.read(name)
        alpha = float(said.get("adapter.lora.alpha", 0.0))
        for matrix, pair in pairs.items():
            if matrix == "token_embd.weight":
                raise self.wrong("changes the embedding: give the folder of PEFT that it is of")
            rank = len(pair.get("A", ()))
            self._add(matrix, pair, alpha / rank if alpha and rank else 1.0, rank)

    def _read_peft(self) -> None:
        config = self._config()
        if not (self.path / "adapter_model.safetensors").is_file():
            raise self.wrong("has no adapter_model.safetensors: save it with safe_serialization")
        files = SafetensorsFiles(self.path / "adapter_model.safetensors")
        for each in ("adapter_config.json", "adapter_model.safetensors"):
            self._digest.update((self.path / each).read_bytes())
        pairs: dict[str, dict[str, LogitArray]] = {}
        for name in files.index():
            found = _PEFT.fullmatch(name.removesuffix(".weight"))
            if found is None:
                dora = "by DoRA" if "magnitude" in name else "otherwise than by factors"
                raise self.wrong(f"changes {name} {dora}: {_WHOLE}")
            module, embedding, part = found.groups()
            values = files.read(name)
            if embedding:  # of its transpose
                part, values = "BA"["AB".index(part)], values.T
            pairs.setdefault(module, {})[part] = values
        root = bool(config.get("use_rslora"))

        def pattern(name: str, module: str, default: str) -> Any:
            by_name = config.get(name) or {}
            hits = (key for key in by_name if re.match(rf"(.*\.)?({key})$", module))
            key = next(hits, None)
            return config.get(default) if key is None else by_name[key]

        for module, pair in pairs.items():
            rank = pattern("rank_pattern", module, "r")
            alpha = pattern("alpha_pattern", module, "lora_alpha")
            if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
                raise self.wrong("has no numbers r and lora_alpha: save the adapter again")
            if found := _WRAPPED.fullmatch(module):
                module = ("" if found[1] == "lm_head" else "model.") + found[1]
            divisor = math.sqrt(rank) if root else rank
            self._add(f"{module}.weight", pair, alpha / divisor, rank)

    def _config(self) -> Mapping[str, Any]:
        try:
            config = dict(json.loads((self.path / "adapter_config.json").read_bytes()))
        except (TypeError, ValueError, RecursionError, OSError) as error:
            said = "has a damaged adapter_config.json: save the adapter again"
            raise self.wrong(said) from error
        if config.get("peft_type") != "LORA":
            raise self.wrong(f"is of kind {config.get('peft_type')}, and LORA alone is read")
        if config.get("init_lora_weights", True) not in _INNOCENT:
            raise self.wrong(
                f"began as {config['init_lora_weights']}, which changes the base too: {_WHOLE}"
            )
        known = _KNOWN.split()
        for name, value in config.items():
            if name not in known and value and (name, value) != ("bias", "none"):
                raise self.wrong(f"asks for {name}, as is not done here: {_WHOLE}")
        return config

    def _add(self, matrix: str, pair: Mapping[str, LogitArray], scale: float, rank: int) -> None:
        if set(pair) != {"A", "B"}:
            raise self.wrong(f"has half of what changes {matrix}: save the adapter again")
        down, up = (np.ascontiguousarray(pair[part], np.float32) for part in "AB")
        if down.ndim != 2 or up.ndim != 2:
            raise self.wrong(f"changes {matrix}, which is no matrix of one layer: {_WHOLE}")
        if not len(down) == up.shape[1] == rank:
            raise self.wrong(
                f"has rank {len(down)} and {up.shape[1]} for {matrix}, and {rank} in its config: "
                "save the adapter again"
            )
        if not (np.isfinite(down).all() and np.isfinite(up).all()):
            raise self.wrong(f"has numbers that are not finite for {matrix}: train it again")
        self.factors[matrix] = Factors(down, up, self.scale * scale)

    def __contains__(self, matrix: object) -> bool:
        return matrix in self.factors

    def shape(self, matrix: str) -> tuple[int, ...]:
        return self.factors[matrix].up.shape

    def of(self, config: ModelConfig, base: Weights, name: str) -> dict[str, Factors]:
        """Return factors by canonical name for a base; ModelError if they are not for it."""
        family = family_of(config)
        another = f"{name} is not: give the model that it was trained on"
        if self.gguf and self.architecture != family.gguf:
            raise self.wrong(f"is for {self.architecture}, and {another}")
        # Names and order of rows are those of a model's file with these matrices.
        places = FileWeights(cast(Any, self), config, self.path, gguf=self.gguf, whole=False)
        found: dict[str, Factors] = {}
        rows: Counter[str] = Counter()
        for each in _matrices(config, self.gguf):
            if each not in places:
                continue
            matrix, own = places.place(each)
            if each in ("embed", "head") and config.tied_embeddings:
                raise self.wrong(
                    f"changes {matrix}, which {name} uses for embedding and head both: {_WHOLE}"
                )
            if config.state_heads and ".delta_" in each and config.state_heads.tiled != self.gguf:
                raise self.wrong(
                    f"changes {matrix}, whose heads GGUF files and checkpoints order otherwise: "
                    f"give the adapter in the form that {name} has"
                )
            if each not in base:
                continue
            down, up, scale = self.factors[matrix]
            part = np.ascontiguousarray(up if own is None else up[own])
            rows[matrix] += len(part)
            made, wanted = (len(part), down.shape[1]), base.stored(each).shape
            if made != wanted:
                raise self.wrong(f"is for {matrix} of {made}, not {wanted}, as {another}")
            found[each] = Factors(down, part, scale)
        if left := self.factors.keys() - rows:
            raise self.wrong(f"changes {min(left)}, which {name} has not: give its own base")
        for matrix, (_, up, _) in self.factors.items():
            if rows[matrix] != len(up):
                raise self.wrong(f"is for a larger {matrix}, as {another}")
        return found


def _matrices(config: ModelConfig, gguf: bool) -> Iterator[str]:
    # Canonical names of whatever a model of the config may have.
    family = family_of(config)
    yield from ("embed", "head")
    sides = [("", config.layers)]
    if config.encoder is not None:
        sides.append(("encoder.", config.encoder.layers))
    for side, layer in ((side, layer) for side, count in sides for layer in range(count)):
        for part in family.gguf_parts if gguf else family.hf_parts:
            if side:
                yield f"{side}layers.{layer}.{part}"
            elif not part.startswith("experts."):
                yield f"layers.{layer}.{part}"
            elif config.experts is not None and not gguf:
                for expert in range(config.experts.count):
                    yield f"layers.{layer}.experts.{expert}.{part.removeprefix('experts.')}"


class AdaptedWeights:
    """Weights with adapters merged in."""

    def __init__(self, base: Weights, adapters: Sequence[Mapping[str, Factors]]) -> None:
        self._base, self._adapters = base, adapters

    def __contains__(self, name: object) -> bool:
        return name in self._base

    def __getitem__(self, name: str) -> LogitArray:
        values = self._base[name]
        for each in self._adapters:
            if name in each:
                values = merged(values, each[name])
                self._base.stored(name).forget()
        return values

    def stored(self, name: str) -> Stored:
        own = self._base.stored(name)
        if not any(name in each for each in self._adapters):
            return own
        kind = "F32" if own.kind in (*PLAIN, "F64") else "Q8_0"
        rows = own.shape[0]
        return Stored(
            kind, own.shape, Made(lambda some: quantize(kind, self[name][some]), range(rows), rows)
        )


def merged(matrix: LogitArray, factors: Factors) -> LogitArray:
    """Return float32 `[out, in]`: a matrix with its factors' product added, by canonical sums."""
    if library() is None:
        raise RuntimeUnavailable("adapters need native operations: see paceline doctor")
    down, up, scale = factors
    more = -len(down) % GROUP  # of the rank, to whole groups of zeros
    across = np.ascontiguousarray(np.pad(down, ((0, more), (0, 0))).T)
    up, width = np.pad(up, ((0, 0), (0, more))), matrix.shape[1]
    packed = Packed()
    program = Program(packed)
    narrow, whole = program.buffer("rows", up.shape[1]), program.buffer("rows", width)
    out = program.buffer("rows", width)
    program.load("up", narrow)
    program.load("matrix", whole)
    made = packed.matrix("F32", across.view(np.uint8), up.shape[1])
    program.product("merge", [made], narrow, out, scale=scale, residual=whole)
    result = np.empty_like(matrix)
    for begin in range(0, len(matrix), _ROWS):
        part = slice(begin, begin + _ROWS)
        inputs = {"up": up[part], "matrix": matrix[part]}
        count = len(matrix[part])
        flat = {n: np.ascontiguousarray(v).reshape(-1).view(np.int32) for n, v in inputs.items()}
        program.run({"rows": count}, flat, 1)
        result[part] = program.read(out, count)
    return result

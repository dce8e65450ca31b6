"""Tensors of a model by canonical name, as stored or as floats, from GGUF files and safetensors.

Names are "embed", "norm", "head" (absent if tied), what else a family has outside its layers, and
"layers.N.PART" with the parts of `families.base`, and "NAME.bias". Parts of expert E are
"layers.N.experts.E.PART", those of head H "layers.N.heads.H.PART". Where a model brings a layer
that drafts, it is the one behind the last. Those of an encoder have "encoder." before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.core.pages import advise
from paceline.core.types import IntArray, LogitArray
from paceline.errors import ModelError
from paceline.models.config import ModelConfig, exponentials
from paceline.models.families import family_of
from paceline.models.families.base import GGUF_ENDS, HF_ENDS, HF_PARTS, Family
from paceline.models.gguf import GGUFFile, dequantize
from paceline.models.quantised import Made, QuantisedFiles
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.stacked import StackedExperts
from paceline.native.blocks import GROUP


def _is_numbered(name: str) -> bool:
    return name.split(".")[2:3] in (["experts"], ["heads"])


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as a file has it.

    Attributes:
        kind: a type of GGUF files, such as "Q4_K" or "BF16".
        shape: rows and columns.
        blocks: uint8 `[rows of the file, bytes]`, a view of the mapped file, or made when indexed.
        order: int64 `[rows]`, the file's row of each; None if they are in order.
        mapped: the blocks are pages of a file, which the system can read again.
    """

    kind: str
    shape: tuple[int, int]
    blocks: npt.NDArray[np.uint8] | Made
    order: npt.NDArray[np.int64] | None = None
    mapped: bool = False

    def rows(self, ids: IntArray) -> LogitArray:
        """Return some rows as float32, in the order of their ids; the others are not read.

        Raises ModelError for a type that cannot be read.
        """
        ids = ids if self.order is None else self.order[ids]
        try:
            return dequantize(self.kind, self.blocks[ids]).reshape(len(ids), self.shape[1])
        except (KeyError, NotImplementedError) as error:
            raise ModelError(
                f"a table of the model is stored as {self.kind}, whose rows cannot be read: "
                "choose another quantisation of the model"
            ) from error

    def forget(self) -> None:
        """Let mapped pages go, which count as this process's memory until then."""
        if self.mapped and not isinstance(self.blocks, Made):
            advise(self.blocks, "forget")


class Weights(Protocol):
    """Tensors of a model."""

    def __contains__(self, name: object) -> bool: ...

    def __getitem__(self, name: str) -> LogitArray:
        """Return contiguous, writable float32; ModelError if missing or unreadable."""
        ...

    def stored(self, name: str) -> Stored:
        """Return a matrix without reading it; ModelError as for floats."""
        ...


class _Reader(Protocol):
    # A file's tensors by the names that it gives them.

    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, rows: slice = ...) -> LogitArray: ...

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8] | Made]: ...


class FileWeights:
    """`Weights` of a file: finds names, parts of fused tensors and the order of rows."""

    def __init__(
        self, reader: _Reader, config: ModelConfig, what: Path, *, gguf: bool, whole: bool = True
    ) -> None:
        # Not `whole`: adapters, and assistants, which check what they have.
        self._reader, self._config, self._what, self._gguf = reader, config, what, gguf
        self._family: Family = family_of(config)
        self._stacked = self._family.gguf_stacked if gguf else self._family.hf_stacked
        self._whole = whole
        if whole:
            self._refuse_other_sizes()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._theirs(name) in self._reader

    def __getitem__(self, name: str) -> LogitArray:
        theirs = self._known(name)
        rows = self._rows(name)
        if _is_numbered(name) and isinstance(rows, slice):
            own = self._reader.read(theirs, rows)  # not all of them for each
            if self._turned(name):
                return np.ascontiguousarray(own.T)
            return own[0] if name.endswith(".bias") else own
        values = self._reader.read(theirs)
        if name in self._family.convolutions and values.ndim == 3:
            return _side_by_side(values)
        if rows is not None:
            values = np.ascontiguousarray(values[rows])
        if self._is_row(name):
            return values.reshape(1, -1)
        return values if self._gguf else self._plain(name.rpartition(".")[2], values)

    def _turned(self, name: str) -> bool:
        # Checkpoints have it as a map of latents to keys, here it is one of queries to latents.
        return not self._gguf and ".heads." in name and name.endswith(".k")

    def _is_row(self, name: str) -> bool:
        return name.rpartition(".")[2] in self._family.rows

    def _plain(self, part: str, values: LogitArray) -> LogitArray:
        # What checkpoints hold in other words.
        family = self._family
        if part in family.logarithms:
            return -exponentials(values)
        bare = part in family.whole or family.hf_parts.get(part) in family.bare
        return values + 1 if family.norms_less_one and values.ndim == 1 and not bare else values

    def stored(self, name: str) -> Stored:
        theirs = self._known(name)
        if self._turned(name) or name in self._family.convolutions:
            values = self[name]
            return Stored("F32", (values.shape[0], values.shape[1]), values.view(np.uint8))
        shape = self._reader.shape(theirs)
        rows = self._rows(name)
        shape = (1, *shape) if self._is_row(name) and len(shape) == 1 else shape
        latent = ".heads." in name and not self._gguf
        deep = _is_numbered(name) and rows is not None and not latent
        if len(shape) != 2 + deep:
            raise ModelError(
                f"{self._what} has {name} in {len(shape)} dimensions: download it again"
            )
        kind, blocks = self._reader.stored(theirs)
        mapped = not isinstance(blocks, Made)
        if isinstance(rows, slice):
            blocks = blocks.part(rows) if isinstance(blocks, Made) else blocks[rows]
            return Stored(kind, (len(blocks), shape[-1]), blocks, mapped=mapped)
        count = shape[0] if rows is None else len(rows)
        return Stored(kind, (count, shape[1]), blocks, rows, mapped=mapped)

    def place(self, name: str) -> tuple[str, slice | npt.NDArray[np.int64] | None]:
        """Return the file's name of a tensor that it has, and which of its rows are meant."""
        return self._known(name), self._rows(name)

    def _refuse_other_sizes(self) -> None:
        # Kernels go by the tensors where these and the config disagree, or by neither.
        for name, rows, columns in self._sizes():
            if name not in self:
                continue
            shape = self._reader.shape(self._theirs(name))
            if rows not in (0, shape[0]) or columns not in (0, shape[-1]):
                raise self._misfit(name)
        if (hears := self._config.encoder) is not None:
            least = {"positions": self._config.max_context, "encoder.positions": hears.rows}
            for name, rows in least.items():
                if name in self and self._reader.shape(self._theirs(name))[0] < rows:
                    raise self._misfit(name)
            heard = self._theirs("encoder.conv1")
            if heard in self._reader and self._reader.shape(heard)[1] != hears.mels:
                raise self._misfit("encoder.conv1")
        for beyond, layers in self._layers_beyond():
            raise ModelError(
                f"{self._what} has {beyond}, of a layer behind the {layers} of its config: "
                "download the model again"
            )

    def _layers_beyond(self) -> Iterator[tuple[str, int]]:
        # Tensors of a layer that is neither among the config's nor one that drafts; how many
        # the config has.
        family, hears = self._family, self._config.encoder
        drafts = family.mtp is not None if self._gguf else "{}" in family.hf_mtp.get("mtp_fc", "")
        if drafts:
            return
        parts = family.gguf_parts if self._gguf else family.hf_parts
        sides = [("blk" if self._gguf else family.hf_layers, self._config.layers)]
        if hears is not None:
            sides.append((family.hf_encoder, hears.layers))
        for prefix, number in sides:
            names = (f"{prefix}.{number}.{each}.weight" for each in parts.values())
            yield from ((each, number) for each in names if each in self._reader)

    def _sizes(self) -> Iterator[tuple[str, int, int]]:
        # Rows and columns that the config tells, by name; 0 for any.
        config, hidden, latents = self._config, self._config.hidden_size, self._config.latents
        yield "embed", config.vocab_size, hidden
        for layer in range(config.layers):
            kv_heads, width = config.kv_shape(layer)
            wide = config.heads * (latents.values if latents else width)
            yield f"layers.{layer}.o", hidden, wide
            if self._theirs(f"layers.{layer}.k") != self._theirs(f"layers.{layer}.q"):
                yield f"layers.{layer}.k", kv_heads * width, hidden
            if latents:
                yield f"layers.{layer}.kv_a", latents.rank + latents.rotated, hidden
            if config.experts:
                yield f"layers.{layer}.router", config.experts.count, hidden
            if config.layer_inputs:
                yield f"layers.{layer}.input_gate", config.layer_inputs, hidden
        for layer in config.recurrent:
            yield f"layers.{layer}.conv_taps", hidden, config.taps
            if (heads := config.state_heads) is not None:
                for kind in ("ssm", "delta"):
                    yield f"layers.{layer}.{kind}_conv", heads.values + 2 * heads.keys, heads.taps
                    yield f"layers.{layer}.{kind}_rate", heads.value_heads, 0

    def _misfit(self, name: str) -> ModelError:
        shape = " x ".join(map(str, self._reader.shape(self._theirs(name))))
        return ModelError(
            f"{self._what} has {name} of {shape} numbers, but its config says otherwise: "
            "download the model again"
        )

    def check(self, given: Iterable[str]) -> None:
        """Raise ModelError unless a Llama-like model has just the `given` tensors of the file."""
        config, experts, own = self._config, self._config.experts, ["gate", "up", "down"]
        parts = ["attention_norm", *"qkvo", "ffn_norm"]
        parts += ["q_norm", "k_norm"] if config.qk_norm else []
        parts += [f"{part}.bias" for part in "qkv"] if config.qkv_bias else []
        sparse = [each for each in self._family.hf_parts if each.startswith(("router", "shared_"))]
        numbers = range(experts.count if experts else 0)
        sparse += [f"experts.{number}.{part}" for number in numbers for part in own]
        names = []
        for layer in range(config.layers):
            more = sparse if experts and layer not in config.dense_layers else own
            names += [f"layers.{layer}.{part}" for part in parts + more]
        names += ["embed", "norm", *([] if config.tied_embeddings else ["head"])]
        wanted = {self._theirs(name) for name in names}
        # A tied head may be there as well, and the table of frequencies is computed.
        spare = {self._theirs("head")}
        found = {name for name in given if not name.endswith("rotary_emb.inv_freq")}
        for odd, what in ((found - wanted - spare, "is unknown"), (wanted - found, "is missing")):
            if odd:
                raise ModelError(
                    f"{self._what} is not the {config.family} model of its config.json, since "
                    f"tensor {min(odd)} {what}: download the model again"
                )

    def _known(self, name: str) -> str:
        theirs = self._theirs(name)
        if theirs not in self._reader:
            raise ModelError(f"{self._what} has no tensor {name}: download the model again")
        return theirs

    def _theirs(self, name: str) -> str:
        ends = {**GGUF_ENDS, **self._family.gguf_ends} if self._gguf else self._family.hf_ends
        if name in ends:
            found = ends[name]
            usual = GGUF_ENDS.get(name, found) if self._gguf else found
            return found if found in self._reader else usual
        end = ends.get(name.removesuffix(".bias"), "")
        if end.endswith(".weight"):
            return f"{end.removesuffix('.weight')}.bias"
        _, _, rest = name.removeprefix("encoder.").partition(".")
        layer, _, rest = rest.partition(".")
        part, _, kind = rest.partition(".")
        parts = self._family.gguf_parts if self._gguf else self._family.hf_parts
        prefix = "blk" if self._gguf else self._family.hf_layers
        if name.startswith("encoder."):
            prefix = self._family.hf_encoder
        elif not self._gguf and layer.isdecimal() and int(layer) >= self._config.layers:
            around = self._family.hf_mtp
            if part in around:
                return f"{around[part].format(layer)}.weight"
            if "{}" not in around.get("mtp_fc", ""):
                layer, prefix = str(int(layer) - self._config.layers), "mtp.layers"
        expert = ""
        if _is_numbered(name):
            expert, _, own = kind.partition(".")
            own, _, kind = own.partition(".")
            part = f"{part}.{own}"
        if part not in parts:
            return ""
        stacked = f"{prefix}.{layer}.{self._stacked.get(part)}"
        if stacked in self._reader and not kind:
            return stacked
        theirs = f"{prefix}.{layer}.{parts[part].format(expert)}"
        if parts[part] in self._family.bare:
            return "" if kind else theirs
        return f"{theirs}.{kind or 'weight'}"

    def _rows(self, name: str) -> slice | npt.NDArray[np.int64] | None:
        found = self._chosen(name)
        if found is None or not self._whole:
            return found
        shape = self._reader.shape(self._theirs(name))
        end = found.stop if isinstance(found, slice) else int(found.max(initial=-1)) + 1
        if end > math.prod(shape[:-1] or shape):
            raise self._misfit(name)
        return found

    def _chosen(self, name: str) -> slice | npt.NDArray[np.int64] | None:
        part = name.removesuffix(".bias").rpartition(".")[2]
        config, latents = self._config, self._config.latents
        if ".heads." in name and not self._gguf:
            assert latents is not None
            heights, head = (latents.plain, latents.values), int(name.split(".")[3])
            begin = head * sum(heights) + heights[0] * (part == "v")
            return slice(begin, begin + heights[part == "v"])
        if _is_numbered(name):
            theirs, bias = self._theirs(name), name.endswith(".bias")
            shape = self._reader.shape(theirs)
            if len(shape) < (2 if bias else 3):
                return None
            expert = int(name.split(".")[3])  # one behind another in one tensor
            if bias:
                return slice(expert, expert + 1)
            own = [each for each, at in self._stacked.items() if theirs.endswith(f".{at}")]
            own, part = own or [part], f"experts.{part}" if own else part
            height = shape[1] // len(own)
            begin = expert * shape[1] + own.index(part) * height
            return slice(begin, begin + height)
        if latents is not None and part in ("q", "q_b", "kv_a"):
            shape = (1, latents.rank) if part == "kv_a" else (config.heads, latents.plain)
            return _rotated_first(shape[0], latents.rotated, shape[1])
        narrow = config.kv_heads * config.head_dim
        sizes = {"q": config.heads * config.head_dim, "k": narrow, "v": narrow}
        if (heads := config.state_heads) is not None:
            convolved = heads.values + 2 * heads.keys
            sizes |= {"ssm_z": heads.values, "ssm_x": convolved, "ssm_steps": heads.value_heads}
        parts = self._family.gguf_parts if self._gguf else self._family.hf_parts
        for fused in self._family.fused:
            if part in fused and parts[fused[0]] == parts[fused[1]]:
                each = [sizes.get(other, config.ffn_size) for other in fused]
                begin = sum(each[: fused.index(part)])
                return slice(begin, begin + each[fused.index(part)])
        if self._family.gated_queries and part in ("q", "q_gate"):
            pairs = np.arange(2 * sizes["q"]).reshape(config.heads, 2, config.head_dim)
            return np.ascontiguousarray(pairs[:, int(part == "q_gate")]).reshape(-1)
        if not (self._gguf and self._family.interleaved and part in ("q", "k")):
            return None
        # Both rotary halves of a head lie row by row in turns.
        rows = np.arange(sizes[part]).reshape(-1, config.head_dim // 2, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)


def _side_by_side(taps: LogitArray) -> LogitArray:
    # Of [outputs, inputs, taps] the inputs of each tap in turn, filled up to whole groups.
    wide = np.pad(taps, ((0, 0), (0, -taps.shape[1] % GROUP), (0, 0)))
    return np.ascontiguousarray(wide.swapaxes(1, 2)).reshape(len(taps), -1)


def _rotated_first(heads: int, rotated: int, plain: int) -> npt.NDArray[np.int64]:
    # Rows of heads whose rotated numbers lie last, both of a pair as neighbours.
    order = np.arange(heads * (plain + rotated)).reshape(heads, -1)
    pairs = order[:, plain:]
    parts = [pairs[:, ::2], pairs[:, 1::2], order[:, :plain]]
    return np.concatenate(parts, axis=1).reshape(-1)


def gguf_weights(file: GGUFFile) -> FileWeights:
    return FileWeights(file, file.config, file.path, gguf=True)


def safetensors_weights(
    directory: Path, config: ModelConfig, files: SafetensorsFiles | QuantisedFiles | None = None
) -> FileWeights:
    """Open the `*.safetensors` files of a directory, single or sharded.

    Args:
        directory: of the files.
        config: of the model.
        files: those of the directory, if they are open.

    Raises:
        ModelError: they are missing or damaged, or a denoiser has more tensors than its family, or
            fewer.
    """
    files = files or open_files(directory, {})
    family = family_of(config)
    reader = StackedExperts(files) if family.stacked else files
    weights = FileWeights(reader, config, directory, gguf=False)
    if family.facts:
        weights.check(files.index())
    return weights


def open_files(
    directory: Path, quantization: Mapping[str, Any]
) -> SafetensorsFiles | QuantisedFiles:
    """Open the files of a model under the names of a causal language model.

    `quantization` is what config.json says of that, as `quantization_of` finds it.
    """
    files = SafetensorsFiles(directory)
    files.take_prefix()
    return QuantisedFiles(files, directory, quantization) if quantization else files


def canonical_name(name: str) -> str:
    """Return the canonical name of a tensor of a Llama-like Hugging Face checkpoint."""
    for mine, theirs in HF_ENDS.items():
        if name == theirs:
            return mine
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    part = next(mine for mine, theirs in HF_PARTS.items() if theirs == module)
    return f"layers.{layer}.{part}" + (".bias" if kind == "bias" else "")

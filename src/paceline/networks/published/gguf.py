"""EAGLE-3, DFlash and DSpark drafters in GGUF files, as llama.cpp names their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from paceline.errors import InvalidOption, ModelError
from paceline.models.config import ModelConfig
from paceline.models.families.base import GGUF_PARTS
from paceline.models.gguf import GGUFFile
from paceline.networks.dflash import MaskedBlock
from paceline.networks.published.eagle3 import HeadWiring
from paceline.networks.published.head import PublishedHead, no_whole
from paceline.networks.published.wirings import STEPS, BlockWiring, Wiring, fitting

# Tensors outside the layers.
_ENDS = {
    **{"fc": "fc", "norm": "output_norm", "head": "output", "embed": "token_embd"},
    "hidden_norm": "enc.output_norm",
    "markov_in": "markov_w1",
    "markov_out": "markov_w2",
}
_HIDDEN_NORMS = ("attn_norm_2", "hidden_norm")
_OTHERS = dict.fromkeys(("d2t", "d2t.weight"), "d2t") | dict.fromkeys(
    ("input_norm.weight", "enc.input_norm.weight", "fc_norm.weight"), "input_norm"
)
_SPARE = ("rope_freqs", "conf_proj")
# Entries that change what is computed, beside those of any model; of a block drafter's latter two
# what is so always.
_HEAD = ("norm_before_residual", "norm_before_fc", "norm_output")
_BLOCK = (
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.causal",
    "rope.dimension_sections",
)

# An entry of the metadata below its architecture, or else a default, which is 0.
Told: TypeAlias = Callable[..., Any]


def gguf_head(file: GGUFFile, kind: str) -> PublishedHead:
    """Return the drafter of a file; raises InvalidOption for half of one, and for other kinds."""
    if kind not in ("EAGLE-3", "DFlash"):
        raise InvalidOption(
            f"{file.path} is of kind {kind}, which is not read as GGUF: give its directory of "
            "safetensors"
        )
    get = file.metadata.get
    arch = get("general.architecture")

    def told(name: str, default: Any = 0) -> Any:
        return get(f"{arch}.{name}", default)

    names = _named(file, int(told("block_count", 1)))
    try:
        size, ids = _size(file, told, names), told("target_layers", told("extract_layers", ()))
        boundaries = tuple(map(int, ids))
        width = int(told("target_hidden_size"))
        width = width or file.shape(names["fc"])[1] // (len(boundaries) or 3)
        wiring: Wiring
        if kind == "EAGLE-3":
            own = _config(file, told, size, _HEAD, ())
            wiring = _head_wiring(told, width, boundaries)
        else:
            own = _config(file, told, size, _BLOCK, windows := _windows(told))
            block = fitting(_block(file, told, names, windows), size)
            wiring = BlockWiring(width=width, boundaries=boundaries, block=block)
        scale = get("paceline.feature_scale")
        stored = {"stored": str(get("paceline.stored", "F16")), "feature_scale": str(scale)}
        return PublishedHead(
            file.path,
            "GGUF",
            own,
            wiring,
            STEPS,
            str(get("general.base_model.0.name", "")),
            stored if scale else {},
            file,
            names,
        )
    except (KeyError, TypeError, ValueError, IndexError, ModelError) as error:
        raise no_whole(file.path, kind, str(error)) from error


def _named(file: GGUFFile, layers: int) -> dict[str, str]:
    # Our names of the tensors, and the file's; unknown ones keep theirs.
    names = {mine: each for each, mine in _OTHERS.items() if each in file}
    names |= {a: f"{b}.weight" for a, b in _ENDS.items() if f"{b}.weight" in file}
    parts = [*GGUF_PARTS.items(), *(("hidden_norm", each) for each in _HIDDEN_NORMS)]
    for index in range(layers):
        for mine, theirs in parts:
            for end, tail in (("weight", ""), ("bias", ".bias")):
                name = f"blk.{index}.{theirs}.{end}"
                names |= {f"layers.{index}.{mine}{tail}": name} if name in file else {}
    known = {*names.values(), "t2d", "t2d.weight"}
    return names | {
        each: each
        for each in file.tensors
        if each not in known and not any(spare in each for spare in _SPARE)
    }


def _size(file: GGUFFile, told: Told, names: Mapping[str, str]) -> int:
    # Of the target's vocabulary.
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    known = file.shape(names["embed"])[0] if "embed" in names else len(tokens or ())
    return int(told("vocab_size")) or known or file.shape(names["head"])[0]


def _head_wiring(told: Told, width: int, boundaries: tuple[int, ...]) -> HeadWiring:
    first, whole, output = (bool(told(each)) for each in _HEAD)
    return HeadWiring(
        width=width,
        boundaries=boundaries,
        doubts=("boundaries", "norm_output"),
        norms="whole" if whole else "",
        norm_before_residual=first,
        norm_output=output,
    )


def _windows(told: Told) -> tuple[int, ...]:
    window, pattern = map(told, _BLOCK[:2])
    return tuple(int(window) * bool(each) for each in (pattern if window else ()))


def _block(
    file: GGUFFile, told: Told, names: Mapping[str, str], windows: Sequence[int]
) -> MaskedBlock:
    causal = frozenset(place for place, each in enumerate(windows) if each)
    rank = file.shape(names["markov_in"])[1] if "markov_in" in names else 0
    mask = int(file.metadata.get("tokenizer.ggml.mask_token_id", -1))
    return MaskedBlock(int(told("block_size")), mask, rank > 0, causal, rank)


def _config(
    file: GGUFFile, told: Told, size: int, read: Sequence[str], windows: tuple[int, ...]
) -> ModelConfig:
    # Of the layers; the entries `read` are known beside those of any model.
    shapes = {name: info.shape for name, info in file.tensors.items()}
    shapes["token_embd.weight"] = (size, int(told("embedding_length")))
    rope = next((each for each in file.tensors if each.endswith("rope_freqs.weight")), None)
    divisors = {} if rope is None else {"rope_freqs.weight": file.read(rope).tolist()}

    def entries(get: Callable[..., Any]) -> dict[str, Any]:
        for each in read:
            get(each, 0)
        return {"windows": windows}

    return ModelConfig.from_gguf(file.metadata, shapes, "llama", entries, divisors)

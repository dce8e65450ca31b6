"""Files of models that see: Hugging Face directories, and `mmproj` GGUF files beside a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE
from paceline.models.dinov2 import DINOV2_SMALL, TOWER
from paceline.models.gguf import GGUFFile
from paceline.models.pull import pull
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.tokenizer import read_json
from paceline.models.towers import PROJECTORS, Curve, Projector, Tower, TowerKind, Vision
from paceline.models.weights import Stored
from paceline.native.blocks import GROUP
from paceline.weights import or_install, path_or_shipped

# Names of tensors in checkpoints, by kind of tower and by projector; "{}" is a layer's number.
_BLOCK = {
    "attention_norm": "layer_norm1",
    **{each: f"self_attn.{each}_proj" for each in "qkv"},
    "o": "self_attn.out_proj",
    "ffn_norm": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_SIGLIP = {
    "patch": "embeddings.patch_embedding",
    "positions": "embeddings.position_embedding",
    "class": "embeddings.class_embedding",
    "begin_norm": "pre_layrnorm",
    "norm": "post_layernorm",
    **{f"layers.{{}}.{mine}": f"encoder.layers.{{}}.{own}" for mine, own in _BLOCK.items()},
}
_DINO_BLOCK = {
    "attention_norm": "norm1",
    **{
        k: f"attention.attention.{n}" for k, n in zip("qkv", ("query", "key", "value"), strict=True)
    },
    "o": "attention.output.dense",
    "o_scale": "layer_scale1.lambda1",
    "ffn_norm": "norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "down_scale": "layer_scale2.lambda1",
}
_DINO = {
    "patch": "embeddings.patch_embeddings.projection",
    "positions": "embeddings.position_embeddings",
    "class": "embeddings.cls_token",
    "norm": "layernorm",
    **{f"layers.{{}}.{mine}": f"encoder.layer.{{}}.{own}" for mine, own in _DINO_BLOCK.items()},
}
_TOWERS: dict[TowerKind, dict[str, str]] = {"siglip": _SIGLIP, "clip": _SIGLIP, "dinov2": _DINO}
_PROJECTORS: dict[Projector, dict[str, str]] = {
    "idefics3": {"projector": "connector.modality_projection.proj"},
    "gemma3": {
        "projector": "multi_modal_projector.mm_input_projection_weight",
        "projector_norm": "multi_modal_projector.mm_soft_emb_norm",
    },
    "mlp": {
        "first": "multi_modal_projector.linear_1",
        "second": "multi_modal_projector.linear_2",
    },
}
# Those without ".weight" behind them.
_BARE = ("class_embedding", "cls_token", "position_embeddings", "lambda1", "projection_weight")

_GGUF_BLOCK = {
    "attention_norm": "ln1",
    **{each: f"attn_{each}" for each in "qkv"},
    "o": "attn_out",
    "o_scale": "ls1",
    "ffn_norm": "ln2",
    "up": "ffn_up",
    "down": "ffn_down",
    "down_scale": "ls2",
}
_GGUF = {
    "patch": "v.patch_embd",
    "positions": "v.position_embd",
    "norm": "v.post_ln",
    **{f"layers.{{}}.{mine}": f"v.blk.{{}}.{own}" for mine, own in _GGUF_BLOCK.items()},
}
_GGUF_PROJECTORS: dict[Projector, dict[str, str]] = {
    "idefics3": {"projector": "mm.model.fc"},
    "gemma3": {"projector": "mm.input_projection", "projector_norm": "mm.soft_emb_norm"},
}

_CURVES: dict[str, Curve] = {
    "gelu": "exact",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "quick_gelu": "quick",
}
_HALF = (0.5,) * 3
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NORMS = {"siglip": (_HALF, _HALF), "clip": _CLIP, "dinov2": _IMAGENET}
# Filters of resizing, by Pillow's numbers.
_FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}

# By `model_type` of a config, and of its vision side.
_MODELS: dict[str, Projector] = {
    "idefics3": "idefics3",
    "smolvlm": "idefics3",
    "gemma3": "gemma3",
    "llava": "mlp",
}
_KINDS: dict[str, TowerKind] = {
    "siglip_vision_model": "siglip",
    "idefics3_vision": "siglip",
    "smolvlm_vision": "siglip",
    "idefics3": "siglip",  # as older files have them
    "smolvlm": "siglip",
    "clip_vision_model": "clip",
    "dinov2": "dinov2",
}
# What configs leave out where it is as in transformers.
_SIZES = {"hidden_size": 768, "num_attention_heads": 12, "image_size": 224}
_USUAL: dict[TowerKind, dict[str, Any]] = {
    "siglip": {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "patch_size": 16},
    "clip": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "patch_size": 32},
    "dinov2": {"layer_norm_eps": 1e-6, "hidden_act": "gelu", "patch_size": 14},
}
_IDEFICS = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}


def _refused(what: str) -> ModelError:
    return ModelError(
        f"{what} does not run here, only projectors {', '.join(PROJECTORS)} behind towers SigLIP, "
        f"CLIP and DINOv2 do: {ELSEWHERE}"
    )


def hf_vision(config: Mapping[str, Any], pictures: Mapping[str, Any], width: int) -> Vision | None:
    """Read a `config.json` and what beside it says of `pictures`; None if the model reads none.

    `width` is that of the text model.

    Raises ModelError for towers, projectors and features that do not run here.
    """
    own, kind = config.get("vision_config"), str(config.get("model_type"))
    if not isinstance(own, Mapping):
        return None
    projector, tower = _MODELS.get(kind), _KINDS.get(str(own.get("model_type")))
    if projector is None or tower is None:
        raise _refused(f"what reads pictures of {kind} ({own.get('model_type')})")
    try:
        sizes = {**_SIZES, **_USUAL[tower], **(_IDEFICS if projector == "idefics3" else {})}
        shape, side = _hf_tower({**sizes, **own}, tower, config, projector), 1
        name = _FILTERS[pictures.get("resample", 3)]
        if projector == "idefics3":
            side = int(config.get("scale_factor", 2))
        elif projector == "mlp":  # Hugging Face's have one row for a patch
            side = int(config.get("scale_factor", 1))
        elif projector == "gemma3":
            squares = math.isqrt(int(config.get("mm_tokens_per_image", 256)))
            side = shape.grid // squares if shape.grid % squares == 0 else 0
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"config.json does not say {error} of what reads pictures: download the model again"
        ) from error
    mean, std = _NORMS[tower]
    return Vision(
        shape,
        projector,
        side,
        width,
        tuple(pictures.get("image_mean") or mean),
        tuple(pictures.get("image_std") or std),
        name,
        _curve(config.get("projector_hidden_act", "gelu")),
        projector == "gemma3",
    )


def _hf_tower(
    own: Mapping[str, Any], kind: TowerKind, config: Mapping[str, Any], projector: Projector
) -> Tower:
    layers, width = int(own.get("num_hidden_layers", 12)), int(own["hidden_size"])
    ffn = own.get("intermediate_size", 3072)
    if kind == "dinov2":
        ffn = width * int(own.get("mlp_ratio", 4))
    if own.get("use_swiglu_ffn"):
        raise _refused("a tower with gated blocks")
    if projector == "mlp":
        layer, chosen = config.get("vision_feature_layer", -2), "vision_feature_select_strategy"
        if not isinstance(layer, int) or config.get(chosen, "default") != "default":
            raise _refused("a projector that reads several layers, or the class row")
        layers = layer if layer >= 0 else layers + 1 + layer
    return Tower(
        kind,
        layers,
        width,
        int(own["num_attention_heads"]),
        int(ffn),
        int(own["image_size"]),
        int(own["patch_size"]),
        float(own["layer_norm_eps"]),
        _curve(own["hidden_act"]),
        projector != "mlp",
    )


def _curve(name: str) -> Curve:
    if name not in _CURVES:
        raise _refused(f"activation {name} of what reads pictures")
    return _CURVES[name]


def gguf_vision(metadata: Mapping[str, Any], width: int) -> Vision:
    """Read the metadata of an `mmproj` file for a text model whose rows have that `width`.

    Raises ModelError for a file of another kind, and for what does not run here.
    """
    if metadata.get("general.architecture") != "clip":
        raise ModelError("the file is no mmproj: give the one that comes with the model")
    named = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    projector = next((each for each in PROJECTORS if each == named), None)
    if projector is None:
        raise _refused(f"projector {named}")
    if projector == "mlp":  # nor which of their layers count, nor where the row of no patch stands
        raise ModelError(
            "an mmproj of projector mlp does not say which layers run: give the Hugging Face "
            "directory of the model"
        )
    if metadata.get("clip.use_silu"):
        raise _refused("activation silu of what reads pictures")
    try:
        own = {key.removeprefix("clip.vision."): value for key, value in metadata.items()}
        tower = Tower(
            "siglip",
            int(own["block_count"]),
            int(own["embedding_length"]),
            int(own["attention.head_count"]),
            int(own["feed_forward_length"]),
            int(own["image_size"]),
            int(own["patch_size"]),
            float(own["attention.layer_norm_epsilon"]),
            "gelu" if metadata.get("clip.use_gelu") else "quick",
            ends_normed=True,
        )
        usual = {"projector.scale_factor": 4} if projector == "gemma3" else {}
        side = int({**usual, **own}["projector.scale_factor"])
        mean, std, made = tuple(own["image_mean"]), tuple(own["image_std"]), own["projection_dim"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the mmproj does not say {error}: download it again") from error
    if made != width:
        raise ModelError(
            f"the mmproj makes rows of width {made}, and the model reads {width}: give the one "
            "that comes with the model"
        )
    together = projector == "gemma3"
    return Vision(tower, projector, side, width, mean, std, "bilinear", together=together)


@dataclass(frozen=True)
class PictureReader:
    """What reads the pictures of a model.

    Attributes:
        settings: what its rows depend on beside a picture.
        reading: reads patches (`Picture.patches`) in pieces: yields None after each, in the end the
            rows.
    """

    vision: Vision
    settings: bytes
    reading: Callable[[LogitArray], Generator[LogitArray | None, None, None]]


class _Tensors(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> LogitArray: ...

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]: ...


class VisionWeights:
    """`models.weights.Weights` of a vision side, as `towers.look` names them.

    Heads, patches and feed-forward blocks are filled up with zeros to whole groups, places have
    the patches' bias, and matrices that write the stream the layers' scale.
    """

    def __init__(self, reader: _Tensors, vision: Vision, what: Path, *, gguf: bool) -> None:
        self._reader, self._vision, self._what, self._gguf = reader, vision, what, gguf
        self._names = {
            **(_GGUF if gguf else _TOWERS[vision.tower.kind]),
            **(_GGUF_PROJECTORS if gguf else _PROJECTORS)[vision.projector],
        }
        self._before: dict[str, str] = {}  # what checkpoints put before names
        self._made: dict[str, Stored] = {}

    def within(self, names: Iterable[str]) -> VisionWeights:
        """Find what stands before the names of a checkpoint that has `names`."""
        wanted = {"patch": "tower", next(iter(_PROJECTORS[self._vision.projector])): "projector"}
        for mine, what in wanted.items():
            theirs = self._names[mine] + ("" if self._names[mine].endswith(_BARE) else ".weight")
            found = [each for each in names if f".{each}".endswith(f".{theirs}")]
            if len(found) != 1:
                raise ModelError(f"{self._what} has no {what} for pictures: download it again")
            self._before[what] = found[0].removesuffix(theirs)
        return self

    def __contains__(self, name: object) -> bool:
        # The bias of patches is in their places.
        return isinstance(name, str) and name != "patch.bias" and self._theirs(name) in self._reader

    def __getitem__(self, name: str) -> LogitArray:
        tower, part = self._vision.tower, name.removesuffix(".bias").rpartition(".")[2]
        bias = name.endswith(".bias")
        if name == "positions":
            return self._positions()
        values = self._read(name)
        if name == "patch":
            values = _filled(values.reshape(len(values), -1), 1, GROUP)
        elif part in ("q", "k", "v"):
            heads = values.reshape(tower.heads, tower.head_width, -1)
            values = _filled(heads, 1, tower.wide_head).reshape(-1, *values.shape[1:])
        elif part == "o" and not bias:
            heads = values.reshape(len(values), tower.heads, tower.head_width)
            values = _filled(heads, 2, tower.wide_head).reshape(len(values), -1)
        elif part == "up":
            values = _filled(values, 0, GROUP)
        elif part == "down" and not bias:
            values = _filled(values, 1, GROUP)
        elif self._vision.projector == "gemma3" and name == "projector":
            values = np.ascontiguousarray(values.T)
        elif name == "projector_norm" and not self._gguf:
            values = values + 1
        scale = f"{name.removesuffix('.bias')}_scale"
        if part in ("o", "down") and scale in self:
            values = values * self._read(scale).reshape(-1, *(1,) * (values.ndim - 1))
        return values

    def stored(self, name: str) -> Stored:
        if name in self._made:
            return self._made[name]
        values = self[name]
        theirs = self._theirs(name)
        same = name != "positions" and values.shape == self._reader.shape(theirs)
        part = name.rpartition(".")[2]
        turned = name == "projector" and self._vision.projector == "gemma3"
        if same and not turned and f"{name}_scale" not in self and part not in ("patch", "norm"):
            kind, blocks = self._reader.stored(theirs)
            found = Stored(kind, (values.shape[0], values.shape[1]), blocks, mapped=True)
        else:
            raw = np.ascontiguousarray(values, np.float32).view(np.uint8)
            found = Stored("F32", (values.shape[0], values.shape[1]), raw)
        self._made[name] = found
        return found

    def _positions(self) -> LogitArray:
        tower = self._vision.tower
        places = self._read("positions").reshape(-1, tower.width)
        if len(places) != tower.rows:
            raise self._misfit("positions", places.shape)
        biased = places + (self._read("patch.bias") if self._has_patch_bias else 0)
        if tower.class_row:
            biased[0] = places[0] + self._read("class").reshape(-1)
        return biased.astype(np.float32)

    @property
    def _has_patch_bias(self) -> bool:
        return self._theirs("patch.bias") in self._reader

    def _read(self, name: str) -> LogitArray:
        theirs = self._theirs(name)
        if theirs not in self._reader:
            raise ModelError(f"{self._what} has no tensor {theirs or name}: download it again")
        values, expected = self._reader.read(theirs), self._expected(name)
        if expected is not None and values.shape != expected:
            raise self._misfit(name, values.shape)
        return values

    def _expected(self, name: str) -> tuple[int, ...] | None:
        vision, part = self._vision, name.removesuffix(".bias").rpartition(".")[2]
        tower = vision.tower
        width, ffn, seen = tower.width, tower.ffn_size, tower.width * vision.side**2
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys("qkvo", (width, width)),
            "up": (ffn, width),
            "down": (width, ffn),
            "patch": (width, 3, tower.patch, tower.patch),
            "second": (vision.width, vision.width),
        }
        shapes["first"] = (vision.width, seen)
        idefics = vision.projector == "idefics3"
        shapes["projector"] = (vision.width, seen) if idefics else (width, vision.width)
        found = shapes.get(part)
        return found[:1] if found and name.endswith(".bias") else found

    def _misfit(self, name: str, shape: Sequence[int]) -> ModelError:
        numbers = " x ".join(map(str, shape))
        return ModelError(
            f"{self._what} has {name} of {numbers} numbers, which are not those of this model: "
            "give the file that comes with the model, or download it again"
        )

    def _theirs(self, name: str) -> str:
        whole, kind = name.removesuffix(".bias"), "bias" if name.endswith(".bias") else "weight"
        if whole.startswith("layers."):
            _, index, part = whole.split(".")
            theirs = self._names.get(f"layers.{{}}.{self._swapped(index, part)}", "").format(index)
        else:
            theirs = self._names.get(whole, "")
        projects = whole in _PROJECTORS[self._vision.projector]
        before = self._before.get("projector" if projects else "tower", "")
        if not theirs:
            return ""
        if theirs.endswith(_BARE):
            return "" if kind == "bias" else before + theirs
        return f"{before}{theirs}.{kind}"

    def _swapped(self, index: str, part: str) -> str:
        # In some files both matrices of a feed-forward block have each other's names.
        if not self._gguf or part not in ("up", "down"):
            return part
        up, width = f"v.blk.{index}.ffn_up.weight", self._vision.tower.width
        if up in self._reader and self._reader.shape(up)[0] == width != self._vision.tower.ffn_size:
            return "down" if part == "up" else "up"
        return part


def _filled(values: LogitArray, axis: int, group: int) -> LogitArray:
    # Zeros behind those of an axis, up to a multiple of a group.
    more = [(0, 0)] * values.ndim
    more[axis] = (0, -values.shape[axis] % group)
    return np.pad(values, more) if more[axis][1] else values


def vision_of(path: Path, width: int) -> tuple[Vision, VisionWeights] | None:
    """Open the side of a Hugging Face directory that reads pictures for a text model of that width;
    None if it reads none."""
    processor, config = (read_json(path / f"{e}config.json") for e in ("processor_", ""))
    said, token = processor.get("image_processor"), processor.get("image_token")
    pictures = said if isinstance(said, Mapping) else read_json(path / "preprocessor_config.json")
    vision = hf_vision(config, pictures, width)
    if vision is None:
        return None
    if vision.projector == "mlp" and isinstance(token, str):
        vision = replace(vision, token=token)
    own = SafetensorsFiles(path)
    files: _Tensors = own
    names = list(own.index())
    if config.get("tower_of") == DINOV2_SMALL:
        tower = SafetensorsFiles(pull(packed=TOWER))
        files, names = _Both(own, tower), [*names, *tower.index()]
    return vision, VisionWeights(files, vision, path, gguf=False).within(names)


class _Both:
    """Tensors of two files, which share no names."""

    def __init__(self, first: SafetensorsFiles, second: SafetensorsFiles) -> None:
        self._files = first, second

    def __contains__(self, name: object) -> bool:
        return any(name in each for each in self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape(name)

    def read(self, name: str) -> LogitArray:
        return self._of(name).read(name)

    def stored(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        return self._of(name).stored(name)

    def _of(self, name: str) -> SafetensorsFiles:
        first, second = self._files
        return first if name in first else second


def find_mmproj(spec: str) -> Path:
    """Return where an `mmproj` is: a file or directory, or what ships under that name."""
    return path_or_shipped(spec, "pictures")


def mmproj(path: Path, width: int, model: str | None = None) -> tuple[Vision, VisionWeights]:
    """Open an `mmproj` file, or the side of a directory, for a text model of that width.

    A connector says the fingerprint of the `model` that it was trained for.

    Raises:
        ModelError: it is for another model, or does not run here.
    """
    if not path.exists():
        raise ModelError(f"{path} is not there: {or_install()}give an mmproj file, or a folder")
    if path.is_dir():
        wanted = read_json(path / "config.json").get("rows_for")
        if isinstance(wanted, Mapping) and wanted.get("fingerprint") != model:
            raise ModelError(
                f"{path.name} makes rows for {wanted.get('model')} and not for this model: load "
                f"it with --model {wanted.get('model')}"
            )
        found = vision_of(path, width)
        if found is None:
            raise ModelError(f"{path} reads no pictures: give an mmproj file, or a model that does")
        return found
    file = GGUFFile(path)
    vision = gguf_vision(file.metadata, width)
    return vision, VisionWeights(file, vision, path, gguf=True)

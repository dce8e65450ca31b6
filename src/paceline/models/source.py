"""Model resolution: default model, GGUF file, directory, or Hugging Face hub id."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from paceline.core.types import LogitArray
from paceline.errors import ModelError
from paceline.models import kinds
from paceline.models.adapters import AdaptedWeights, LoraAdapter
from paceline.models.config import ModelConfig, Pooling, hf_eos_token_ids
from paceline.models.ct2 import CT2File, is_ct2
from paceline.models.denoiser import denoiser_options, denoises
from paceline.models.families import hf_config, is_denoiser
from paceline.models.generation import gguf_sampling, hf_sampling
from paceline.models.ggml import GGMLFile, is_ggml
from paceline.models.gguf import GGUFFile, parts_of
from paceline.models.hub import from_hub
from paceline.models.pull import DEFAULT_MODEL, pull
from paceline.models.quantised import QuantisedFiles, check_quantization, quantization_of
from paceline.models.safetensors import SafetensorsFiles
from paceline.models.text import Tokenizer
from paceline.models.tokenizer import (
    mask_token_id,
    read_json,
    tokenizer_from_directory,
    tokenizer_from_gguf,
    tokenizer_from_words,
)
from paceline.models.weights import (
    FileWeights,
    Stored,
    Weights,
    gguf_weights,
    open_files,
    safetensors_weights,
)
from paceline.weights import weight_files

# Denoisers that ship with the package, those that draft for a model, and mixtures of experts.
DENOISERS = ("lists-mdm", "lists-bd", "lists-order")
DRAFTING = ("deer-smollm2-135m",)
EXPERTS = ("lists-blockffn",)
# Short names that `resolve` knows.
ALIASES = (DEFAULT_MODEL, *DENOISERS, *DRAFTING, *EXPERTS)


class ModelSource(Protocol):
    """A model on disk, read lazily; members raise ModelError for missing or unsupported parts."""

    @property
    def name(self) -> str:
        """Display name."""
        ...

    @property
    def path(self) -> Path:
        """The GGUF file or the directory."""
        ...

    @property
    def denoiser(self) -> bool:
        """Whether the model is said to fill a canvas, whatever else is known of it."""
        ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def fingerprint(self) -> str:
        """Short hash of the model, for cache keys."""
        ...

    @property
    def sampling(self) -> dict[str, float]:
        """Defaults of `SamplingParams` that the model's files ask for, by field."""
        ...

    @property
    def precision(self) -> str:
        """Default of `--precision`."""
        ...

    def weights(self) -> Weights: ...

    def tokenizer(self) -> Tokenizer: ...


def resolve(
    spec: str, progress: bool = True, denoiser: str | Mapping[str, Any] | None = None
) -> ModelSource:
    """Find a model: one of `ALIASES`, a GGUF file, a Hugging Face directory or hub id.

    "smollm2-135m" is downloaded; the others are in the package. A hub id may name a quantisation,
    as in "owner/name:Q4_K_M", and may hold GGUF files.

    Args:
        spec: of the model.
        progress: show that of a download.
        denoiser: see `denoiser_options`.

    Raises:
        ModelError: there is no such model, or it cannot be downloaded or read.
        InvalidOption: options of a denoiser are wrong; here, or when `config` is read.
    """
    facts = denoiser_options(denoiser)
    if spec == DEFAULT_MODEL:
        return GGUFSource(pull(progress=progress), spec, facts)
    if spec in ALIASES:
        place = "experts" if spec in EXPERTS else "denoisers"
        folder = next(weight_files(f"{place}/{spec}"), None)
        if folder is None:
            raise ModelError(f"model {spec} is not here: pip install 'paceline[drafters]'")
        return DirectorySource(folder, spec, facts)
    path, name = Path(spec).expanduser(), None
    if not spec or not path.exists():
        found = re.fullmatch(r"([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?", spec)
        if found is None or path.suffix == ".gguf":
            raise unknown_model(spec, "no such file or directory")
        path, name = from_hub(found[1], found[2], lambda reason: unknown_model(spec, reason)), spec
    if is_ct2(path) or is_ggml(path):
        return SpeechSource(path, name)
    if path.is_dir():
        path = kinds.model_in(path)
    if path.is_dir():
        return DirectorySource(path, name, facts)
    kinds.check_file(path)
    return GGUFSource(path, name, facts)


class GGUFSource:
    def __init__(
        self, path: Path, name: str | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """`facts` are those of `denoiser_options`."""
        self._file, self._facts = GGUFFile(path), facts or {}
        kinds.check_gguf(path, self._file.metadata)
        self.path = self._file.path
        self.name = name or re.sub(r"-00001-of-\d{5}$", "", self.path.stem)
        kind = self._file.metadata.get("general.architecture")
        self.denoiser = bool(facts) or is_denoiser({"model_type": kind})
        self.precision = "file"

    @cached_property
    def config(self) -> ModelConfig:
        config, metadata = self._file.config, self._file.metadata
        shift = metadata.get("diffusion.shift_logits")
        own = {} if shift is None else {"denoiser": {"shift": shift}}
        found = denoises(
            config, own, self._facts, lambda: metadata.get("tokenizer.ggml.mask_token_id")
        )
        return replace(config, denoises=found)

    @property
    def fingerprint(self) -> str:
        return self._file.fingerprint

    @property
    def sampling(self) -> dict[str, float]:
        """Defaults of `SamplingParams` that the file asks for."""
        return gguf_sampling(self._file.metadata)

    def weights(self) -> Weights:
        return gguf_weights(self._file)

    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self._file)

    def has_vocabulary_of(self, other: GGUFFile) -> bool:
        """Return whether another model of the same architecture has the same tokens."""
        mine, theirs = self._file.metadata, other.metadata
        keys = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens")
        return all(mine.get(key) is not None and mine.get(key) == theirs.get(key) for key in keys)


class DirectorySource:
    """A model in a Hugging Face directory: config.json, safetensors, tokenizer.json.

    Where config.json says `embedding_of`, embedding, head and tokenizer are another model's.
    """

    def __init__(
        self, path: Path, name: str | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """`facts` are those of `denoiser_options`."""
        self.path = path
        self.name = name or path.resolve().name
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json: give a model directory or a .gguf file")
        self._json, self._facts = read_json(path / "config.json"), facts or {}
        kinds.check_config(path, self._json)
        self.denoiser = bool(facts) or is_denoiser(self._json)

    @cached_property
    def config(self) -> ModelConfig:
        check_quantization(self.path, quantization_of(self._json))
        config = hf_config(self._json, self._eos_token_ids)
        found = denoises(config, self._json, self._facts, lambda: mask_token_id(self.path))
        return replace(config, denoises=found, pooling=_pooling(self.path))

    @cached_property
    def fingerprint(self) -> str:
        index: dict[str, Any] = SafetensorsFiles(self.path).index()
        digest = hashlib.sha256(json.dumps([self._json, index], sort_keys=True).encode())
        # Fine-tuned models share all of the above, so the weights have a say as well.
        for file in sorted(self.path.glob("*.safetensors")):
            digest.update(_sample(file))
        return digest.hexdigest()[:16]

    @property
    def sampling(self) -> dict[str, float]:
        """Defaults of `SamplingParams` that the model asks for."""
        return hf_sampling(read_json(self.path / "generation_config.json"))

    @cached_property
    def precision(self) -> str:
        """As the files say, if they are quantised and all matrices run so, else int8."""
        files = self._files
        return "file" if isinstance(files, QuantisedFiles) and files.exact else "int8"

    @cached_property
    def _files(self) -> SafetensorsFiles | QuantisedFiles:
        return open_files(self.path, quantization_of(self._json))

    def weights(self) -> Weights:
        own = safetensors_weights(self.path, self.config, self._files)
        return own if self._lender is None else Borrowing(own, self._lender.weights())

    def tokenizer(self) -> Tokenizer:
        if self._lender is not None:
            return self._lender.tokenizer()
        return tokenizer_from_directory(self.path, self._eos_token_ids)

    @cached_property
    def _lender(self) -> ModelSource | None:
        said = self._json.get("embedding_of")
        if said is None:
            return None
        found = resolve(said["model"])
        if found.fingerprint != said["fingerprint"]:
            raise ModelError(
                f"{self.name} needs the embedding of {said['model']} as it was: train it again"
            )
        return found

    @cached_property
    def _eos_token_ids(self) -> tuple[int, ...]:
        return hf_eos_token_ids(read_json(self.path / "generation_config.json"), self._json)


def _pooling(path: Path) -> Pooling:
    # As sentence-transformers says it.
    said = read_json(path / "1_Pooling" / "config.json")
    names: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls"}
    return next((names[n] for n in names if said.get(f"pooling_mode_{n}")), "last")


class SpeechSource:
    """A Whisper in a directory of CTranslate2, or in a file of whisper.cpp."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        whole = path.resolve()
        self.path, self.name = path, name or (whole.name if path.is_dir() else whole.stem)
        self._file = CT2File(path / "model.bin") if path.is_dir() else GGMLFile(path)
        self.config = hf_config(self._file.config)
        self.denoiser = False
        self.sampling: dict[str, float] = {}
        # Codes with scales of whole rows are no type: as they are, they run as floats.
        coded = isinstance(self._file, CT2File) and self._file.coded
        self.precision = "int8" if coded else "file"

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(_sample(self._file.path)).hexdigest()[:16]

    def weights(self) -> Weights:
        return FileWeights(self._file, self.config, self._file.path, gguf=False)

    def tokenizer(self) -> Tokenizer:
        """Read `tokenizer.json`, or the words of the file; texts end with "<|endoftext|>"."""
        if isinstance(self._file, GGMLFile):
            return tokenizer_from_words(self._file.words, self._file.marks)
        added = read_json(self.path / "tokenizer.json").get("added_tokens") or []
        ends = [each["id"] for each in added if each.get("content") == "<|endoftext|>"]
        return tokenizer_from_directory(self.path, tuple(ends))


class Borrowing:
    """Weights with the embedding and the head of another model."""

    def __init__(self, own: Weights, lender: Weights) -> None:
        self._own, self._lender = own, lender

    def __contains__(self, name: object) -> bool:
        return name in self._of(name)

    def __getitem__(self, name: str) -> LogitArray:
        return self._of(name)[name]

    def stored(self, name: str) -> Stored:
        return self._of(name).stored(name)

    def _of(self, name: object) -> Weights:
        return self._lender if name in ("embed", "head") else self._own


class FirstLayers:
    """Early-exit draft model: the first layers under the model's own final norm and LM head."""

    def __init__(self, whole: ModelSource, layers: int) -> None:
        """Cut after `layers` layers; raises ModelError if the model does not have more."""
        has = whole.config.layers
        if not 1 <= layers < has:
            raise ModelError(
                f"{whole.name} has {has} layers, so {layers} of them are no early exit: "
                f"give 1 to {has - 1}"
            )
        self._whole = whole
        self.path = whole.path
        self.name = f"{whole.name}, first {layers} layers"
        self.denoiser = whole.denoiser
        self.config = replace(whole.config, layers=layers)
        self.fingerprint = f"{whole.fingerprint}-{layers}"
        self.sampling: dict[str, float] = {}

    @property
    def precision(self) -> str:
        return self._whole.precision

    def weights(self) -> Weights:
        return self._whole.weights()

    def tokenizer(self) -> Tokenizer:
        return self._whole.tokenizer()


class AdaptedSource:
    """A model with LoRA adapters merged into its weights."""

    def __init__(self, base: ModelSource, given: Sequence[str]) -> None:
        """Read adapters, PATH or PATH=SCALE each; ModelError if they are not for this model."""
        read = [LoraAdapter(each) for each in given]
        self.base, self.path, self.denoiser = base, base.path, base.denoiser
        self.config, self.sampling, self.precision = base.config, base.sampling, base.precision
        self.name = "+".join([base.name, *(each.name for each in read)])
        prints = [base.fingerprint, *(each.fingerprint for each in read)]
        self.fingerprint = hashlib.sha256("+".join(prints).encode()).hexdigest()[:16]
        weights = base.weights()
        self._weights = AdaptedWeights(
            weights, [each.of(self.config, weights, base.name) for each in read]
        )

    def weights(self) -> Weights:
        return self._weights

    def tokenizer(self) -> Tokenizer:
        return self.base.tokenizer()


def without_adapters(source: ModelSource) -> ModelSource:
    """Return the model as published drafters know it."""
    return source.base if isinstance(source, AdaptedSource) else source


def file_bytes(path: Path) -> int:
    """Return the bytes of a model's weights on disk, all parts of them."""
    files = path.glob("*.safetensors") if path.is_dir() else parts_of(path)
    return sum(each.stat().st_size for each in files)


def smaller_sibling(source: ModelSource) -> Path | None:
    """Return the smallest GGUF file beside a model's with its architecture and vocabulary.

    None if no file has at most a fifth of the model's size: a larger one drafts too slowly to pay
    without being asked for. Files that cannot be read are passed over.
    """
    source = without_adapters(source)
    if not isinstance(source, GGUFSource):
        return None
    files = [each for each in source.path.parent.glob("*.gguf") if len(parts_of(each)) == 1]
    sizes = {path: path.stat().st_size for path in files}
    most = file_bytes(source.path) // 5
    for path in sorted((path for path, size in sizes.items() if size <= most), key=sizes.get):  # type: ignore[arg-type]
        try:
            if source.has_vocabulary_of(GGUFFile(path)):
                return path
        except ModelError:
            continue
    return None


def _sample(path: Path, pieces: int = 256, size: int = 4096) -> bytes:
    # Evenly spread bytes of a file, all of it if it is small.
    total = path.stat().st_size
    step = max(size, total // pieces)
    with path.open("rb") as file:
        out = [str(total).encode()]
        for start in range(0, total, step):
            file.seek(start)
            out.append(file.read(size))
    return b"".join(out)


def unknown_model(spec: str, reason: str) -> ModelError:
    """Return the error for a model that is not there."""
    return ModelError(
        f"unknown model {spec!r} ({reason}): give one of {', '.join(ALIASES)}, the path of a .gguf "
        "file or of a Hugging Face directory, or a hub id"
    )

"""Tokenizers from a Hugging Face directory or from GGUF metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.cache import cache_dir, write_atomically
from paceline.errors import ModelError
from paceline.models.config import gguf_eos_token_ids
from paceline.models.gguf import GGUFFile
from paceline.models.text import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_BUILD = "1"  # part of the cache key; raise it when the code below changes what it builds
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # GGUF token types
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece vocabularies
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {"qwen2": _WORDS % "", "llama-bpe": _WORDS % "{1,3}"}
_BYTE_LEVEL = ("smollm", "gpt-2", "default", *_PATTERNS)
_ADVICE = "use the model's Hugging Face directory instead"


def tokenizer_from_directory(directory: Path, eos_token_ids: tuple[int, ...]) -> Tokenizer:
    """Read `tokenizer.json`; raises ModelError if it is missing or damaged."""
    import tokenizers

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{directory} has no tokenizer.json: save a fast tokenizer there")
    try:
        core = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"{path} is not a tokenizer: download the model again") from error
    core.no_truncation()
    core.no_padding()
    config = read_json(directory / "tokenizer_config.json")
    special = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _token_text(config.get(name))) is not None
    }
    eos = core.token_to_id(special["eos_token"]) if "eos_token" in special else None
    if eos is not None and eos not in eos_token_ids:
        eos_token_ids = (*eos_token_ids, eos)
    return Tokenizer(
        core,
        eos_token_ids=eos_token_ids,
        special_tokens=special,
        chat_template=_directory_template(directory, config),
    )


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer of a GGUF file, cached on disk.

    Raises:
        ModelError: the file has no tokenizer or one of an unsupported kind.
    """
    metadata = file.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path} has no tokenizer: {_ADVICE}")
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and 0 <= index < len(tokens):
            special[f"{name}_token"] = tokens[index]
    return Tokenizer(
        _cached(file),
        eos_token_ids=gguf_eos_token_ids(metadata),
        special_tokens=special,
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, empty if the file is absent; raises ModelError for anything else."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is not valid JSON: download the model again") from error
    return content


def _token_text(token: object) -> str | None:
    # Either the text itself or an object that also says how the token is matched.
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _directory_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _cached(file: GGUFFile) -> tokenizers.Tokenizer:
    import tokenizers

    path = cache_dir() / "tokenizers" / f"{file.fingerprint}-{_BUILD}" / "tokenizer.json"
    if path.is_file():
        with contextlib.suppress(Exception):  # damaged: build it again
            return tokenizers.Tokenizer.from_file(str(path))
    core = _build(file)
    with contextlib.suppress(OSError):  # only a slower start is lost
        write_atomically(path, core.to_str())
    return core


def _build(file: GGUFFile) -> tokenizers.Tokenizer:
    metadata = file.metadata
    model = metadata.get("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            core = _byte_level(metadata)
        elif model == "llama":
            core = _sentencepiece(metadata)
        else:
            raise ModelError(f"{file.path} has a tokenizer of kind {model!r}: {_ADVICE}")
        _add_special(core, metadata)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ModelError(f"the tokenizer of {file.path} is incomplete: {_ADVICE}") from error
    return core


def _byte_level(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind = metadata.get("tokenizer.ggml.pre", "default")
    if kind not in _BYTE_LEVEL:
        raise ModelError(f"the pre-tokenizer {kind!r} is not supported: {_ADVICE}")
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(_vocabulary(metadata), merges, ignore_merges=kind == "llama-bpe"))
    if kind in _PATTERNS:
        split: Any = pre_tokenizers.Split(Regex(_PATTERNS[kind]), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    elif kind == "smollm":
        digits: Any = pre_tokenizers.Digits(individual_digits=True)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "qwen2":
        core.normalizer = normalizers.NFC()
    core.decoder = decoders.ByteLevel()
    return core


def _sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = metadata["tokenizer.ggml.tokens"]
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    core = Tokenizer(
        models.BPE(
            _vocabulary(metadata),
            _merges(metadata),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normal: list[Any] = [normalizers.Replace(" ", _SPACE)]
    decode: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        normal.insert(0, normalizers.Prepend(_SPACE))
        decode.append(decoders.Strip(" ", 1, 0))
    core.normalizer = normalizers.Sequence(normal)
    core.decoder = decoders.Sequence(decode)
    return core


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    return {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != _UNUSED  # padding of the embedding, not part of the vocabulary
    }


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    # Sentencepiece has scores instead of merges: pieces are joined in descending score of the
    # result, so every split of a piece into two pieces is a merge of that rank.
    vocabulary = _vocabulary(metadata)
    scores = metadata["tokenizer.ggml.scores"].tolist()
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                key = (-scores[index], vocabulary[left], vocabulary[right])
                ranked.append((*key, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_special(core: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    control = (_CONTROL, _UNKNOWN)
    core.add_tokens(
        [
            AddedToken(token, special=kind in control, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in control or kind == _USER_DEFINED
        ]
    )
    # Files may leave the flag out; these two kinds of models then begin texts with a token.
    default = metadata["tokenizer.ggml.model"] == "llama" or (
        metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    )
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", default):
        core.post_processor = TemplateProcessing(
            single=[tokens[bos], "$A"], special_tokens=[(tokens[bos], int(bos))]
        )

"""Tokenizers from a Hugging Face directory or from GGUF metadata."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.cache import cache_dir, write_atomically
from paceline.errors import ModelError
from paceline.models.gguf import GGUFFile, Strings
from paceline.models.text import BYTES, Tokenizer

if TYPE_CHECKING:
    import tokenizers

_BUILD = "3"  # part of the cache key; raise it when the code below changes what it builds
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5  # GGUF token types
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece vocabularies

# Patterns of the pre-tokenizers, as the original tokenizer.json files have them. The words of
# GPT-2, then of GPT-4, and of GPT-4o, which part before a capital.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS = "digits"  # each a word, by the original's own rule
# The letters with a case that DeepSeek's first tokenizer knows; not all that Unicode has.
_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿﬀ-ﬆﬓ-ﬗ\uff21-\uff3a\uff41-\uff5a𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_MARKS = r"!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_ASIAN = "[一-龥ࠀ-一가-퟿]+"
_PATTERNS = {
    # What llama.cpp does for files whose converter did not know the model.
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (_DIGITS, _GPT2),
    "qwen2": (_WORDS % "",),
    "qwen35": (
        _SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "llama-bpe": (_WORDS % "{1,3}",),
    "dbrx": (_WORDS % "{1,3}",),
    "gpt-4o": (_CASED % (_SUFFIX + "?", _SUFFIX + "?", "{1,3}"),),
    "tekken": (_CASED % ("", "", ""),),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_LETTERS}]+",
        rf"\s?[{_MARKS}]+",
        r"\s+$",
        _ASIAN,
        _DIGITS,
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _ASIAN, _DIGITS),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[一-龥\u3040-\u30ff]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "bailingmoe": (_WORDS % "",),  # the words of "qwen2", of text as it is written
}
# Names of the same: Granite 3 is "refact", Granite 4 and Phi-4 are "dbrx", Phi-4-mini and gpt-oss
# are "gpt-4o", SmolLM3 is "llama-bpe", Ministral 3 is "tekken".
_SAME = {
    **dict.fromkeys(("phi-2", "olmo", "granite-docling", "mpt"), "gpt-2"),
    **dict.fromkeys(("refact", "starcoder", "codeshell", "command-r", "minerva-7b"), "smollm"),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez"), "qwen2"),
    **dict.fromkeys(("hunyuan-dense", "joyai-llm"), "deepseek-v3"),
    **dict.fromkeys(("bailingmoe2", "llada-moe"), "bailingmoe"),
    **dict.fromkeys(("smaug-bpe", "glm4", "chatglm-bpe"), "dbrx"),
    "llama4": "gpt-4o",
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "pixtral"), "llama-bpe"),
    **dict.fromkeys(("lfm2", "falcon-h1", "midm-2.0"), "llama-bpe"),
}
# These begin a text with a token unless the file says otherwise, and take a word that is a token
# whole, whatever the merges say.
_WHOLE = ("llama-bpe", "tekken")
_COMPOSED = ("qwen2", "qwen35")  # read NFC
# Tokens that end a text or a turn whatever the file says of them, by llama.cpp's list.
_END_TEXTS = """
<|endoftext|> <|end_of_text|> <eos> <EOT> <|im_end|> <|eot_id|> <|eom_id|> <|end|> <end_of_turn>
<end_of_utterance> <|fim_pad|> <fim_pad> <fim-pad> <PAD> <|fim_repo|> <|repo_name|> <fim-repo>
<REPO> <reponame> <|file_sep|> <turn|> <|tool_response>
"""
_ENDS = frozenset(_END_TEXTS.split())
# Where an answer is messages, as of gpt-oss, these end it, and the last does not.
_MESSAGES = ("<|return|>", "<|call|>", "<|end|>")
# Tokens around the sides of a text whose middle is missing, by their keys in files.
_FIM = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid", "repo": "fim_rep"}
_FIM |= {"file": "fim_sep"}
# Classes of Qwen's tokenizer, whose slow form has no tokenizer.json.
_QWEN = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
# Special tokens by their names, in the order in which they get ids.
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_TEMPLATE = "tokenizer.chat_template"
_LOG = logging.getLogger(__name__)
_ADVICE = "use the model's Hugging Face directory instead"


def tokenizer_from_directory(directory: Path, eos_token_ids: tuple[int, ...]) -> Tokenizer:
    """Read `tokenizer.json`, or the vocabulary and merges of a Qwen tokenizer.

    Raises:
        ModelError: they are missing or damaged.
    """
    try:
        return _from_directory(directory, eos_token_ids)
    except (AttributeError, TypeError, ValueError, LookupError, OverflowError) as error:
        raise ModelError(
            f"{directory} has tokenizer files with what does not belong there ({error}): "
            "download the model again"
        ) from error


def _from_directory(directory: Path, eos_token_ids: tuple[int, ...]) -> Tokenizer:
    import tokenizers

    path, parts = directory / "tokenizer.json", directory / "merges.txt"
    whole = path.is_file()
    if not whole and not parts.is_file():
        raise ModelError(f"{directory} has no tokenizer.json: save a fast tokenizer there")
    try:
        core = tokenizers.Tokenizer.from_file(str(path)) if whole else _from_parts(directory)
    except ModelError:
        raise
    except Exception as error:  # the library raises nothing more specific
        file = path if whole else parts
        raise ModelError(f"{file} is not a tokenizer: download the model again") from error
    core.no_truncation()
    core.no_padding()
    config = read_json(directory / "special_tokens_map.json")
    said = read_json(directory / "tokenizer_config.json")
    config |= {name: value for name, value in said.items() if value is not None}
    special = {name: text for name in _NAMED if (text := _token_text(config.get(name))) is not None}
    _add_others(core, directory, config, special)
    templates = _directory_templates(directory, config)
    template = templates.pop("default", None)
    ends = [special.get("eos_token", "")]
    added = [each.content for each in core.get_added_tokens_decoder().values()]
    # A token of the template that ends turns elsewhere ends them here.
    ends += [each for each in added if each in _ends(added) & set(_words(template))]
    found = [core.token_to_id(each) for each in ends]
    _follow_flags(core, config, special)
    return Tokenizer(
        core,
        eos_token_ids=tuple(dict.fromkeys((*eos_token_ids, *(i for i in found if i is not None)))),
        special_tokens=special,
        chat_template=template,
        named_templates=templates,
    )


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Build the tokenizer of a GGUF file, cached on disk.

    Raises:
        ModelError: the file has no tokenizer or one of an unsupported kind.
    """
    metadata = file.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Strings | list) or not isinstance(next(iter(tokens), ""), str):
        raise ModelError(f"{file.path} has no tokenizer: {_ADVICE}")
    special = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = _special_id(metadata, key)
        if index is not None:
            special[f"{name}_token"] = tokens[index]
    for name, key in _FIM.items():
        index = _special_id(metadata, key)
        index = _special_id(metadata, name) if index is None else index  # by the older name
        if index is not None:
            special[f"fim_{name}_token"] = tokens[index]
    # The default one may be among the named ones alone.
    templates = {
        name.removeprefix(_TEMPLATE).removeprefix(".") or "default": each
        for name, each in metadata.items()
        if name == _TEMPLATE or name.startswith(f"{_TEMPLATE}.")
        if isinstance(each, str)
    }
    folder = cache_dir() / "tokenizers" / f"{file.fingerprint}-{_BUILD}"
    return Tokenizer(
        _cached(file, folder / "tokenizer.json"),
        eos_token_ids=_end_ids(metadata),
        special_tokens=special,
        chat_template=templates.pop("default", None),
        named_templates=templates,
        begins_chats=True,
        kept=folder / "vocabulary",
    )


def tokenizer_from_words(words: Sequence[bytes], marks: Sequence[str]) -> Tokenizer:
    """Return a byte-level tokenizer whose words were merged in the order of their ids.

    `marks` are special tokens, of the ids behind; the first ends a text.
    """
    from tokenizers import AddedToken

    shown = {byte: char for char, byte in BYTES.items()}
    vocabulary = {"".join(shown[byte] for byte in word): at for at, word in enumerate(words)}
    core = _bpe("gpt-2", vocabulary, _splits(vocabulary, range(len(words))))
    core.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in marks])
    return Tokenizer(core, eos_token_ids=(len(words),))


def _from_parts(directory: Path) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken

    config = read_json(directory / "tokenizer_config.json")
    if config.get("tokenizer_class") not in _QWEN:
        raise ModelError(f"{directory} has no tokenizer.json: save a fast tokenizer there")
    lines = (directory / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [line.split(" ", 1) for line in lines if line and not line.startswith("#version")]
    vocabulary = read_json(directory / "vocab.json")
    core = _bpe("qwen2", vocabulary, [(first, second) for first, second in merges])
    for index, each in sorted(_added(config).items(), key=lambda item: int(item[0])):
        flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
        core.add_tokens([AddedToken(each["content"], **{name: each[name] for name in flags})])
        if core.token_to_id(each["content"]) != int(index):
            raise ValueError(f"the id of {each['content']} is not {index}")
    return core


def mask_token_id(directory: Path) -> int | None:
    """Return the id of the mask token of a directory's tokenizer, if it names one."""
    config = read_json(directory / "tokenizer_config.json")
    text = _token_text(config.get("mask_token"))
    if text is None:
        return None
    known = read_json(directory / "tokenizer.json").get("added_tokens") or []
    ids = {each["content"]: each["id"] for each in known}
    ids |= {each["content"]: int(index) for index, each in _added(config).items()}
    return ids.get(text)


def _added(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("added_tokens_decoder") or {}


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


def _directory_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    # By name; files have the say over the config, and both over what processors keep.
    found: dict[str, Any] = {}
    whole = read_json(directory / "chat_template.json").get("chat_template")
    for given in (whole, config.get("chat_template")):
        if isinstance(given, list):  # several named templates
            given = {each.get("name"): each.get("template") for each in given}
        found |= given if isinstance(given, Mapping) else {"default": given or found.get("default")}
    files = {"default": directory / "chat_template.jinja"}
    files |= {each.stem: each for each in (directory / "additional_chat_templates").glob("*.jinja")}
    found |= {name: path.read_text("utf-8") for name, path in files.items() if path.is_file()}
    return {name: each for name, each in found.items() if isinstance(each, str)}


def _add_others(
    core: tokenizers.Tokenizer,
    directory: Path,
    config: Mapping[str, Any],
    special: Mapping[str, str],
) -> None:
    # Added tokens that other files than tokenizer.json have get the next ids, as transformers
    # gives them: those with ids in their order, then those with names.
    from tokenizers import AddedToken

    found = [
        AddedToken(
            each["content"],
            special=bool(each.get("special")),
            normalized=bool(each.get("normalized", not each.get("special"))),
            **{name: bool(each.get(name)) for name in ("lstrip", "rstrip", "single_word")},
        )
        for _, each in sorted(_added(config).items(), key=lambda item: int(item[0]))
    ]
    if not found:
        listed = read_json(directory / "added_tokens.json")
        found = [AddedToken(text) for text in sorted(listed, key=lambda text: int(listed[text]))]
    core.add_tokens(found)
    more = config.get("additional_special_tokens") or config.get("extra_special_tokens") or ()
    named = [*special.values(), *(more.values() if isinstance(more, Mapping) else more)]
    known = {each.content for each in core.get_added_tokens_decoder().values()}
    texts = [text for each in named if (text := _token_text(each)) and text not in known]
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])


def _ends(tokens: Collection[str]) -> frozenset[str]:
    # Tokens that end a text, of a vocabulary that has these.
    return _ENDS.symmetric_difference(_MESSAGES) if {*_MESSAGES} <= {*tokens} else _ENDS


def _words(template: str | None) -> list[str]:
    # Strings of a template that look like special tokens.
    return re.findall(r"<[^<>\s]+>", template or "")


def _follow_flags(
    core: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    # The flags of tokenizer_config.json have the say over tokenizer.json's post-processor.
    around = [list(ids) for ids in Tokenizer(core).around]
    for ids, name in zip(around, ("bos", "eos"), strict=True):
        asked, token = (
            config.get(f"add_{name}_token"),
            core.token_to_id(special.get(f"{name}_token", "")),
        )
        if isinstance(asked, bool) and token is not None:
            ids[:] = [token] if asked else [each for each in ids if each != token]
    if tuple(map(tuple, around)) != Tokenizer(core).around:
        _surround(core, *around)


def _surround(core: tokenizers.Tokenizer, begin: Sequence[int], end: Sequence[int]) -> None:
    from tokenizers.processors import TemplateProcessing

    names = {index: core.id_to_token(index) for index in (*begin, *end)}
    core.post_processor = TemplateProcessing(
        single=[*(names[i] for i in begin), "$A", *(names[i] for i in end)],
        special_tokens=[(name, index) for index, name in names.items()],
    )


def _cached(file: GGUFFile, path: Path) -> tokenizers.Tokenizer:
    import tokenizers

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
            if _pre(metadata) == "default":
                _LOG.warning("%s names no pre-tokenizer: its words may be others", file.path)
            core = _byte_level(metadata)
        elif model in ("llama", "gemma4"):
            core = _sentencepiece(metadata)
        else:
            raise ModelError(f"{file.path} has a tokenizer of kind {model!r}: {_ADVICE}")
        _add_special(core, metadata)
        ends = [_around(metadata, name) for name in ("bos", "eos")]
        _surround(core, *ends)
    except ModelError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"the tokenizer of {file.path} is incomplete: {_ADVICE}") from error
    return core


def _special_id(metadata: Mapping[str, Any], name: str) -> int | None:
    # SentencePiece files may leave out those that are the same in most of them.
    usual = {"unknown": 0, "bos": 1, "eos": 2} if _is_sentencepiece(metadata) else {}
    index = metadata.get(f"tokenizer.ggml.{name}_token_id", usual.get(name))
    known = isinstance(index, int) and 0 <= index < len(metadata["tokenizer.ggml.tokens"])
    return int(index) if known else None


def _begins(metadata: Mapping[str, Any]) -> bool:
    # Whether texts begin with a token unless the file says otherwise.
    kind = metadata.get("tokenizer.ggml.model")
    return kind in ("llama", "gemma4") or _pre(metadata) in _WHOLE


def _is_sentencepiece(metadata: Mapping[str, Any]) -> bool:
    return str(metadata.get("tokenizer.ggml.model")) == "llama"


def _pre(metadata: Mapping[str, Any]) -> str:
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    return _SAME.get(name, name)


def _around(metadata: Mapping[str, Any], name: str) -> list[int]:
    # Ids that begin ("bos") or end ("eos") a text.
    usual = name == "bos" and _begins(metadata)
    if not metadata.get(f"tokenizer.ggml.add_{name}_token", usual):
        return []
    index = _special_id(metadata, name)
    if index is None:
        raise ValueError(f"no {name} token")
    return [index]


def _end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    tokens, kinds = [*metadata["tokenizer.ggml.tokens"]], _kinds(metadata)
    named = [_special_id(metadata, name) for name in ("eos", "eot", "eom")]
    known = _ends(tokens)
    if "<|call|>" in known:
        named = [index for index in named if index is None or tokens[index] in known]
    # llama.cpp ends at every "</s>"; here it must be a control token, for Gemma's and Qwen's
    # vocabularies have it as a tag of HTML.
    texts = [
        index
        for index, token in enumerate(tokens)
        if token in known or (token == "</s>" and kinds[index] == _CONTROL)
    ]
    return tuple(dict.fromkeys([*(each for each in named if each is not None), *texts]))


def _kinds(metadata: Mapping[str, Any]) -> list[int]:
    kinds = metadata.get("tokenizer.ggml.token_type")
    tokens = metadata["tokenizer.ggml.tokens"]
    return [_NORMAL] * len(tokens) if kinds is None else kinds.tolist()


def _byte_level(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    kind = _pre(metadata)
    # Refused rather than guessed: other splits give other ids, and a worse text, in silence.
    if kind not in _PATTERNS:
        raise ModelError(f"the pre-tokenizer {kind!r} is not supported: {_ADVICE}")
    return _bpe(kind, _vocabulary(metadata), _listed_merges(metadata))


def _listed_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = (pair.partition(" ") for pair in metadata["tokenizer.ggml.merges"])
    return [(first, second) for first, _, second in pairs]


def _bpe(kind: str, vocabulary: dict[str, int], merges: list[Any]) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    core = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind in _WHOLE))
    splits: list[Any] = [
        pre_tokenizers.Digits(individual_digits=True)
        if pattern == _DIGITS
        else pre_tokenizers.Split(Regex(pattern), "isolated")
        for pattern in _PATTERNS[kind]
    ]
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    core.pre_tokenizer = pre_tokenizers.Sequence(splits)
    if kind in _COMPOSED:
        core.normalizer = normalizers.NFC()
    core.decoder = decoders.ByteLevel()
    return core


def _sentencepiece(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = metadata["tokenizer.ggml.tokens"]
    unknown = tokens[_special_id(metadata, "unknown") or 0]
    ranked = not _is_sentencepiece(metadata)  # Gemma 4's has merges, and adds no space
    merges = _listed_merges(metadata) if ranked else _merges(metadata)
    core = Tokenizer(
        models.BPE(
            _vocabulary(metadata),
            merges,
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normal: list[Any] = [normalizers.Replace(" ", _SPACE)]
    decode: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", not ranked):
        normal.insert(0, normalizers.Prepend(_SPACE))
        decode.append(decoders.Strip(" ", 1, 0))
    core.normalizer = normalizers.Sequence(normal)
    core.decoder = decoders.Sequence(decode)
    return core


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    # Unused tokens are padding of the embedding, not part of the vocabulary.
    pairs = zip(metadata["tokenizer.ggml.tokens"], _kinds(metadata), strict=True)
    return {token: index for index, (token, kind) in enumerate(pairs) if kind != _UNUSED}


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    # Sentencepiece has scores instead of merges: pieces are joined in descending score of the
    # result, so every split of a piece into two pieces is a merge of that rank. (Of equal scores
    # sentencepiece joins the leftmost pair first; the vocabularies of models have none.)
    kinds = _kinds(metadata)
    vocabulary = {
        token: index
        for token, index in _vocabulary(metadata).items()
        if kinds[index] in (_NORMAL, _USER_DEFINED)
    }
    scores = metadata["tokenizer.ggml.scores"].tolist()
    return _splits(vocabulary, [-score for score in scores])


def _splits(vocabulary: Mapping[str, int], ranks: Sequence[float]) -> list[tuple[str, str]]:
    # All ways to join two pieces to a third, by the rank of that.
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                key = (ranks[index], vocabulary[left], vocabulary[right])
                ranked.append((*key, left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_special(core: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken

    control = (_CONTROL, _UNKNOWN)
    # Phi-3's swallow the spaces behind them, which files say by the model's name alone.
    name = str(metadata.get("general.name", "")).lower()
    strips = "phi-3" in name or "phi3" in name
    core.add_tokens(
        [
            AddedToken(
                token,
                special=kind in control,
                normalized=False,
                rstrip=strips and token not in ("<unk>", "<s>", "<|endoftext|>"),
            )
            for token, kind in zip(metadata["tokenizer.ggml.tokens"], _kinds(metadata), strict=True)
            if kind in control or kind == _USER_DEFINED
        ]
    )

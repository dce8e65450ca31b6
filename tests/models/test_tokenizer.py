"""Tokenizers of model files agree with each other, with what built them, and with slow ones.

The slow ones, written here, are judged by llama.cpp on real vocabularies outside of this suite.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import save_directory, save_gguf, tiny_config

from paceline.errors import ModelError
from paceline.models import tokenizer as module
from paceline.models.gguf import GGUFFile
from paceline.models.text import Tokenizer
from paceline.models.tokenizer import tokenizer_from_directory, tokenizer_from_gguf

TEXTS = [
    "the quick brown fox",
    "  spaces \t\n\n and lines\r\n",
    "12345 3.14",
    "\N{GRINNING FACE} e\N{COMBINING ACUTE ACCENT} 日本語",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def from_directory(tmp_path: Path) -> Tokenizer:
    return tokenizer_from_directory(save_directory(tmp_path / "hf", tiny_config()), (2,))


@pytest.fixture
def gguf_file(tmp_path: Path) -> GGUFFile:
    return GGUFFile(save_gguf(tmp_path / "m.gguf", tiny_config()))


def test_both_formats_give_the_same_tokenizer(
    from_directory: Tokenizer, gguf_file: GGUFFile
) -> None:
    from_gguf = tokenizer_from_gguf(gguf_file)
    for text in TEXTS:
        assert from_gguf.encode(text) == from_directory.encode(text)
        assert from_gguf.decode(from_gguf.encode(text), skip_special=False) == text
    chat = [{"role": "user", "content": "hi"}]
    assert from_gguf.chat(chat) == from_directory.chat(chat)
    assert from_gguf.fingerprint == from_directory.fingerprint
    assert from_directory.eos_token_ids == (2,)
    assert from_gguf.eos_token_ids == (2, 0)  # "<|endoftext|>" ends texts by its name
    assert from_gguf.special_tokens == from_directory.special_tokens


def test_the_built_tokenizer_is_cached_and_rebuilt_if_damaged(
    gguf_file: GGUFFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokenizer_from_gguf(gguf_file).encode(TEXTS[0])
    (cached,) = own_cache.rglob("*.json")
    whole = cached.read_bytes()
    cached.write_bytes(whole[: len(whole) // 2])
    assert tokenizer_from_gguf(gguf_file).encode(TEXTS[0]) == ids
    assert cached.read_bytes() == whole
    monkeypatch.setattr(module, "_build", lambda _: pytest.fail("not taken from the cache"))
    assert tokenizer_from_gguf(gguf_file).encode(TEXTS[0]) == ids


def test_the_vocabulary_s_fingerprint_is_kept_and_computed_again_if_damaged(
    gguf_file: GGUFFile, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tokenizer_from_gguf(gguf_file).fingerprint
    (kept,) = own_cache.rglob("vocabulary")
    assert kept.read_text() == found
    with monkeypatch.context() as patch:
        patch.setattr("json.dumps", lambda _: pytest.fail("not taken from the cache"))
        assert tokenizer_from_gguf(gguf_file).fingerprint == found
    kept.write_text(found[:7])
    assert tokenizer_from_gguf(gguf_file).fingerprint == kept.read_text() == found


def test_an_unwritable_cache_only_costs_time(
    gguf_file: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    tokenizer = tokenizer_from_gguf(gguf_file)
    assert tokenizer.encode("the")
    assert tokenizer.fingerprint


def test_the_tokenizer_s_own_end_token_is_added(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    assert tokenizer_from_directory(directory, (0,)).eos_token_ids == (0, 2)


def test_templates_stand_in_files_or_lists_by_name(tmp_path: Path) -> None:
    """Chosen as transformers chooses from the same directory."""
    import transformers

    directory = save_directory(tmp_path / "hf", tiny_config())
    path = directory / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "eos_token": "<|im_end|>"}

    def check(default: str, tool_use: str, **others: str) -> None:
        tokenizer = tokenizer_from_directory(directory, ())
        judge = transformers.AutoTokenizer.from_pretrained(directory)
        for tools, expected in ((None, default), ([{}], tool_use)):
            assert tokenizer.template_for(bool(tools)) == expected
            assert judge.get_chat_template(tools=tools) == expected
        for name, text in others.items():
            assert tokenizer.template_for(True, name) == text == judge.get_chat_template(name)
        assert tokenizer.template_for(True, "{{ 1 }}") == "{{ 1 }}"

    pairs = {"default": "a", "tool_use": "b{{ tools }}", "rag": "c"}
    listed = [{"name": name, "template": text} for name, text in pairs.items()]
    path.write_text(json.dumps({**config, "chat_template": listed}))
    check("a", "b{{ tools }}", rag="c")
    tokenizer = tokenizer_from_directory(directory, ())
    assert (tokenizer.reads("tools"), tokenizer.reads("tools", tools=True)) == (False, True)
    (directory / "chat_template.jinja").write_text("d")
    assert tokenizer_from_directory(directory, ()).chat_template == "d"
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates/tool_use.jinja").write_text("e")
    check("d", "e")
    path.write_text(json.dumps({**config, "chat_template": "f"}))
    (directory / "chat_template.jinja").unlink()
    tokenizer = tokenizer_from_directory(directory, ())  # transformers forgets "f" here
    assert (tokenizer.chat_template, tokenizer.template_for(True)) == ("f", "e")
    (directory / "additional_chat_templates/tool_use.jinja").unlink()
    check("f", "f")
    del config["chat_template"]
    path.write_text(json.dumps(config))
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": "g"}))
    assert tokenizer_from_directory(directory, ()).chat_template == "g"


def test_files_have_templates_by_name(build: Any) -> None:
    def read(**templates: Any) -> list[str | None]:
        named = {f"tokenizer.{name.replace('__', '.')}": text for name, text in templates.items()}
        tokenizer = build({**byte_level("gpt-2"), **named})
        return [tokenizer.template_for(each) for each in (False, True)]

    both = {"chat_template": "a", "chat_template__tool_use": "b", "chat_templates": ["tool_use"]}
    assert read(**both) == ["a", "b"]
    assert read(chat_template__default="a") == ["a", "a"]


def test_damaged_directories_are_refused(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    (directory / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        tokenizer_from_directory(directory, ())
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="not a tokenizer"):
        tokenizer_from_directory(directory, ())
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        tokenizer_from_directory(directory, ())


def gguf_like(metadata: dict[str, Any]) -> Any:
    return SimpleNamespace(metadata=metadata, path=Path("x.gguf"), fingerprint=token_hex(8))


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Tokenizer]:
    """Builds a tokenizer from metadata, without the cache."""
    monkeypatch.setattr(module, "_cached", lambda file, path: module._build(file))
    return lambda metadata: tokenizer_from_gguf(gguf_like(metadata))


MERGES = ["1 2", "12 3", "123 4", "Ġ a", "a a", "' s"]


def byte_level(pre: str | None, **entries: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer whose merges join digits and spaces."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, *(pair.replace(" ", "") for pair in MERGES), "<bos>", "<eos>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        **({} if pre is None else {"tokenizer.ggml.pre": pre}),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 2) + [3, 3]),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        **{f"tokenizer.ggml.{name}": value for name, value in entries.items()},
    }


BYTES = 256  # tokens of bytes in a byte-level vocabulary; BYTES + 6 is "<bos>", then "<eos>"
ALL_PRE = sorted({*module._PATTERNS, *module._SAME})


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("refact", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("tekken", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("dbrx", ["123", "4"]),
        ("gpt-4o", ["123", "4"]),
        ("gpt-2", ["1234"]),
        ("default", ["123", "4"]),
    ],
)
def test_each_pre_tokenizer_splits_digits_its_own_way(
    pre: str, digits: list[str], build: Any
) -> None:
    tokenizer = build(byte_level(pre))
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == digits
    contraction = [tokenizer.decode([i]) for i in tokenizer.encode("b's aa")][:2]
    assert contraction == (["b", "'"] if pre == "default" else ["b", "'s"])


# Words by other expressions than those of the package: llama.cpp's, or written out.
_S = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD, _BIG, _SMALL = (
    r"[^\r\n\p{L}\p{N}]?",
    r"[\p{L}\p{M}--\p{Ll}]",
    r"[\p{L}\p{M}--\p{Lu}--\p{Lt}]",
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "qwen2": [_S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _END],
    "qwen35": [
        _S + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "llama-bpe": [_S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}\p{N}?\p{N}?" + _END],
    "tekken": [f"{_HEAD}{_BIG}*{_SMALL}+|{_HEAD}{_BIG}+{_SMALL}*" + r"|\p{N}" + _SLASH],
    "gpt-4o": [
        f"{_HEAD}{_BIG}*{_SMALL}+{_S}?|{_HEAD}{_BIG}+{_SMALL}*{_S}?" + r"|\p{N}{1,3}" + _SLASH
    ],
    "default": [r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-v3": [
        r"\p{N}\p{N}?\p{N}?",
        r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[[\p{P}\p{S}]&&\p{ASCII}][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
        # Letters of ASCII are among these marks, by the original's own range from ":" to "~".
        r"\s?[[\x21-\x7e]--[0-9]||[\u2018-\u201f\u3000-\u3002\uff01-\uff0f\uff1a-\uff5e]]+",
        r"\s+$",
        r"[\u0800-\u9fa5\uac00-\ud7ff]+",
        r"\p{N}",
    ],
}


def slow_words(expressions: list[str], text: str) -> list[str]:
    """Split by each expression in turn, at both ends of every match."""
    import regex

    words = [text]
    for expression in expressions:
        pattern, parts = regex.compile(expression, regex.V1), []
        for word in words:
            at = 0
            for match in pattern.finditer(word):
                parts += [word[at : match.start()], match.group()]
                at = match.end()
            parts.append(word[at:])
        words = [part for part in parts if part]
    return words


PARTS = [
    *("a", "B", "Ab", "aB", "É", "é", "ß", "ʰ", "日本", "한국", "हिन्दी", "ก", "e\u0301", "ǅ", "Ω"),
    *("1", "12", "2345", "٣٤", "½", "Ⅷ", " ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000"),
    *("'s", "'LL", "'Re", "'", "don't", ".", "...", "/", "//\n", "!=", "$", "_", "🙂", "\u200d"),
    *("\x00", "\x7f", "\ufffd", "\U0010ffff", "def f(x):\n    return x", "https://a.b/c?d=1"),
]


def nasty(count: int, seed: int, parts: list[str]) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(parts, k=rng.randrange(1, 12))) for _ in range(count)]


@pytest.mark.parametrize("pre", EXPRESSIONS)
def test_words_are_those_of_another_engine(pre: str, build: Any) -> None:
    import unicodedata

    splitter = build(byte_level(pre)).core.pre_tokenizer
    for text in nasty(3000, 0, PARTS):
        normal = unicodedata.normalize("NFC", text)
        found = [normal[slice(*place)] for _, place in splitter.pre_tokenize_str(normal)]
        assert found == slow_words(EXPRESSIONS[pre], normal)


def test_the_expressions_tell_each_other_apart() -> None:
    """The control of the test above: every other expression fails it."""
    texts = nasty(300, 0, PARTS)
    words = {pre: [slow_words(each, text) for text in texts] for pre, each in EXPRESSIONS.items()}
    assert len({json.dumps(each) for each in words.values()}) == len(EXPRESSIONS)


@pytest.mark.parametrize("pre", ALL_PRE)
def test_every_known_pre_tokenizer_keeps_the_text(pre: str, build: Any) -> None:
    tokenizer = build(byte_level(pre))
    for text in nasty(100, 1, PARTS):
        expected = text if module._SAME.get(pre, pre) not in ("qwen2", "qwen35") else None
        decoded = tokenizer.decode(tokenizer.encode(text))
        assert expected in (decoded, None)
    assert tokenizer.encode("1234") == build(byte_level(module._SAME.get(pre, pre))).encode("1234")


def test_a_word_that_is_a_token_is_taken_whole_where_the_model_does_so(build: Any) -> None:
    def ids(pre: str) -> list[int]:
        metadata = byte_level(pre)
        metadata["tokenizer.ggml.tokens"][0] = "bcb"  # no merge leads to it
        return list(build(metadata).encode("bcb"))

    assert (len(ids("llama-bpe")), len(ids("tekken"))) == (1, 1)
    assert (len(ids("dbrx")), len(ids("qwen2"))) == (3, 3)


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_qwen_composes_characters(pre: str, build: Any) -> None:
    tokenizer = build(byte_level(pre))
    assert tokenizer.decode(tokenizer.encode("e\N{COMBINING ACUTE ACCENT}")) == "é"


@pytest.mark.parametrize("pre", ["qwen2", "qwen35"])
def test_ids_are_those_of_transformers_own_class(pre: str, build: Any) -> None:
    """The other of the two classes is the control."""
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    metadata = byte_level(pre)
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split()) for pair in MERGES]
    kinds = {"qwen2": Qwen2Tokenizer, "qwen35": Qwen3_5Tokenizer}
    judges: dict[str, Any] = {
        name: kind(vocab=vocabulary, merges=merges) for name, kind in kinds.items()
    }
    texts = nasty(400, 3, [*PARTS, "a\u0320", "!\u0320", "\u0931\u093c"])
    for name, judge in judges.items():
        tokenizer = build(metadata)
        same = [tokenizer.core.pre_tokenizer.pre_tokenize_str(text) for text in texts]
        theirs = [judge.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text) for text in texts]
        assert (same == theirs) == (name == pre)
    ids = [tokenizer.encode(text) for text in texts]
    assert ids == [judges[pre].backend_tokenizer.encode(text).ids for text in texts]


def test_a_file_that_names_no_pre_tokenizer_is_mentioned(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build(byte_level("gpt-2"))
        assert not caplog.messages
        build(byte_level(None))
    assert "x.gguf names no pre-tokenizer" in caplog.text


@pytest.mark.parametrize(
    ("metadata", "begin", "end"),
    [
        (byte_level("gpt-2"), False, False),
        (byte_level("qwen2", add_bos_token=True), True, False),
        (byte_level("llama-bpe"), True, False),
        (byte_level("llama3"), True, False),
        (byte_level("tekken"), True, False),
        (byte_level("dbrx"), False, False),
        (byte_level("llama-bpe", add_bos_token=False), False, False),
        (byte_level("llama-bpe", add_eos_token=True), True, True),
    ],
)
def test_texts_begin_and_end_as_the_file_asks(
    metadata: dict[str, Any], begin: bool, end: bool, build: Any
) -> None:
    tokenizer = build(metadata)
    bos, eos = BYTES + len(MERGES), BYTES + len(MERGES) + 1
    around = ([bos] if begin else [], [eos] if end else [])
    plain = tokenizer.encode("b")
    assert tokenizer.encode("b", special=True) == [*around[0], *plain, *around[1]]
    assert tokenizer.encode("", special=True) == [*around[0], *around[1]]
    # Never twice, and only in front.
    assert tokenizer.encode("<bos>b<eos>", special=True) == [bos, *plain, eos]
    assert tokenizer.encode("b<bos>", special=True) == [*around[0], *plain, bos, *around[1]]


def test_a_begin_token_that_is_asked_for_must_be_there(build: Any) -> None:
    for index in (None, -1, 10**6, "1"):
        metadata = byte_level("qwen2", add_bos_token=True, bos_token_id=index)
        with pytest.raises(ModelError, match="incomplete"):
            build(metadata)


def test_end_tokens_are_named_by_the_file_or_by_their_text(build: Any) -> None:
    names = ["<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "</s> ", "<|file_sep|>"]
    metadata = byte_level("gpt-2", eot_token_id=7, eom_token_id=8, eos_token_id=9)
    metadata["tokenizer.ggml.tokens"][:6] = names
    assert build(metadata).eos_token_ids == (9, 7, 8, 0, 1, 3, 5, BYTES + len(MERGES) + 1)
    kinds = metadata["tokenizer.ggml.token_type"].copy()
    kinds[2] = 3  # "</s>" as a control token
    metadata["tokenizer.ggml.token_type"] = kinds
    assert 2 in build(metadata).eos_token_ids


PIECES = ["\u2581", "a", "b", "c", "ab", "bc", "\u2581a", "\u2581ab"]


def sentencepiece(
    pieces: list[str], scores: list[float], user: tuple[str, ...] = (), **entries: Any
) -> dict[str, Any]:
    controls = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*controls, *pieces, *user],
        "tokenizer.ggml.scores": np.array([0.0] * 259 + scores + [-1000.0] * len(user)),
        "tokenizer.ggml.token_type": np.array(
            [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4] * len(user)
        ),
        **{f"tokenizer.ggml.{name}": value for name, value in entries.items()},
    }


def test_sentencepiece_vocabularies_merge_by_score_and_fall_back_to_bytes(build: Any) -> None:
    metadata = sentencepiece(PIECES, [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0])
    tokenizer, tokens = build(metadata), metadata["tokenizer.ggml.tokens"]

    def split(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text)]

    assert split("ab") == ["\u2581ab"]  # the space in front comes with the model
    assert split("abc") == ["\u2581a", "bc"]  # "bc" has the best score
    assert split("é") == ["\u2581", "<0xC3>", "<0xA9>"]
    for text in ("ab abc  é \N{GRINNING FACE}", " a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a", special=True)[0] == 1  # the usual ids and flags
    assert tokenizer.encode("<s>a", special=True) == tokenizer.encode("<s>a")
    assert tokenizer.eos_token_ids == (2,)


def gemma4(**entries: Any) -> dict[str, Any]:
    """Metadata of a vocabulary of characters with merges, as of Gemma 4."""
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
    pieces = ["\u2581", "a", "b", "\n", "é", "ab", "\u2581a", "\u2581ab", "\n\n"]
    merges = ["a b", "\u2581 ab", "\u2581 a", "\n \n"]
    tokens = [*controls, *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    ids = {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3] * 5 + [6] * 256 + [1] * len(pieces)),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in ids.items()},
        **{f"tokenizer.ggml.{name}": value for name, value in entries.items()},
    }


def test_gemma_4_merges_characters_and_falls_back_to_bytes(build: Any) -> None:
    """As transformers' own class does, from the same vocabulary."""
    from transformers import GemmaTokenizer

    metadata = gemma4()
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    judge: Any = GemmaTokenizer(vocab=vocabulary, merges=merges)
    tokenizer = build(metadata)
    for text in nasty(300, 2, ["a", "b", "ab", " ", "  ", "\n", "\n\n", "é", "日", "🙂", "\x00"]):
        ids = tokenizer.encode(text)
        assert ids == judge.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a", special=True)[0] == 2  # whatever the file says or not
    assert tokenizer.encode("<bos>a", special=True)[:2] == [2, vocabulary["a"]]
    assert tokenizer.eos_token_ids == (1, 4)
    assert build(gemma4(add_bos_token=False)).encode("a", special=True) == [vocabulary["a"]]
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelError, match="incomplete"):
        build(metadata)


def test_a_message_s_end_does_not_end_an_answer_of_several(build: Any, tmp_path: Path) -> None:
    names = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>"]
    metadata = byte_level("gpt-4o", eos_token_id=0, eot_token_id=2)
    metadata["tokenizer.ggml.tokens"][:4] = names
    named = BYTES + len(MERGES) + 1  # "<eos>"
    assert build(metadata).eos_token_ids == (0, 1, named)
    metadata["tokenizer.ggml.tokens"][1] = "<|x|>"  # as of Phi
    assert build(metadata).eos_token_ids == (0, 2, named)
    directory = save_directory(tmp_path / "hf", tiny_config())
    whole = json.loads((directory / "tokenizer.json").read_text())
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": "<|end|><|call|><|return|>"}))
    at = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    for count, ends in ((4, {"<|return|>", "<|call|>"}), (0, set())):
        extra = [
            {"id": 400 + i, "content": each, "normalized": False, **at}
            for i, each in enumerate(names[:count])
        ]
        changed = {**whole, "added_tokens": whole["added_tokens"] + extra}
        (directory / "tokenizer.json").write_text(json.dumps(changed))
        found = tokenizer_from_directory(directory, ())
        texts = {found.decode([i], skip_special=False) for i in found.eos_token_ids}
        assert texts & set(names) == ends


def slow_sentencepiece(metadata: dict[str, Any]) -> Callable[[str], list[int]]:
    """Join the pair of best score, leftmost of equals, until none is a piece; then bytes."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    scores = metadata["tokenizer.ggml.scores"].tolist()
    ids = {token: index for index, token in enumerate(tokens)}
    first = sorted(
        (token for token, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)),
        key=len,
        reverse=True,
    )
    found_by = {token[:1]: [each for each in first if each[:1] == token[:1]] for token in first}

    def pieces(text: str) -> list[int]:
        parts = list(text.replace(" ", "\u2581"))
        while True:
            pairs = [(i, parts[i] + parts[i + 1]) for i in range(len(parts) - 1)]
            known = [(-scores[ids[pair]], i) for i, pair in pairs if pair in ids]
            if not known:
                break
            at = min(known)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        out: list[int] = []
        for part in parts:
            raw = [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
            out += [ids[part]] if part in ids else raw
        return out

    prefix = " " if metadata.get("tokenizer.ggml.add_space_prefix", True) else ""

    def encode(text: str) -> list[int]:
        out: list[int] = []
        begin = at = 0
        while at <= len(text):
            match = next(
                (e for e in found_by.get(text[at : at + 1], ()) if text.startswith(e, at)), ""
            )
            if match or at == len(text):
                out += pieces(prefix + text[begin:at]) if at > begin else []
                out += [ids[match]] if match else []
                begin = at = at + max(len(match), 1)
            else:
                at += 1
        return out

    return encode


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_equals_a_slow_one(prefix: bool, build: Any) -> None:
    """A vocabulary of a thousand joined pieces, no two of the same score; special tokens first."""
    rng = random.Random(0)
    pieces = [*"\u2581abcdé", "日"]
    while len(pieces) < 1000:
        new = rng.choice(pieces) + rng.choice(pieces)
        if new not in pieces and len(new) < 9:
            pieces.append(new)
    scores = [-float(i) for i in rng.sample(range(len(pieces)), len(pieces))]
    user = ("\n", "\n\n", "\n\n\n", "  a", "<table>", "<tab")
    metadata = sentencepiece(pieces, scores, user, add_space_prefix=prefix)
    tokenizer, slow = build(metadata), slow_sentencepiece(metadata)
    parts = [
        *"abcdé  日x",
        "\n",
        "\n\n",
        "<tab",
        "le>",
        "<s>",
        "</s",
        ">",
        "🙂",
        "\u2581",
        "  a",
        "a" * 9,
    ]
    for text in nasty(3000, 0, parts):
        assert tokenizer.encode(text) == slow(text)
        decoded = tokenizer.decode(tokenizer.encode(text), skip_special=False)
        assert prefix or decoded == text.replace("\u2581", " ")
    metadata["tokenizer.ggml.scores"] = -metadata["tokenizer.ggml.scores"]  # the control
    other = slow_sentencepiece(metadata)
    assert any(tokenizer.encode(text) != other(text) for text in nasty(300, 0, parts))


def test_phi3_swallows_the_space_behind_its_tokens(build: Any) -> None:
    metadata = sentencepiece([*PIECES, "<|end|>"], [-float(i) for i in range(9)])
    metadata["tokenizer.ggml.token_type"][-1] = 3
    end = len(metadata["tokenizer.ggml.tokens"]) - 1
    plain = build(metadata).encode("<|end|>\n a")
    stripped = build(metadata | {"general.name": "Phi-3 mini"}).encode("<|end|>\n a")
    assert plain[0] == stripped[0] == end
    assert stripped[1:] == build(metadata).encode("a") != plain[1:]


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": np.zeros(3)}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": "abc"}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2"}, "incomplete"),
        ({"tokenizer.ggml.tokens": [], "tokenizer.ggml.model": "llama"}, "incomplete"),
        (byte_level("odd"), "odd"),
        (byte_level("gpt-2", merges=["x"]), "incomplete"),
        (byte_level("gpt-2", merges=["nope nope"]), "incomplete"),
        (byte_level("gpt-2", token_type=np.array([1])), "incomplete"),
        (byte_level("gpt-2", token_type="none"), "incomplete"),
        (sentencepiece(PIECES, [0.0]), "incomplete"),
        (sentencepiece(PIECES, [0.0] * 8) | {"tokenizer.ggml.scores": 3}, "incomplete"),
    ],
)
def test_unsupported_tokenizers_are_refused(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=f"{named}.*Hugging Face directory"):
        tokenizer_from_gguf(gguf_like(metadata))


JUNK: list[Any] = [None, 0, -1, 2**63, 3.5, float("nan"), True, "x", "", [], ["a"], np.zeros(3)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_metadata_of_any_kind_is_read_or_refused(build: Any) -> None:
    rng = random.Random(0)
    bases = [byte_level("qwen2"), sentencepiece(PIECES, [-float(i) for i in range(8)])]
    names = sorted({name for base in bases for name in base} | {"tokenizer.ggml.add_bos_token"})
    read, refused = 0, []
    for _ in range(500):
        metadata = dict(rng.choice(bases))
        for name in rng.choices(names, k=rng.randrange(1, 3)):
            metadata[name] = rng.choice(JUNK)
        try:
            read += bool(build(metadata).encode("ab 12\n é", special=True))
        except ModelError as error:
            refused.append(str(error))
    assert min(read, len(refused)) > 50
    assert not [message for message in refused if "\n" in message]


def directory_with(tmp_path: Path, **config: Any) -> Tokenizer:
    directory = save_directory(tmp_path / "hf", tiny_config())
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return tokenizer_from_directory(directory, (2,))


def with_post_processor(directory: Path) -> None:
    from tokenizers import Tokenizer as Core
    from tokenizers.processors import TemplateProcessing

    core = Core.from_file(str(directory / "tokenizer.json"))
    core.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    core.save(str(directory / "tokenizer.json"))


def test_directories_begin_texts_by_their_post_processor_and_flags(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())

    def around(**flags: Any) -> Any:
        path.write_text(json.dumps({**config, **flags}))
        return tokenizer_from_directory(directory, (2,)).around

    assert around() == ((), ())
    assert around(add_bos_token=True) == ((1,), ())
    assert around(add_bos_token=True, add_eos_token=True) == ((1,), (2,))
    assert around(add_bos_token="yes") == ((), ())
    with_post_processor(directory)
    assert around() == ((1,), ())
    assert around(add_bos_token=False) == ((), ())
    assert around(add_eos_token=True) == ((1,), (2,))


def test_turns_of_a_directory_end_as_its_template_ends_them(tmp_path: Path) -> None:
    assert directory_with(tmp_path, eos_token=None).eos_token_ids == (2,)
    other = directory_with(tmp_path, eos_token="<|endoftext|>")
    assert other.eos_token_ids == (2, 0)
    none = directory_with(tmp_path, eos_token="<|endoftext|>", chat_template="{{ messages }}")
    assert tokenizer_from_directory(tmp_path / "hf", ()).eos_token_ids == (0,)
    assert none.eos_token_ids == (2, 0)


def test_chats_of_files_begin_once(build: Any) -> None:
    message = [{"role": "user", "content": "b"}]
    bos = BYTES + len(MERGES)
    for template in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        metadata = byte_level("llama-bpe") | {"tokenizer.chat_template": template}
        tokenizer = build(metadata)
        assert tokenizer.chat(message) == [bos, *tokenizer.encode("b")]
        assert tokenizer.prompt("b") == tokenizer.chat(message)
        metadata["tokenizer.ggml.add_bos_token"] = False
        assert (build(metadata).chat(message)[0] == bos) == ("bos" in template)


def real_files() -> list[Path]:
    folder = os.environ.get("PACELINE_MODELS")
    return sorted(Path(folder).glob("*.gguf")) if folder else []


@pytest.mark.models
@pytest.mark.parametrize("path", real_files(), ids=lambda path: path.stem)
def test_real_vocabularies_against_slow_ones(path: Path) -> None:
    """Of the GGUF files in the folder $PACELINE_MODELS."""
    metadata = GGUFFile(path).metadata
    tokenizer = tokenizer_from_gguf(GGUFFile(path))
    rng = random.Random(0)
    tokens = [tokenizer.decode([i], False) for i in rng.sample(range(tokenizer.vocab_size), 3000)]
    texts = nasty(500, 0, [*PARTS, *tokens])
    if metadata["tokenizer.ggml.model"] == "llama":
        slow = slow_sentencepiece(dict(metadata))
        for text in texts:
            assert tokenizer.encode(text) == slow(text)
    for text in texts:
        assert tokenizer.encode(text, special=True)[len(tokenizer.around[0]) :] == (
            tokenizer.encode(text)
        ) or text.startswith("<")


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.mark.models
@pytest.mark.parametrize(
    "path", [path for path in real_files() if path.name.startswith("qwen2.5")], ids=lambda p: p.stem
)
def test_a_real_template_takes_tools(path: Path) -> None:
    tokenizer = tokenizer_from_gguf(GGUFFile(path))
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Köln?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    text = tokenizer.decode(tokenizer.chat(messages, tools=[WEATHER]), skip_special=False)
    assert json.dumps(WEATHER) in text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}' in text
    assert "<tool_response>\nsunny\n</tool_response>" in text
    assert "Weather in Köln?<|im_end|>" in text
    assert text.endswith("<|im_start|>assistant\n")
    assert text.count("<|im_start|>system") == 1
    # Ids of special tokens, not their letters.
    start = tokenizer.core.token_to_id("<|im_start|>")
    assert tokenizer.chat(messages, tools=[WEATHER]).count(start) == text.count("<|im_start|>")


@pytest.mark.models
@pytest.mark.skipif(not real_files(), reason="no $PACELINE_MODELS")
def test_the_real_files_begin_and_end_as_llama_cpp_does() -> None:
    expected = {"gemma-3": ((2,), {1, 106}), "qwen2.5": ((), {151645, 151643})}
    found = 0
    for path in real_files():
        tokenizer = tokenizer_from_gguf(GGUFFile(path))
        for name, (begin, ends) in expected.items():
            if path.name.startswith(name):
                found += 1
                assert tokenizer.around == (begin, ())
                assert ends <= set(tokenizer.eos_token_ids)
    assert found


def test_words_of_qwen_3_5_are_the_library_s() -> None:
    """Its files say "qwen35": letters take their marks along."""
    library = pytest.importorskip("transformers.models.qwen3_5.tokenization_qwen3_5")
    assert module._PATTERNS["qwen35"] == (library.PRETOKENIZE_REGEX,)
    assert module._PATTERNS["qwen2"] != module._PATTERNS["qwen35"]

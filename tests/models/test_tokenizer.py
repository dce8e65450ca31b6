"""Tokenizers built from model files agree with each other and with what built them."""

from __future__ import annotations

import json
from pathlib import Path
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
    assert from_gguf.eos_token_ids == from_directory.eos_token_ids == (2,)
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


def test_an_unwritable_cache_only_costs_time(
    gguf_file: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    assert tokenizer_from_gguf(gguf_file).encode("the")


def test_the_tokenizer_s_own_end_token_is_added(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    assert tokenizer_from_directory(directory, (0,)).eos_token_ids == (0, 2)


def test_the_template_may_stand_in_a_file_or_a_list(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", tiny_config())
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = [{"name": "default", "template": "a"}, {"name": "b", "template": "b"}]
    path.write_text(json.dumps(config))
    assert tokenizer_from_directory(directory, ()).chat_template == "a"
    (directory / "chat_template.jinja").write_text("c")
    assert tokenizer_from_directory(directory, ()).chat_template == "c"


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
    return SimpleNamespace(metadata=metadata, path=Path("x.gguf"), fingerprint="x")


def byte_level(pre: str) -> Tokenizer:
    """A byte-level tokenizer whose merges join digits and spaces, so that splits show."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["1 2", "12 3", "123 4", "Ġ a", "a a", "' s"]
    tokens = [*alphabet, *(pair.replace(" ", "") for pair in merges), "<bos>"]
    return tokenizer_from_gguf(
        gguf_like(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": pre,
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 1) + [3]),
                "tokenizer.ggml.merges": merges,
                "tokenizer.ggml.bos_token_id": len(tokens) - 1,
            }
        )
    )


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("gpt-2", ["1234"]),
        ("default", ["1234"]),
    ],
)
def test_each_pre_tokenizer_splits_digits_its_own_way(
    pre: str, digits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_cached", module._build)
    tokenizer = byte_level(pre)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == digits
    assert [tokenizer.decode([i]) for i in tokenizer.encode("b's aa")][:2] == ["b", "'s"]
    starts_with_bos = tokenizer.encode("b", special=True)[0] == tokenizer.vocab_size - 1
    assert starts_with_bos == (pre == "llama-bpe")


def test_qwen_composes_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cached", module._build)
    tokenizer = byte_level("qwen2")
    assert tokenizer.decode(tokenizer.encode("e\N{COMBINING ACUTE ACCENT}")) == "é"


def test_sentencepiece_vocabularies_merge_by_score_and_fall_back_to_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_cached", module._build)
    pieces = ["\u2581", "a", "b", "c", "ab", "bc", "\u2581a", "\u2581ab"]
    scores = [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    tokenizer = tokenizer_from_gguf(
        gguf_like(
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.scores": np.array([0.0] * 259 + scores),
                "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces)),
                "tokenizer.ggml.bos_token_id": 1,
                "tokenizer.ggml.eos_token_id": 2,
            }
        )
    )

    def split(text: str) -> list[str]:
        return [tokens[i] for i in tokenizer.encode(text)]

    assert split("ab") == ["\u2581ab"]  # the space in front comes with the model
    assert split("abc") == ["\u2581a", "bc"]  # "bc" has the best score
    assert split("é") == ["\u2581", "<0xC3>", "<0xA9>"]
    for text in ("ab abc  é \N{GRINNING FACE}", " a"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a", special=True)[0] == 1


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.model": "gpt2"}, "incomplete"),
        (
            {
                "tokenizer.ggml.tokens": ["a"],
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "odd",
            },
            "odd",
        ),
    ],
)
def test_unsupported_tokenizers_are_refused(metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=f"{named}.*Hugging Face directory"):
        tokenizer_from_gguf(gguf_like(metadata))

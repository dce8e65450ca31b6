"""`paceline index`: from a file to an index that a drafter opens; every mistake in one line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.methods.datastore import command as command_index
from paceline.methods.datastore.drafter import SuffixArray
from paceline.models import source
from paceline.models.text import Tokenizer

VOCABULARY = 320
TEXT = "Bees visit flowers.\n\n  Pollen sticks to bees,\r\nand bees carry it.\n" * 5


@pytest.fixture(autouse=True)
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Tokenizer:
    """Stands for the tokenizer of every model."""
    known = Tokenizer(tiny_tokenizer(VOCABULARY))
    monkeypatch.setattr(
        source, "resolve", lambda *_, **__: SimpleNamespace(tokenizer=lambda: known)
    )
    return known


def test_a_text_becomes_an_index(command: Command, tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "text").write_text(TEXT, newline="")
    outcome = command("index", str(tmp_path / "text"), "--out", str(tmp_path / "out"))
    assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'out'}\n")
    index = SuffixArray(tmp_path / "out", tokenizer.fingerprint)
    assert index.tokens.tolist() == tokenizer.encode(TEXT)
    assert index.manifest.vocab_size == tokenizer.vocab_size
    assert f"{len(index.tokens)} tokens" in outcome.err


def test_json_says_what_was_made(command: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 3, 1, 2]))
    outcome = command("index", str(tmp_path / "ids.npy"), "--out", str(tmp_path / "out"), "--json")
    assert outcome.code == 0
    said = json.loads(outcome.out)
    assert set(said) == {"path", "tokens", "bytes", "seconds"}
    assert said["tokens"] == 5
    assert said["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert SuffixArray(tmp_path / "out").tokens.tolist() == [1, 2, 3, 1, 2]


@pytest.mark.parametrize("piece", [1, 7, 30, 1 << 18])
def test_a_text_read_in_pieces_has_the_same_tokens(
    piece: int,
    tmp_path: Path,
    tokenizer: Tokenizer,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_index, "_PIECE", piece)
    (tmp_path / "text").write_text(TEXT, newline="")
    assert command("index", str(tmp_path / "text"), "--out", str(tmp_path / "out")).code == 0
    assert SuffixArray(tmp_path / "out").tokens.tolist() == tokenizer.encode(TEXT)


def test_an_earlier_index_is_replaced(command: Command, tmp_path: Path) -> None:
    for ids in ([1, 2], [3]):
        np.save(tmp_path / "ids.npy", np.array(ids))
        assert command("index", str(tmp_path / "ids.npy"), "--out", str(tmp_path / "o")).code == 0
    assert SuffixArray(tmp_path / "o").tokens.tolist() == [3]


def write(path: Path, content: object) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, np.array(content), allow_pickle=True)


MISTAKES = {
    "empty text": ("text", b"", "text is empty"),
    "not UTF-8": ("text", b"caf\xe9 au lait", "not UTF-8 at byte 3"),
    "no file": ("absent", None, "absent is no file"),
    "no array": ("ids.npy", b"hello", "ids.npy is no NumPy file"),
    "pickle": ("ids.npy", [None, 1], "ids.npy is no NumPy file"),
    "floats": ("ids.npy", [0.5], "no token ids"),
    "table": ("ids.npy", [[1, 2]], "no token ids"),
    "empty array": ("ids.npy", np.zeros(0, int), "0 tokens"),
    "foreign ids": ("ids.npy", [1, VOCABULARY], "outside of 0 to"),
    "negative ids": ("ids.npy", [1, -1], "-1, which is no token id"),
    "huge ids": ("ids.npy", [2**40], "which is no token id"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_in_one_line(mistake: str, command: Command, tmp_path: Path) -> None:
    name, content, says = MISTAKES[mistake]
    write(tmp_path / name, content)
    outcome = command("index", str(tmp_path / name), "--out", str(tmp_path / "out"))
    assert one_line(outcome)
    assert says in outcome.err
    assert outcome.out == ""
    assert not (tmp_path / "out").exists()


def test_bytes_that_are_not_utf8_are_counted_across_pieces(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_index, "_PIECE", 4)
    (tmp_path / "text").write_bytes(b"hello\nworld\n\xff\n")
    outcome = command("index", str(tmp_path / "text"), "--out", str(tmp_path / "out"))
    assert "not UTF-8 at byte 12" in outcome.err


def test_a_directory_that_is_no_index_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    outcome = command("index", str(tmp_path / "text"), "--out", str(tmp_path))
    assert one_line(outcome)
    assert "exists and is no index" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["text"]

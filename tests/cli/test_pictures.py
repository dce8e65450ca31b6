"""`generate` and `chat` with pictures: the texts of Python, and files that cannot be read."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_model import save_directory, tiny_config
from tests.helpers.tiny_vision import save_mmproj, talking

import paceline
from paceline.models.pictures import Picture

SAMPLED = {"temperature": 1.0, "seed": 5}
SIZE = ("--max-new-tokens", "8", "--temperature", "1", "--seed", "5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("smolvlm")
    talking("smolvlm", made)
    for seed in range(2):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(made / f"{seed}.png")
    return made


def expected(folder: Path, *files: str, system: str = "") -> str:
    engine = paceline.load(str(folder), runtime="cpu", drafter="none")
    parts = [{"type": "image", "image": Picture.open(folder / each)} for each in files]
    said = [{"role": "system", "content": system}] if system else []
    said.append({"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]})  # type: ignore[dict-item]
    return engine.generate(said, **SAMPLED, max_new_tokens=8).text


def test_generate_shows_pictures(command: Command, folder: Path) -> None:
    images = [arg for each in ("0.png", "1.png") for arg in ("--image", str(folder / each))]
    size = ("--model", str(folder), *SIZE, "--json", "--system", "Look.")
    outcome = command("generate", "what is it?", *images, *size)
    text = json.loads(outcome.out)["text"]
    assert text == expected(folder, "0.png", "1.png", system="Look.")
    assert text != expected(folder, "1.png", "0.png", system="Look.")


def test_chat_shows_pictures(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ("--model", str(folder), *SIZE)
    for lines, options in (
        (f"/image {folder / '0.png'}\nwhat is it?\n", ()),
        ("what is it?\n", ("--image", str(folder / "0.png"))),
        (f"/image {folder / '1.png'}\n/reset\n/image {folder / '0.png'}\nwhat is it?\n", ()),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        outcome = command("chat", *size, *options)
        assert outcome.code == 0
        assert outcome.out == expected(folder, "0.png") + "\n"


def test_files_that_cannot_be_read_are_named(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, model = str(folder / "none.png"), ("--model", str(folder))
    for arguments in (("generate", "a", "--image", missing), ("chat", "--image", missing)):
        outcome = command(*arguments, *model)
        assert outcome.code == 2
        assert one_line(outcome)
        assert "none.png: No such file" in outcome.err
    outcome = command("generate", "a", "--image", str(folder / "config.json"), *model)
    assert one_line(outcome)
    assert "config.json is no PNG, JPEG or WebP file" in outcome.err
    outcome = command("generate", "a", "--raw", "--image", str(folder / "0.png"), *model)
    assert one_line(outcome)
    assert "--raw does not go with --image" in outcome.err
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"/image {missing}\n"))
    assert "No such file" in command("chat", *model).err


def test_doctor_tells_what_an_mmproj_reads(folder: Path, tmp_path: Path, command: Command) -> None:
    file = save_mmproj(folder, tmp_path / "mmproj.gguf")
    arguments = ("doctor", "--model", str(folder), "--mmproj")
    found = json.loads(command(*arguments, str(file), "--json").out)["pictures"]
    assert found.pop("picture_ms") > 0
    assert found == {
        **{"file": str(file), "model": folder.name, "tower": "siglip", "layers": 3, "width": 96},
        **{"projector": "idefics3", "pixels": 32, "rows": 4, "precision": "file"},
    }
    text = command(*arguments, str(file)).out
    assert f"{file} fits {folder.name}" in text
    assert "32 pixels a side, 4 rows" in text
    other = save_mmproj(folder, tmp_path / "other.gguf", projection_dim=96)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:-5000])
    blind = save_directory(tmp_path / "blind", tiny_config())
    for model, wrong, match in (
        (folder, other, "rows of width 96"),
        (folder, damaged, "damaged"),
        (folder, tmp_path / "none.gguf", "none.gguf"),
        (blind, file, "special token"),
    ):
        outcome = command("doctor", "--model", str(model), "--mmproj", str(wrong), "--json")
        assert one_line(outcome)
        assert match in outcome.err
    outcome = command(*arguments, str(file), "--quick")
    assert one_line(outcome)
    assert "--mmproj" in outcome.err

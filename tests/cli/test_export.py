"""`export` from files to a folder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Command, one_line
from tests.lab.export import drafters

from paceline.models.source import DirectorySource


@pytest.fixture
def target(tmp_path: Path) -> DirectorySource:
    return drafters.target(tmp_path / "target")


@pytest.fixture
def weights(tmp_path: Path, target: DirectorySource) -> Path:
    net = drafters.network("eagle3", target)
    return drafters.save(tmp_path / "mine.safetensors", net, target.fingerprint)


def test_a_network_becomes_a_folder_and_vllms_option_is_told(
    command: Command, tmp_path: Path, weights: Path, target: DirectorySource
) -> None:
    out = tmp_path / "out"
    arguments = ("export", str(weights), "--to", "vllm", "--model", str(target.path))
    done = command(*arguments, "--out", str(out))
    assert done.code == 0, done.err
    assert f"{out}: eagle3, 15 tensors" in done.out
    option = done.out.split("--speculative-config ")[1].strip().strip("'")
    assert json.loads(option) == {
        "method": "eagle3",
        "model": str(out),
        "num_speculative_tokens": 3,
    }
    again = command(*arguments, "--out", str(out))
    assert one_line(again)
    assert "not empty" in again.err
    forced = command(*arguments, "--out", str(out), "--force", "--json")
    assert forced.code == 0, forced.err
    report = json.loads(forced.out)
    assert report["speculative_config"] == json.loads(option)
    assert report["tensors"]["d2t"] == [200]
    assert report["bytes"] < (out / "model.safetensors").stat().st_size


def test_a_draft_model_becomes_a_hugging_face_directory(
    command: Command, tmp_path: Path, target: DirectorySource
) -> None:
    out = tmp_path / "out"
    small = drafters.target(tmp_path / "small", "llama", layers=1)
    done = command("export", str(small.path), "--model", str(target.path), "--out", str(out))
    assert done.code == 0, done.err
    assert '"method": "draft_model"' in done.out
    assert DirectorySource(out).config == small.config


@pytest.mark.parametrize(
    ("drafter", "options", "message"),
    [
        ("nowhere.safetensors", (), "there is no file nowhere.safetensors"),
        ("nowhere", (), "unknown model 'nowhere'"),
        ("{weights}", ("--to", "sglang"), "--to sglang is unknown: use vllm"),
        ("{weights}", ("--model", "{other}"), "was trained for tiny, and not for other"),
        ("{junk}", (), "holds no drafter network, or is damaged"),
    ],
)
def test_bad_input_is_named_in_one_line(
    command: Command,
    tmp_path: Path,
    weights: Path,
    target: DirectorySource,
    drafter: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "junk.safetensors").write_bytes(b"no tensors")
    drafters.target(tmp_path / "other", "llama")
    names = {"weights": weights, "other": tmp_path / "other", "junk": tmp_path / "junk.safetensors"}
    arguments = [each.format(**names) for each in (drafter, "--model", str(target.path), *options)]
    done = command("export", *arguments, "--out", str(tmp_path / "out"))
    assert one_line(done)
    assert message in done.err
    assert not (tmp_path / "out").exists()

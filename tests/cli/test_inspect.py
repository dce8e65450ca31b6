"""`paceline inspect` names what it is given, and finds how a head is wired."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.lab.export import drafters
from tests.networks.heads import random_head, write

pytest.importorskip("torch")

from paceline.cli.app import run
from paceline.core.target import Rows
from paceline.lab.measure import wirings
from paceline.models.source import DirectorySource
from paceline.networks.published import open_head
from paceline.registry.loading import load_model

TOKEN = 7


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return drafters.target(tmp_path_factory.mktemp("target"), "llama")


def test_says_what_a_head_is_and_how_it_drafts(
    tmp_path: Path, source: DirectorySource, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(random_head(source.config, boundaries=(1, 4, 6)), "SafeAILab", tmp_path / "head")
    assert run(["inspect", str(path), "--model", str(source.path), "--tokens", "24", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "published EAGLE-3 head"
    assert told["layout"] == "SafeAILab"
    assert told["vocabulary"] == "drafts 100 of 320 tokens"
    assert told["in_doubt"] == ["norm_output", "boundaries"]
    begins = sorted(each.split(":", 1)[0].rsplit(", b", 1)[0] for each in told["wirings"])
    assert len(begins) == 4
    assert any("boundaries 2, 5, 7: foresees" in each for each in told["wirings"])


@pytest.mark.parametrize("what", ["model", "weights"])
def test_says_what_other_files_are(
    tmp_path: Path, source: DirectorySource, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = source.path
    if what == "weights":
        path = drafters.save(tmp_path / "w.safetensors", drafters.network("eagle3", source), "x")
    assert run(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    wanted = {"model": "model of family llama", "weights": "weights of paceline's 'eagle3'"}
    assert wanted[what] in said
    assert run(["inspect", str(path), "--model", str(source.path)]) == 2
    assert "is no published drafter" in capsys.readouterr().err


def test_finds_the_wiring_of_a_head(
    tmp_path: Path, source: DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that says boundary 7, and foresees a text of one token from boundary 8."""
    config, text = source.config, [TOKEN] * 24
    loaded = load_model(model=str(source.path), precision="fp32")
    places = loaded.target.read_boundaries([7, 8])  # type: ignore[attr-defined]

    def states(*_: object) -> tuple[int, list[int], np.ndarray]:
        rows = Rows.draft(loaded.target.open(), text[:-1], features=True)
        [output] = loaded.target.forward([rows])
        assert output.features is not None
        return 4, text, output.features.copy()

    parts = states()[2].reshape(len(text) - 1, -1, config.hidden_size)[:, places].mean(axis=0)
    one, other = parts / np.linalg.norm(parts, axis=1, keepdims=True)
    made = random_head(config, parts=1, drafted=config.vocab_size, boundaries=(7,))
    tensors = {name: each * (each.ndim == 1) for name, each in made.tensors.items()}
    tensors["fc.weight"] = np.eye(config.hidden_size, dtype=np.float32)
    tensors["norm.weight"] = np.ones(config.hidden_size, np.float32)
    same = float(one @ other)
    tensors["lm_head.weight"][TOKEN] = other - one * (same + 0.3 * (1 - same * same))
    path = write(replace(made, tensors=tensors), "speculators", tmp_path / "head")
    opened = open_head(path)
    assert opened is not None
    monkeypatch.setattr(wirings, "_text", states)
    best, *others = wirings.foreseen(loaded, opened, 24)
    assert (best.options, best.boundaries, best.tokens) == ("shift=1", (8,), 4.0)
    assert {each.options: each.tokens for each in others if each.boundaries == (7,)}[""] == 0.0

"""Commands that train on a drafter's own words, on a tiny model from its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.helpers.tiny_model import save_directory, tiny_config

from paceline.cli import train_heads
from paceline.cli.app import run
from paceline.cli.options import spread_options
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.stopping_head import load_acceptance_head
from paceline.drafters.network.weights import digest_of
from paceline.drafters.resources import Resources
from paceline.errors import InvalidOption
from paceline.lab.training.data import Shards, Text
from paceline.methods.networks.hydra import HydraDrafter
from paceline.networks.weights import load_network
from paceline.registry import loading


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and a drafter trained on half of its own words."""
    folder = tmp_path_factory.mktemp("place")
    model = save_directory(folder / "model", tiny_config(layers=3))
    settings = {"model": loading.resolve(str(model)).fingerprint, "prompts": "counting"}
    for name, more in (("data", 5), ("other", 7)):
        (folder / name).mkdir()
        texts = [Text(i, (np.arange(16) + more * i) % 300, 3) for i in range(42)]
        Shards(folder / name, settings).write(0, texts)
    assert run(train(folder, "--on-policy", "0.5")) == 0
    return folder


def train(folder: Path, *more: str) -> list[str]:
    files = ["--data", str(folder / "data"), "--out", str(folder / "hydra.safetensors")]
    sizes = ["--tokens", "600", "--batch-tokens", "128", "--vocabulary", "200"]
    where = ["--model", str(folder / "model"), "--runtime", "torch"]
    return ["train", "drafter", "hydra", *files, *sizes, *where, *more]


def test_a_drafter_is_trained_on_its_own_words(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = load_network(place / "hydra.safetensors").metadata
    assert "--on-policy 0.5" in metadata["command"]
    card = json.loads((place / "hydra.json").read_text())
    assert card["settings"]["on_policy"] == 0.5
    assert run(train(place, "--on-policy", "0.5", "--loss", "cross-entropy")) != 0
    assert "loss cross-entropy learns from what the target wrote" in capsys.readouterr().err


def test_cards_tell_texts_of_the_same_prompts_apart(place: Path, tmp_path: Path) -> None:
    def digest(data: str, out: str) -> str:
        words = ["--data", str(place / data), "--out", str(tmp_path / f"{out}.safetensors")]
        fast = ["--tokens", "128", "--batch-tokens", "128", "--vocabulary", "200"]
        where = ["--model", str(place / "model"), "--runtime", "torch"]
        assert run(["train", "drafter", "medusa", *words, *fast, *where]) == 0
        return str(json.loads((tmp_path / f"{out}.json").read_text())["data"]["digest"])

    assert digest("data", "one") == digest("data", "same")
    assert digest("data", "one") != digest("other", "two")


def test_a_head_is_trained_and_decodes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = place / "hydra.safetensors"
    where = {"data": place / "data", "model": str(place / "model"), "runtime": "torch"}
    acceptance_head = spread_options(train_heads.acceptance_head)
    acceptance_head(weights, **where, tokens=600, batch_tokens=128, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    head = place / "hydra.acceptance.safetensors"
    assert figures["head"] == str(head)
    assert figures["held_out"]["tokens"] > 0
    assert "acceptance-head" in load_acceptance_head(head, digest_of(weights)).metadata["command"]
    loaded = loading.load_model(str(place / "model"), runtime="torch")
    options = {"weights": str(weights), "head": str(head)}
    context = DrafterContext(Resources(loaded), options=options)
    assert HydraDrafter.create(context)
    with pytest.raises(InvalidOption, match="would take the place of"):
        acceptance_head(weights, out=weights, **where)

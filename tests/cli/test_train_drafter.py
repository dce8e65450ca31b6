"""`train drafter` on a tiny model: two stages, and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_model import save_directory, tiny_config
from tests.helpers.training_commands import written

from paceline.lab.training import data as data_module
from paceline.lab.training.batches import FeatureSource
from paceline.lab.training.data import Shards, Text
from paceline.networks.weights import load_network
from paceline.registry.loading import load_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("model"), tiny_config(layers=3))


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [Text(i, (np.arange(16) + 5 * i) % 300, 3) for i in range(42)]
    return written(tmp_path_factory.mktemp("data"), model, texts)


@pytest.fixture
def train(command: Command, model: Path, data: Path):
    def call(network: str, out: Path, *more: str):
        sizes = ("--tokens", "600", "--batch-tokens", "128", "--training-precision", "fp32")
        where = ("--data", str(data), "--out", str(out), "--model", str(model))
        given = ("--runtime", "torch", "--vocabulary", "200", "--json", *more)
        return command("train", "drafter", network, *where, *sizes, *given)

    return call


def test_what_the_target_saw_while_it_wrote_is_what_reading_its_texts_gives(
    command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "SHARD", 6)  # not 256 texts
    prompts, kept = tmp_path / "prompts.jsonl", tmp_path / "kept"
    prompts.write_text('{"prompt": "one two"}\n{"prompt": "three"}\n')
    where = ("--out", str(tmp_path / "data"), "--model", str(model), "--keep-features", str(kept))
    sizes = ("--texts", "2", "--new-tokens", "6", "--self-written", "0.5", "--runtime", "torch")
    done = command("train", "data", str(prompts), *where, *sizes)
    assert done.code == 0, done.err
    loaded = load_model(
        str(model),
        runtime="torch",
    )
    texts = Shards(tmp_path / "data").read()
    assert 3 <= len(texts) == len(list(kept.iterdir())) <= 6
    for text in texts:
        found = np.load(kept / f"{text.index}.npy").astype(np.float32)
        read = FeatureSource(loaded.target).of(text)
        np.testing.assert_allclose(found[:-1], read[:-1], rtol=2e-3, atol=2e-3)
        assert len(found) == len(text.tokens)
        assert not found[-1].any()


NETWORK = "draft-lm:layers=1,steps=3"


def test_a_language_model_is_trained_in_two_stages(train, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    done = train(NETWORK, first, "--loss", "cross-entropy", "--prompt-weight", "1")
    assert done.code == 0, done.err
    assert json.loads(done.out)["recipe"]["prompt_weight"] == 1
    done = train(NETWORK, second, "--loss", "forward-kl", "--from", str(first))
    assert done.code == 0, done.err
    metadata = load_network(second).metadata
    assert metadata["command"].endswith("--from WEIGHTS")
    assert "--loss cross-entropy" in metadata["from_command"]
    assert "--prompt-weight 1.0" in metadata["from_command"]
    assert metadata["from_tokens"] == load_network(first).metadata["tokens"]
    third = tmp_path / "third.safetensors"
    assert train(NETWORK, third, "--from", str(second)).code == 0
    assert load_network(third).metadata["from_from_command"] == metadata["from_command"]


def test_a_network_starts_from_layers_of_another(train, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    assert train("hydra:steps=2", first).code == 0
    done = train("block-parallel:width=2", second, "--from", str(first))
    assert done.code == 0, done.err
    shapes = load_network(second).network.shapes()
    theirs = load_network(first).network.shapes()
    fitting = sum(theirs.get(name) == shape for name, shape in shapes.items())
    assert f"{fitting} of {len(shapes)} tensors are those of {first}" in done.err
    assert "hydra:steps=2" in load_network(second).metadata["from_command"]


def test_a_block_of_masks_is_trained(train, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    done = train("dflash:width=2,layers=1", out)
    assert done.code == 0, done.err
    root = load_network(out).parameters["root"]
    assert abs(root[0] - 1).max() < 0.1  # begun as published ones are
    assert abs(root[1:]).max() < 0.1


def test_weights_that_do_not_fit_are_named(train, tmp_path: Path, model: Path) -> None:
    first, out = tmp_path / "first.safetensors", tmp_path / "out.safetensors"
    assert train(NETWORK, first, "--loss", "cross-entropy").code == 0
    for network, weights, message in (
        (NETWORK, tmp_path / "gone", "there is no file"),
        (NETWORK, model / "model.safetensors", "holds no drafter network"),
        ("draft-lm:layers=2", first, "holds network 'draft-lm' with settings"),
        ("medusa", first, "holds network 'draft-lm'"),
    ):
        done = train(network, out, "--from", str(weights))
        assert one_line(done), done.err
        assert message in done.err
    done = train(NETWORK, first, "--from", str(first))
    assert one_line(done)
    assert "are both" in done.err
    done = train("kangaroo:exit=3", out)
    assert one_line(done)
    assert "must be 1 to 2, not 3" in done.err

"""`train head-preview` on a tiny model: what it writes and says, and what does not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_model import save_directory, tiny_config
from tests.helpers.training_commands import written

from paceline.lab.training.data import Text
from paceline.models.source import resolve
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, load_network, save_network

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("model"), CONFIG)


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [Text(i, (np.arange(16) + 5 * i) % 300, 3) for i in range(82)]
    return written(tmp_path_factory.mktemp("data"), model, texts)


@pytest.fixture
def weights(model: Path, tmp_path: Path) -> Path:
    network, rng = build("hydra", CONFIG, {"steps": 3}), np.random.default_rng(0)
    parameters = {
        name: rng.normal(len(shape) == 1, 0.3, shape).astype(np.float32)
        for name, shape in network.shapes().items()
    }
    metadata = {"model": resolve(str(model)).fingerprint, "command": "by chance"}
    path = tmp_path / "hydra.safetensors"
    save_network(path, Trained(network, parameters, np.arange(200), metadata))
    return path


@pytest.fixture
def head_preview(command: Command, model: Path, data: Path):
    def call(weights: Path, *more: str):
        where = ("--data", str(data), "--model", str(model), "--runtime", "torch")
        return command("train", "head-preview", str(weights), *where, *more)

    return call


def test_a_screen_joins_its_weights(
    head_preview, command: Command, weights: Path, data: Path
) -> None:
    done = head_preview(weights, "--rank", "64", "--texts", "20", "--json")  # of full rank
    assert done.code == 0, done.err
    report = json.loads(done.out)
    held_out = report["held_out"]
    assert held_out["agreement"] == 1
    assert held_out["block_efficiency"] == held_out["block_efficiency_without"]
    assert (report["texts"], held_out["texts"]) == (20, 2)
    before, after = load_network(weights), load_network(Path(report["weights"]))
    assert report["weights"] == str(weights.with_name("hydra.head-preview.safetensors"))
    assert before.head_preview is None
    assert after.head_preview is not None
    assert after.head_preview.up.shape == (200, 64)
    assert all((after.parameters[name] == each).all() for name, each in before.parameters.items())
    assert after.metadata["command"] == "by chance"
    assert "--rank 64 --texts 20" in after.metadata["screen_command"]
    assert json.loads(after.metadata["screen_data"])["prompts"] == "counting"


def test_the_report_for_people_says_what_is_lost(
    head_preview, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "other.safetensors"
    done = head_preview(weights, "--rank", "2", "--out", str(out))
    assert done.code == 0, done.err
    assert done.out.startswith(f"{out}: rank 2; held out: the whole head's token in ")
    assert "without)" in done.out
    assert "100.0%" not in done.out


def test_weights_that_are_trained_on_lose_their_screen(
    head_preview, command: Command, weights: Path, model: Path, data: Path, tmp_path: Path
) -> None:
    """The hidden states that it was fitted to are no more."""
    assert head_preview(weights, "--rank", "4").code == 0
    previewed, out = (
        weights.with_name("hydra.head-preview.safetensors"),
        tmp_path / "on.safetensors",
    )
    done = command(
        *f"train drafter hydra:steps=3 --from {previewed} --out {out} --data {data}".split(),
        *f"--model {model} --runtime torch --tokens 300 --batch-tokens 128".split(),
        *["--vocabulary", "200", "--training-precision", "fp32"],
    )
    assert done.code == 0, done.err
    after = load_network(out)
    assert after.head_preview is None
    assert not any("screen" in key for key in after.metadata)


def test_what_does_not_fit_is_named(head_preview, weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    trained = load_network(weights)
    save_network(other, Trained(trained.network, trained.parameters, trained.draft_ids, {}))
    for at, more, message in (
        (weights, ("--rank", "65"), "rank must be 1 to 64, not 65"),
        (weights, ("--rank", "0"), "rank must be 1 to 64, not 0"),
        (weights, ("--texts", "0"), "--texts must be 1 or more, not 0"),
        (tmp_path / "gone", (), "there is no file"),
        (other, ("--rank", "8"), "is of another model"),
        (weights, ("--rank", "8", "--out", str(tmp_path / "no" / "a")), "cannot write"),
    ):
        done = head_preview(at, *more)
        assert one_line(done), done.err
        assert message in done.err
    assert not list(tmp_path.glob("*.head-preview.*"))

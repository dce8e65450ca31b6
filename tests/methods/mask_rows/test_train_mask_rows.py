"""`train mask-rows` on a tiny model: rows that learn and load, Ctrl-C, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Command, one_line
from tests.helpers import tiny_model as tiny
from tests.helpers.training_commands import stopped_and_taken_up, written

import paceline
from paceline.lab.training.data import Text
from paceline.models.source import resolve
from paceline.networks.mask_rows import PARTS, MaskRows, load_mask_rows


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save_directory(tmp_path / "model", tiny.tiny_config())


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    rng = np.random.default_rng(0)
    texts = [Text(i, rng.integers(3, 320, 16), 5) for i in range(50)]
    return written(tmp_path / "data", model, texts)


def arguments(model: Path, data: Path, out: Path, *more: str) -> tuple[str, ...]:
    sizes = ("--steps", "4", "--chains", "4", "--batch-tokens", "64", "--rank", "8")
    precision = ("--training-precision", "fp32")
    names = ("--model", str(model), "--data", str(data), "--out", str(out))
    return ("train", "mask-rows", *names, *precision, *sizes, *more)


def rows(path: Path, model: Path) -> MaskRows:
    source = resolve(str(model))
    weights = source.weights()
    names = [f"layers.{i}.{part}" for i in range(source.config.layers) for part in PARTS]
    return load_mask_rows(
        path, source.fingerprint, {name: weights.stored(name).shape for name in names}
    )


def test_rows_learn_and_decode_with_the_models_own_text(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.safetensors"
    done = command(*arguments(model, data, out, "--steps", "40", "--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["finished"] is True
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["drafter"] == "mask-rows"
    losses = [each["training"] for each in card["losses"]]
    assert losses[-1] < losses[0]
    assert all(each.any() for each in rows(out, model).up.values())
    plain = paceline.load(str(model), drafter="none", precision="fp32")
    for sampler in ("tidar", "linear-spec"):
        engine = paceline.load(
            str(model), denoiser=f"rows={out}", sampler=sampler, precision="fp32"
        )
        assert engine.generate("the fox").token_ids == plain.generate("the fox").token_ids


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_rows(
    command: Command, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert command(*arguments(model, data, whole)).code == 0
    first = stopped_and_taken_up(command, monkeypatch, arguments(model, data, parts, "--json"))
    assert json.loads(first.out)["steps"] == 2
    one, other = rows(whole, model), rows(parts, model)
    np.testing.assert_array_equal(one.embedding, other.embedding)
    for name, each in one.up.items():
        np.testing.assert_array_equal(each, other.up[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("rows=nowhere.safetensors", "there is no file nowhere"),
        ("rows=auto", "no mask rows ship for"),
        ("rows", "no mask rows ship for"),
        ("rows=auto,mask=3", "leave that out"),
    ],
)
def test_rows_that_are_not_there_end_in_one_line(
    command: Command, model: Path, options: str, message: str
) -> None:
    done = command("generate", "x", "--model", str(model), "--denoiser", options)
    assert one_line(done)
    assert message in done.err


def test_a_runtime_without_them_says_so(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.safetensors"
    assert command(*arguments(model, data, out)).code == 0
    named = ("--model", str(model), "--denoiser", f"rows={out}", "--runtime", "torch")
    done = command("generate", "x", *named)
    assert one_line(done)
    assert "use cpu" in done.err
    strange = command(*arguments(model, data, tmp_path / "x.safetensors", "--rank", "0"))
    assert one_line(strange)
    assert "rank must be 1 or more" in strange.err

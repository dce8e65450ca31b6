"""`train prompt-tokens` on a tiny model: weights that load, a card, Ctrl-C, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Command, one_line
from tests.helpers import tiny_model as tiny
from tests.helpers.training_commands import stopped_and_taken_up, written

from paceline.lab.training.data import Text
from paceline.methods.ppd.prompt_tokens import load_prompt_tokens
from paceline.models.source import resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save_directory(tmp_path / "model", tiny.tiny_config())


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    rng = np.random.default_rng(0)
    texts = [Text(i, rng.integers(3, 320, 16), 5) for i in range(50)]
    return written(tmp_path / "data", model, texts)


def arguments(model: Path, data: Path, out: Path, *more: str) -> tuple[str, ...]:
    sizes = ("--steps", "4", "--chains", "4", "--batch-tokens", "64")
    precision = ("--training-precision", "fp32")
    names = ("--model", str(model), "--data", str(data), "--out", str(out))
    return ("train", "prompt-tokens", *names, *precision, *sizes, *more)


def test_weights_load_and_a_card_stands_beside_them(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine.safetensors"
    done = command(*arguments(model, data, out, "--json"))
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    found = load_prompt_tokens(out, resolve(str(model)).fingerprint, 64)
    assert found.embeddings.shape == (3, 64)
    assert found.accuracies.tolist() == figures["held_out"]["accuracies"]
    assert found.metadata["command"].startswith(
        "paceline train prompt-tokens --data DATA --steps 4"
    )
    assert figures["finished"] is True
    card = json.loads(out.with_suffix(".json").read_text())
    assert card["drafter"] == "ppd"
    assert card["parameters"] == 192
    assert card["held_out"]["prompts"] == 1
    assert card["losses"][-1]["held_out"] == pytest.approx(figures["held_out"]["loss"])
    assert out.with_suffix(".md").read_text().startswith("# ppd for ")
    assert not out.with_suffix(".checkpoint").exists()
    text = command(*arguments(model, data, out))
    assert text.out.startswith(f"{out}: {figures['tokens']} tokens in ")


def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_weights(
    command: Command, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    assert command(*arguments(model, data, whole)).code == 0
    first = stopped_and_taken_up(command, monkeypatch, arguments(model, data, parts, "--json"))
    assert json.loads(first.out)["steps"] == 2
    fingerprint = resolve(str(model)).fingerprint
    found = [load_prompt_tokens(path, fingerprint, 64).embeddings for path in (whole, parts)]
    np.testing.assert_array_equal(*found)


def test_text_of_another_model_is_refused(
    command: Command, model: Path, data: Path, tmp_path: Path
) -> None:
    other = tiny.save_directory(tmp_path / "other", tiny.tiny_config(), seed=1)
    done = command(*arguments(other, data, tmp_path / "x.safetensors"))
    assert one_line(done)
    assert "was written by another model" in done.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--steps", "0"), "steps must be 1 or more"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--data", "nowhere"), "nowhere holds no training text"),
    ],
)
def test_bad_options_end_in_one_line(
    command: Command, model: Path, data: Path, tmp_path: Path, more: tuple[str, str], message: str
) -> None:
    done = command(*arguments(model, data, tmp_path / "x.safetensors", *more))
    assert one_line(done)
    assert message in done.err

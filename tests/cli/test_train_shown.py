"""`train data` about pictures, and drafters that are shown them: from a file of lines to drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_vision import talking

import paceline
from paceline.cli.app import run
from paceline.lab.training.batches import FeatureSource
from paceline.lab.training.data import Shards
from paceline.models.pictures import Picture
from paceline.registry.options import Options

TEXTS, SIZE = 42, 10


def asked(folder: Path, seed: int) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": Picture.open(folder / f"{seed}.png")}]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what is it?"}]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("smolvlm")
    talking("smolvlm", made)
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(made / f"{seed}.png")
    lines = [{"prompt": "what is it?", "image": f"{seed}.png"} for seed in range(3)]
    lines.append({"prompt": "the quick brown fox"})
    (made / "shown.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return made


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    out = folder / "data"
    options = f"--texts {TEXTS} --new-tokens {SIZE} --self-written 0 --past-end --batch 4".split()
    where = ("--model", str(folder), "--precision", "fp32", "--keep-features", str(out / "kept"))
    arguments = ("train", "data", str(folder / "shown.jsonl"), "--out", str(out))
    assert not run((*arguments, *options, *where))
    return out


def test_texts_have_the_rows_of_their_pictures(folder: Path, written: Path) -> None:
    texts = Shards(written).read()
    engine = paceline.load(str(folder), runtime="cpu", drafter="none", precision="fp32")
    assert engine.looking is not None
    vision = engine.looking.reader.vision
    target: Any = engine.decoder.target
    for text in texts[:4]:
        assert len(text.tokens) - text.prompt_length == SIZE  # whatever ended there
        if text.index == 3:
            assert text.picture is None
            continue
        found = engine.generate(asked(folder, text.index), max_new_tokens=SIZE, ignore_eos=True)
        assert list(found.token_ids) == text.tokens[text.prompt_length :].tolist()
        *_, rows = engine.looking.reader.reading(
            Picture.open(folder / f"{text.index}.png").patches(vision)
        )
        assert text.picture is not None
        np.testing.assert_array_equal(text.picture, rows.astype(np.float16))
        ids = engine.tokenizer.chat(asked(folder, text.index))
        assert ids == text.tokens[: text.prompt_length].tolist()
        row = engine.tokenizer.special_ids["<image>"]
        assert text.begin == ids.index(row)
        kept = FeatureSource(target, written / "kept").of(text)
        again = FeatureSource(target).of(text)
        np.testing.assert_allclose(kept[:-1], again[:-1], rtol=0.02, atol=0.02)
        other = texts[(text.index + 1) % 3].picture
        text.picture[:] = other  # type: ignore[call-overload]
        blind = FeatureSource(target).of(text)
        assert np.abs(blind - again)[text.prompt_length :].max() > 0.1
        assert not any(run.users for run in target.rows._runs.values())


@pytest.mark.parametrize(
    "network", ["msd", "vispec", "specvlm:keep=2,", "eagle3", "imitation:exit=1"]
)
def test_what_is_trained_drafts_and_no_text_changes(
    command: Command, folder: Path, written: Path, tmp_path: Path, network: str
) -> None:
    name, out = network.partition(":")[0], tmp_path / "out.safetensors"
    sizes = ("--tokens", "2000", "--batch-tokens", "200", "--vocabulary", "200")
    where = ("--data", str(written), "--model", str(folder), "--precision", "fp32")
    if name not in ("eagle3", "imitation"):  # FastVLM's; they read what the target made of rows
        network += ("" if ":" in network else ":") + "picture=4"
    command("train", "drafter", network, *where, *sizes, "--out", str(out))
    options: dict[str, Any] = {"runtime": "cpu", "precision": "fp32"}
    plain = paceline.load(str(folder), drafter="none", **options)
    drafts = f"{name}:weights={out}"
    engine = paceline.load(str(folder), drafter=drafts, nodes=5, depth=5, **options)
    for params in ({}, {"temperature": 1.0, "seed": 3}):
        for seed in range(3):
            given: Any = {**params, "max_new_tokens": 16, "ignore_eos": True}
            found = engine.generate(asked(folder, seed), **given)
            assert found.token_ids == plain.generate(asked(folder, seed), **given).token_ids
            assert found.stats.drafted_tokens
            assert not found.stats.drafter_errors


def test_a_picture_for_a_model_that_sees_none(
    command: Command, loads: list[Options], folder: Path, tmp_path: Path
) -> None:
    given = ("--out", str(tmp_path / "data"), "--texts", "1", "--self-written", "0")
    outcome = command("train", "data", str(folder / "shown.jsonl"), *given)
    assert one_line(outcome)
    assert "the model sees none: leave out image" in outcome.err


def test_an_image_that_is_no_name(command: Command, loads: list[Options], tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"prompt": "what is it?", "image": 5}')
    outcome = command("train", "data", str(lines), "--self-written", "0")
    assert one_line(outcome)
    assert "is 5: name a file" in outcome.err

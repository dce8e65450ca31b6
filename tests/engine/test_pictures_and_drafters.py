"""Every drafter of the registry, on a real model with a picture in its prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import pins
from tests.helpers.tiny_vision import seeing

from paceline.drafters.resources import Loaded
from paceline.engine.engine import Completion, Engine
from paceline.errors import InvalidOption
from paceline.models.pictures import Picture
from paceline.models.shown import PictureWords
from paceline.models.vision import PictureReader, vision_of
from paceline.networks import catalogue
from paceline.networks.weights import Trained, load_network, save_network
from paceline.registry import loading, table
from paceline.runtimes.cpu.tower import CpuTower

PLACE = "<repo_name>"  # a special token of SmolLM2 that nothing else uses
EXPRESSIONS = [each for of in (pins.DRAFTERS, pins.FP32) for each in of.values()]
ALONE = [each[0] for each in EXPRESSIONS] + [f"{each}:weights={{{each}}}" for each in pins.NETWORKS]
WITH_A_MODEL = [each[0] for each in pins.DRAFT_MODEL.values()]

OF_OTHER_MODELS = {"assistant", "dflash", "dspark", "mlp-speculator", "mtp"}
"""Heads of published files alone: they run as the other networks do."""
HEARING = {"gad", "gad-ctc", "paraformer"}
"""They read sound, which a model that sees has none of."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> PictureReader:
    """A tower of random numbers that makes rows like embeddings of the default model."""
    folder = tmp_path_factory.mktemp("tower")
    seeing("smolvlm", folder, hidden_size=576)
    found = vision_of(folder, 576)
    assert found is not None
    tower = CpuTower(*found)

    def reading(patches: np.ndarray) -> Iterator[Any]:
        for each in tower.reading(patches):
            yield each if each is None else each * np.float32(0.1 / each.std())

    return PictureReader(found[0], b"random", reading)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def seer(reader: PictureReader) -> Callable[[str], Loaded]:
    def make(precision: str) -> Loaded:
        loaded = replace(pins.model(precision), reader=reader)
        loaded.tokenizer.pictures = PictureWords(PLACE, f"{PLACE}\n", PLACE, reader.vision.rows)
        return loaded

    return make


def messages(seed: int) -> list[dict[str, Any]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    said = {"type": "text", "text": "Repeat this list: red, green, blue, red, green, blue."}
    return [{"role": "user", "content": [{"type": "image", "image": Picture(pixels)}, said]}]


def decoded(engine: Engine, kind: str) -> list[Completion]:
    params = {"max_new_tokens": 10, "ignore_eos": True, **pins.KINDS[kind]}
    if "forced" in engine.config["drafter"]:
        params["forced_tokens"] = {0: 28}
    found: list[Completion] = engine.generate([messages(0), messages(1)], **params)
    return found


def check(loaded: Loaded, drafter: str, **options: Any) -> int:
    """Compare texts with those of no drafter; return how many tokens were drafted."""
    drafted = 0
    for kind in pins.KINDS:
        engine = loading.make_engine(loaded, max_batch=2, drafter=drafter, **options, **pins.SIZES)
        plain = loading.make_engine(loaded, max_batch=2, drafter="none")
        plain.config["drafter"] = engine.config["drafter"]
        found = decoded(engine, kind)
        assert [each.token_ids for each in found] == [
            each.token_ids for each in decoded(plain, kind)
        ]
        assert not sum(each.stats.drafter_errors for each in found)
        drafted += sum(each.stats.drafted_tokens for each in found)
    return drafted


def test_tables_name_every_drafter() -> None:
    named = {each.partition(":")[0] for each in [*ALONE, *WITH_A_MODEL]}
    assert set(table.names("drafter")) - named == OF_OTHER_MODELS | HEARING


@pytest.mark.parametrize("drafter", ALONE)
def test_it_drafts_beside_a_picture(seer: Callable[[str], Loaded], drafter: str) -> None:
    precision = "fp32" if drafter == "quantised" else "file"
    check(seer(precision), pins.filled(drafter))


@pytest.mark.parametrize("drafter", WITH_A_MODEL)
def test_so_do_those_with_a_draft_model(seer: Callable[[str], Loaded], drafter: str) -> None:
    with pins.lasting():
        check(seer("fp32"), drafter, draft_model=pins.MODEL)


@pytest.mark.parametrize(
    ("name", "picture", "option", "says"),
    [
        ("msd", 8, "", "for pictures of 8 rows, and the model's have 4"),
        ("vispec", 8, "", "train drafter vispec:picture=4`"),
        ("msd", 4, ",online=2", "online learns of texts alone"),
    ],
)
def test_weights_for_other_pictures_are_refused(
    seer: Callable[[str], Loaded], tmp_path: Path, name: str, picture: int, option: str, says: str
) -> None:
    trained = load_network(pins.network(name))
    network = catalogue.build(name, pins.model("file").source.config, {"picture": picture})
    numbers = {each: np.ones(shape, np.float32) for each, shape in network.shapes().items()}
    path = tmp_path / "weights.safetensors"
    save_network(path, Trained(network, numbers, trained.draft_ids, trained.metadata))
    with pytest.raises(InvalidOption, match=says):
        loading.make_engine(seer("file"), drafter=f"{name}:weights={path}{option}")


def test_the_picture_matters(seer: Callable[[str], Loaded]) -> None:
    first, second = decoded(loading.make_engine(seer("file"), drafter="none"), "sampled")
    assert first.token_ids != second.token_ids

"""Saved choices: what is written is read, what is not a choice is set aside, "auto" follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli import fakes

from paceline import registry, tuned
from paceline.controllers.cost_model import CostModelController
from paceline.controllers.fixed import Fixed
from paceline.drafters.none import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.errors import InvalidOption, ModelError
from paceline.loading import DEFAULT_DRAFTER, Loaded, make_engine
from paceline.tuned import Choice, Configuration
from paceline.types import Budget

CHOICE = Choice(Configuration("recycling", "fixed", 5, 3), {"why": "it is fast", "rows": [1, 2.5]})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def loaded() -> Loaded:
    return fakes.loaded()


def budget(engine: Any) -> Budget:
    [found] = engine.decoder.controller.budgets([None])
    return found


# The file


def test_a_choice_is_read_as_it_was_written(loaded: Loaded) -> None:
    assert tuned.read(loaded.place) is None
    path = tuned.write(loaded.place, CHOICE)
    assert path == tuned.path_of(loaded.place)
    assert tuned.read(loaded.place) == CHOICE
    other = replace(CHOICE, configuration=Configuration("none"))
    tuned.write(loaded.place, other)
    assert tuned.read(loaded.place) == other
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("field", ["model", "runtime", "device", "precision", "layout", "machine"])
def test_other_places_have_choices_of_their_own(loaded: Loaded, field: str) -> None:
    tuned.write(loaded.place, CHOICE)
    assert tuned.read({**loaded.place, field: "other"}) is None


def test_the_longest_context_does_not_matter() -> None:
    tuned.write(fakes.loaded(600).place, CHOICE)
    assert tuned.read(fakes.loaded(900).place) == CHOICE


def edited(change: Callable[[dict[str, Any]], object], digest: bool) -> Callable[[str], str]:
    """A file whose content was changed; `digest` makes it right again, as another version would."""

    def edit(text: str) -> str:
        content = json.loads(text)
        change(content)
        if digest:
            del content["digest"]
            content["digest"] = tuned._digest(content)
        return json.dumps(content)

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "3",
        lambda text: "null",
        lambda text: "{}",
        lambda text: "[" * 100_000,
        lambda text: '{"digest": 3}',
        lambda text: text.replace('"nodes": 5', '"nodes": -5'),
        lambda text: text.replace('"recycling"', '"recycling:magic=1"'),
        edited(lambda content: content.update(version="0.0.0"), True),
        edited(lambda content: content.update(format=99), True),
        edited(lambda content: content["place"].update(model="other"), True),
        edited(lambda content: content["configuration"].update(drafter="of-a-plugin"), True),
        edited(lambda content: content["configuration"].update(controller="of-a-plugin"), True),
        edited(lambda content: content["configuration"].update(magic=1), True),
        edited(lambda content: content.pop("evidence"), True),
    ],
)
def test_what_is_no_choice_is_set_aside_and_harms_nobody(
    loaded: Loaded, edit: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tuned.write(loaded.place, CHOICE)
    bad = edit(path.read_text())
    path.write_text(bad)
    engine = make_engine(loaded)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: warning: ")
    assert str(path) in line
    assert engine.config["drafter"] == DEFAULT_DRAFTER
    assert engine.config["auto"] == "default"
    assert path.with_name(f"{path.name}.bad").read_text() == bad
    assert not path.exists()
    make_engine(loaded)
    assert capsys.readouterr().err == ""


def test_bytes_that_are_no_text_are_set_aside(loaded: Loaded) -> None:
    path = tuned.write(loaded.place, CHOICE)
    path.write_bytes(b"\xff\xfe\x00")
    assert tuned.read(loaded.place) is None
    assert path.with_name(f"{path.name}.bad").exists()


def test_a_cache_that_cannot_be_written_is_named(
    loaded: Loaded, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    with pytest.raises(ModelError, match="cannot write to"):
        tuned.write(loaded.place, CHOICE)


# Drafter "auto"


def test_auto_is_the_saved_choice(loaded: Loaded) -> None:
    tuned.write(loaded.place, CHOICE)
    engine = make_engine(loaded)
    assert engine.config["auto"] == "tuned"
    assert engine.config["drafter"] == "recycling"
    assert isinstance(engine.decoder.drafter, Recycling)
    assert isinstance(engine.decoder.controller, Fixed)
    assert budget(engine) == Budget(5, 3)


def test_a_named_drafter_is_what_it_says(loaded: Loaded) -> None:
    tuned.write(loaded.place, CHOICE)
    engine = make_engine(loaded, drafter="prompt-lookup")
    assert engine.config["auto"] is None
    assert engine.config["drafter"] == "prompt-lookup"
    assert isinstance(engine.decoder.controller, CostModelController)


@pytest.mark.parametrize(
    ("given", "controller", "wanted"),
    [
        ({"nodes": 2}, "fixed", Budget(2, 2)),
        ({"depth": 4}, "fixed", Budget(4, 4)),
        ({"controller": "fixed:nodes=6,depth=2"}, "fixed:nodes=6,depth=2", Budget(6, 2)),
        ({"controller": "cost-model"}, "cost-model", None),
    ],
)
def test_what_the_caller_gives_comes_before_what_was_tuned(
    loaded: Loaded, given: dict[str, Any], controller: str, wanted: Budget | None
) -> None:
    tuned.write(loaded.place, CHOICE)
    engine = make_engine(loaded, **given)
    assert engine.config["drafter"] == "recycling"
    assert engine.config["controller"] == controller
    assert wanted is None or budget(engine) == wanted


def test_plain_decoding_can_be_the_choice(loaded: Loaded) -> None:
    tuned.write(loaded.place, Choice(Configuration("none"), {}))
    for given in ({}, {"nodes": 4}, {"controller": "cost-model"}):
        engine = make_engine(loaded, **given)
        assert isinstance(engine.decoder.drafter, NoDrafter)
        assert engine.config["auto"] == "tuned"


def test_rules_for_drawn_drafts_do_not_follow_it(loaded: Loaded) -> None:
    tuned.write(loaded.place, CHOICE)
    with pytest.raises(InvalidOption, match=f"drafter '{DEFAULT_DRAFTER}' makes deterministic"):
        make_engine(loaded, verifier="rejection")


TAKE_THE_DEFAULT = [
    name
    for name in registry.names("verifier")
    if None in registry.find("verifier", name).load().accepts and name not in ("judge", "pivot")
]


@pytest.mark.parametrize("verifier", TAKE_THE_DEFAULT)
def test_every_rule_that_takes_the_default_takes_the_choice(loaded: Loaded, verifier: str) -> None:
    for drafter in ("recycling", "suffix-decoding+recycling+cacheback"):
        tuned.write(loaded.place, Choice(Configuration(drafter, "cost-model"), {}))
        assert make_engine(loaded, verifier=verifier).config["auto"] == "tuned"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_choice_changes_no_token(loaded: Loaded, temperature: float) -> None:
    options = {"max_new_tokens": 40, "temperature": temperature, "seed": 3, "ignore_eos": True}
    plain = make_engine(loaded, drafter="none").generate("the quick fox", **options)
    tuned.write(loaded.place, CHOICE)
    found = make_engine(loaded).generate("the quick fox", **options)
    assert found.token_ids == plain.token_ids
    assert found.stats.drafted_tokens > 0

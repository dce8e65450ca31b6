"""Saved choices: what is written is read, what is not a choice is set aside, "auto" follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli import fakes

from paceline.core.types import Budget, SamplingParams, Speculation
from paceline.drafters.base import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.drafters.resources import Loaded
from paceline.errors import InvalidOption, ModelError
from paceline.policy.controller import Fixed
from paceline.policy.cost_model import CostModelController
from paceline.registry import table as registry
from paceline.registry import tuned_choice as tuned
from paceline.registry.assembly import DEFAULT_DRAFTER
from paceline.registry.loading import make_engine
from paceline.registry.tuned_choice import TEMPERATURE_KINDS, Configuration, Kind, TunedChoice

CHOICE = TunedChoice(
    Configuration("recycling", "fixed", 5, 3), {"why": "it is fast", "rows": [1, 2.5]}
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def loaded() -> Loaded:
    return fakes.loaded()


def save(place: dict[str, object], choice: TunedChoice, *kinds: Kind) -> Path:
    """Save a choice for the kinds of decoding that are named, or all."""
    return [tuned.write(place, kind, choice) for kind in kinds or TEMPERATURE_KINDS][-1]


def budget(engine: Any) -> Budget:
    greedy: Any = SimpleNamespace(params=SamplingParams())
    [found] = engine.decoder.controller.budgets([greedy])
    return found


# The file


def test_a_choice_is_read_as_it_was_written(loaded: Loaded) -> None:
    assert tuned.read(loaded.place) == {}
    path = tuned.write(loaded.place, "greedy", CHOICE)
    assert path == tuned.path_of(loaded.place)
    assert tuned.read(loaded.place) == {"greedy": CHOICE}
    other = replace(CHOICE, configuration=Configuration("none"))
    tuned.write(loaded.place, "sampled", other)
    assert tuned.read(loaded.place) == {"greedy": CHOICE, "sampled": other}
    tuned.write(loaded.place, "greedy", other)
    assert tuned.read(loaded.place) == {"greedy": other, "sampled": other}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("field", ["model", "runtime", "device", "precision", "machine"])
def test_other_places_have_choices_of_their_own(loaded: Loaded, field: str) -> None:
    save(loaded.place, CHOICE)
    assert tuned.read({**loaded.place, field: "other"}) == {}


def test_the_longest_context_does_not_matter() -> None:
    save(fakes.loaded(600).place, CHOICE)
    assert tuned.read(fakes.loaded(900).place) == dict.fromkeys(TEMPERATURE_KINDS, CHOICE)


def sampled(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["choices"]["sampled"]["configuration"]
    return found


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
        edited(lambda content: content.update(choices=3), True),
        edited(lambda content: content.update(choices={"greedy": 3}), True),
        edited(lambda content: content.update(format=99), True),
        edited(lambda content: content["place"].update(model="other"), True),
        edited(
            lambda content: content["choices"]["sampled"]["configuration"].update(
                drafter="of-a-plugin"
            ),
            True,
        ),
        edited(
            lambda content: content["choices"]["sampled"]["configuration"].update(
                controller="of-a-plugin"
            ),
            True,
        ),
        edited(
            lambda content: content["choices"]["sampled"]["configuration"].update(magic=1), True
        ),
        edited(lambda content: content["choices"]["greedy"].pop("evidence"), True),
    ],
)
def test_what_is_no_choice_is_set_aside_and_harms_nobody(
    loaded: Loaded, edit: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(loaded.place, CHOICE)
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


def test_a_file_of_the_format_before_is_said_to_be_of_another_version(
    loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    """It held one choice for all kinds of decoding."""
    path = save(loaded.place, CHOICE)

    def before(content: dict[str, Any]) -> None:
        content.update(content.pop("choices")["greedy"])
        content["format"] = 1

    path.write_text(edited(before, True)(path.read_text()))
    assert tuned.read(loaded.place) == {}
    assert "(it was saved by another version): run paceline tune again" in capsys.readouterr().err
    save(loaded.place, CHOICE)
    assert tuned.read(loaded.place) == dict.fromkeys(TEMPERATURE_KINDS, CHOICE)


def test_bytes_that_are_no_text_are_set_aside(loaded: Loaded) -> None:
    path = save(loaded.place, CHOICE)
    path.write_bytes(b"\xff\xfe\x00")
    assert tuned.read(loaded.place) == {}
    assert path.with_name(f"{path.name}.bad").exists()


def test_a_cache_that_cannot_be_written_is_named(
    loaded: Loaded, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")
    with pytest.raises(ModelError, match="cannot write to"):
        save(loaded.place, CHOICE)


# Drafter "auto"


def test_auto_is_the_saved_choice(loaded: Loaded) -> None:
    save(loaded.place, CHOICE)
    engine = make_engine(loaded)
    assert engine.config["auto"] == "tuned"
    assert engine.config["drafter"] == "recycling"
    assert isinstance(engine.decoder.drafter, Recycling)
    assert isinstance(engine.decoder.controller, Fixed)
    assert budget(engine) == Budget(5, 3)


def test_a_named_drafter_is_what_it_says(loaded: Loaded) -> None:
    save(loaded.place, CHOICE)
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
    save(loaded.place, CHOICE)
    engine = make_engine(loaded, **given)
    assert engine.config["drafter"] == "recycling"
    assert engine.config["controller"] == controller
    assert wanted is None or budget(engine) == wanted


def test_plain_decoding_can_be_the_choice(loaded: Loaded) -> None:
    save(loaded.place, TunedChoice(Configuration("none"), {}))
    for given in ({}, {"nodes": 4}, {"controller": "cost-model"}):
        engine = make_engine(loaded, **given)
        assert isinstance(engine.decoder.drafter, NoDrafter)
        assert engine.config["auto"] == "tuned"


def test_rules_for_drawn_drafts_do_not_follow_it(loaded: Loaded) -> None:
    save(loaded.place, CHOICE)
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
        save(loaded.place, TunedChoice(Configuration(drafter, "cost-model"), {}))
        assert make_engine(loaded, verifier=verifier).config["auto"] == "tuned"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_choice_changes_no_token(loaded: Loaded, temperature: float) -> None:
    options = {"max_new_tokens": 40, "temperature": temperature, "seed": 3, "ignore_eos": True}
    plain = make_engine(loaded, drafter="none").generate("the quick fox", **options)
    save(loaded.place, CHOICE)
    found = make_engine(loaded).generate("the quick fox", **options)
    assert found.token_ids == plain.token_ids
    assert found.stats.drafted_tokens > 0


# Kinds of decoding

OTHER = TunedChoice(Configuration("prompt-lookup", "fixed", 2, 2), {})
LOOPS = {"max_new_tokens": 40, "ignore_eos": True, "seed": 3}


def sources(engine: Any, **options: Any) -> set[str | None]:
    """Who proposed the tokens of a text that repeats itself."""
    found: set[str | None] = set()
    for event in engine.events("the quick fox", **{**LOOPS, **options}):
        found.update(event.sources)
    return found - {None}


def test_requests_are_served_by_what_was_tuned_for_their_temperature(loaded: Loaded) -> None:
    save(loaded.place, CHOICE, "greedy")
    save(loaded.place, OTHER, "sampled")
    engine = make_engine(loaded)
    assert engine.config["drafter"] == "recycling (greedy), prompt-lookup (sampled)"
    assert engine.config["controller"] == "fixed"
    assert engine.config["nodes"] == "5 (greedy), 2 (sampled)"
    assert engine.config["auto"] == "tuned"
    assert sources(engine) == {"recycling"}
    assert sources(engine, temperature=0.3) == {"prompt-lookup"}
    assert sources(engine, temperature=0.3, speculation=Speculation(enabled=False)) == set()


def test_a_kind_that_was_not_tuned_takes_the_default(loaded: Loaded) -> None:
    save(loaded.place, CHOICE, "greedy")
    engine = make_engine(loaded, depth=3)  # by measured costs, drafts might not pay
    assert engine.config["drafter"] == f"recycling (greedy), {DEFAULT_DRAFTER} (sampled)"
    assert engine.config["auto"] == "tuned"
    assert sources(engine, temperature=0.3) == {DEFAULT_DRAFTER}


def test_kinds_with_one_choice_share_one_drafter(loaded: Loaded) -> None:
    save(loaded.place, CHOICE)
    assert isinstance(make_engine(loaded).decoder.drafter, Recycling)


@pytest.mark.parametrize("verifier", ["greedy", "relaxed"])
def test_a_rule_for_greedy_requests_follows_their_choice_alone(
    loaded: Loaded, verifier: str
) -> None:
    save(loaded.place, CHOICE, "greedy")
    save(loaded.place, OTHER, "sampled")
    greedy_only = registry.find("verifier", verifier).load().greedy_only
    drafter = make_engine(loaded, verifier=verifier).config["drafter"]
    assert (drafter == "recycling") == greedy_only


@pytest.mark.parametrize("controller", ["fixed", "cost-model"])
def test_a_batch_of_both_kinds_is_what_each_would_be_alone(loaded: Loaded, controller: str) -> None:
    save(loaded.place, TunedChoice(Configuration("recycling", controller, 5, 3), {}), "greedy")
    save(loaded.place, TunedChoice(Configuration("prompt-lookup", controller, 7, 7), {}), "sampled")
    prompts = ["the quick fox", "12 34", "lazy dog", "x + 1"]
    temperatures = [0.0, 0.4, 0.0, 0.4]
    plain = make_engine(loaded, drafter="none")
    wanted = [
        plain.generate(p, temperature=t, **LOOPS).token_ids
        for p, t in zip(prompts, temperatures, strict=True)
    ]
    engine = make_engine(loaded)
    ids = [
        engine.add(p, temperature=t, **LOOPS) for p, t in zip(prompts, temperatures, strict=True)
    ]
    done = {}
    drafted = set()
    while engine.pending:
        for event in engine.step():
            drafted.update(event.sources)
            if event.completion is not None:
                done[event.request] = event.completion.token_ids
    assert [done[each] for each in ids] == wanted
    if controller == "fixed":  # the other may find that drafts do not pay
        assert drafted == {None, "recycling", "prompt-lookup"}


# A drafter that has gone


@pytest.mark.parametrize("kinds", [("greedy",), ("sampled",), TEMPERATURE_KINDS])
def test_weights_that_have_gone_are_named_and_the_default_drafts(
    loaded: Loaded, kinds: tuple[Kind, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    save(loaded.place, OTHER)
    save(
        loaded.place,
        TunedChoice(Configuration("suffix-automaton>hydra", "fixed", 5, 3), {}),
        *kinds,
    )
    engine = make_engine(loaded, depth=3)  # by measured costs, drafts might not pay
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: warning: the tuned drafter 'suffix-automaton>hydra' cannot")
    assert line.endswith(f"using '{DEFAULT_DRAFTER}'; run paceline tune again")
    for kind, temperature in zip(TEMPERATURE_KINDS, (0.0, 0.3), strict=True):
        drafter = DEFAULT_DRAFTER if kind in kinds else "prompt-lookup"
        assert sources(engine, temperature=temperature) == {drafter}
    assert engine.config["auto"] == ("default" if kinds == TEMPERATURE_KINDS else "tuned")
    assert tuned.path_of(loaded.place).exists()  # they may come back
    assert budget(make_engine(loaded, nodes=2)) == Budget(2, 2)


def test_sizes_out_of_range_are_the_caller_s_fault_and_not_the_drafter_s(
    loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    save(loaded.place, CHOICE)
    with pytest.raises(InvalidOption, match="nodes must be 1 or more"):
        make_engine(loaded, nodes=0)
    assert capsys.readouterr().err == ""

"""What is tried: the same without trained weights as ever, and more where there are some."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.lab.tuning import space
from paceline.lab.tuning.space import DEFAULT, SIZINGS, Space, configuration
from paceline.networks.weights import ShippedCard
from paceline.registry.options import Options

HYDRA = {
    "suffix-automaton>hydra",
    "prompt-lookup>hydra",
    "hydra",
    "suffix-automaton>hydra:growth=expand-rerank-2",
    "hydra:growth=expand-rerank-4",
}


def card(kind: str, model: str) -> ShippedCard:
    return ShippedCard(f"{kind}.safetensors", 3, kind, {}, 5, None, {"model": model})


def loaded(model: str, networks: bool = True, layers: tuple[int, ...] = (1, 2, 3)) -> Any:
    facts = SimpleNamespace(
        feature_layers=layers, networks=networks, runtime="torch", precision="fp32"
    )
    target = SimpleNamespace(capabilities=facts)
    return SimpleNamespace(target=target, source=SimpleNamespace(fingerprint=model))


def test_every_name_is_known_and_told_from_the_others() -> None:
    whole = Space(dict.fromkeys(space._TRAINED, 0))
    for drafter in whole.drafters:
        Options().check(drafter)
    assert len(whole.everything) == len(whole.drafters) * len(SIZINGS)
    for name, point in whole.everything.items():
        assert point.name == name


def test_trained_drafters_come_with_their_weights_and_the_rest_stays_in_order() -> None:
    bare, hydra = Space(), Space({"hydra": 1, "unheard-of": 2})
    assert not any("hydra" in name for name in bare.drafters)
    assert set(hydra.drafters) - set(bare.drafters) == HYDRA
    assert [name for name in hydra.drafters if name not in HYDRA] == list(bare.drafters)
    assert bare.drafters[0] == hydra.drafters[0] == DEFAULT.drafter
    assert hydra.drafters[1] == "suffix-automaton>hydra"
    assert (bare.weights, hydra.weights) == ({}, {"hydra": 1})


@pytest.mark.parametrize(
    ("place", "there"),
    [
        (loaded("mine"), True),
        (loaded("another"), False),
        (loaded("mine", networks=False), False),
        (loaded("mine", layers=()), False),
    ],
)
def test_weights_count_where_they_are_of_the_model_and_the_runtime_runs_them(
    place: Any, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [card("hydra", "mine"), card("judge", "mine"), card("eagle3", "else")]
    monkeypatch.setattr(space, "shipped_cards", lambda: cards)
    found = Space.of(place)
    assert set(found.drafters) - set(Space().drafters) == (HYDRA if there else set())
    assert set(found.weights) == ({"hydra"} if there else set())


def test_the_first_untried_point_is_the_next_drafter_then_the_next_sizing() -> None:
    whole = Space()
    first = [configuration(each, next(iter(SIZINGS))).name for each in whole.drafters]
    assert whole.first_untried(set()) == (whole.drafters[0], next(iter(SIZINGS)))
    assert whole.first_untried(first[:2]) == (whole.drafters[2], next(iter(SIZINGS)))
    assert whole.first_untried(first) == (whole.drafters[0], list(SIZINGS)[1])
    assert whole.first_untried(set(whole.everything)) is None

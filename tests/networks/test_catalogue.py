"""Every network is found by its name, made again from what describes it, and bad input is named."""

from __future__ import annotations

import json

import pytest
from tests.networks.cases import NETWORKS as CASES
from tests.networks.cases import TINY

from paceline.errors import InvalidOption
from paceline.networks.base import config_from, describe
from paceline.networks.catalogue import build, find, names


@pytest.mark.parametrize("case", CASES)
def test_a_network_is_made_again_from_its_description(case: str) -> None:
    network = CASES[case]()
    entry = json.loads(json.dumps(describe(network)))
    again = build(entry["network"], config_from(entry["geometry"]), entry["settings"])
    assert type(again) is type(network)
    assert again.shapes() == network.shapes()
    assert (again.steps, again.width, again.layers) == (
        network.steps,
        network.width,
        network.layers,
    )


def test_every_network_of_the_catalogue_is_tested() -> None:
    hear = {"gad", "gad-ctc", "paraformer"}  # see tests/methods/gad, paraformer
    assert {CASES[case]().name for case in CASES} == set(names()) - hear
    assert all(find(name).name == name for name in names())


@pytest.mark.parametrize("name", names())
def test_settings_are_all_that_a_constructor_takes(name: str) -> None:
    """Without settings, and with its own, a network is the same."""
    network = build(name, TINY, {})
    assert build(name, TINY, network.settings()).shapes() == network.shapes()


def test_settings_may_be_the_text_of_an_option() -> None:
    network = build("hydra", TINY, {"steps": "6", "prefix": "false"})
    assert (network.steps, network.layers) == (6, 0)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("medua", {}, "network 'medua' is unknown: use eagle3, "),
        ("medusa", {"wide": 3}, "network 'medusa' has no option 'wide': use width"),
        ("medusa", {"width": 2.5}, "option width of network 'medusa' must be a whole number"),
        ("medusa", {"width": None}, "option width of network 'medusa' must be a whole number"),
        ("medusa", {"width": 0}, "width must be 1 to 64"),
        ("hydra", {"prefix": 1}, "option prefix of network 'hydra' must be true or false"),
        ("hydra", {"hidden": -4}, "hidden of network 'hydra' must not be below 0"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        build(name, TINY, settings)

"""The table of methods: built-in entries are true, plugins are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from paceline.drafters.base import Drafter
from paceline.errors import InvalidOption
from paceline.policy.controller import Controller
from paceline.registry import table as registry
from paceline.registry.table import BUILT_IN, GROUP, Kind, Method
from paceline.trees.base import TreeExpansion
from paceline.verifiers.base import Verifier
from paceline.zoo import METHODS

PACKAGES = {
    "cpu": (),
    "reference": (),
    "torch": ("torch",),
    "transformers": ("torch", "transformers"),
}
MINE = Method("mine", "drafter", "lossless", "-", "-", "paceline.drafters.base:NoDrafter")


@dataclass
class Point:
    """What an entry point looks like to the registry."""

    loaded: Any
    value: str = "plugin.module:METHOD"
    name: str = "plugin"

    def load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Point]]:
    """Entry points that the registry finds; forgotten afterwards."""
    points: list[Point] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == GROUP else [])
    registry.methods.cache_clear()
    yield points
    registry.methods.cache_clear()


@pytest.mark.parametrize("method", registry.methods(), ids=lambda m: f"{m.kind}-{m.name}")
def test_factories_are_what_they_are_listed_as(method: Method) -> None:
    if method.kind == "runtime":
        for package in PACKAGES[method.name]:
            pytest.importorskip(package)
    factory: Any = method.load()
    if method.kind == "runtime":
        assert callable(factory.load)
        return
    if method.kind == "decoder":  # classes and functions, each with its own way in
        assert callable(factory)
        return
    assert factory.name == method.name
    base = {"drafter": Drafter, "controller": Controller, "growth": TreeExpansion}.get(method.kind)
    assert base is None or issubclass(factory, base)
    if method.kind == "verifier":
        rule: type[Verifier] = factory
        assert rule.lossless == method.guarantee.startswith("lossless")
        assert rule.lossless != method.guarantee.startswith("lossy")
        assert rule.accepts
        assert callable(rule.verify)


def test_names_are_unique_per_kind_and_listed_by_kind(plugins: list[Point]) -> None:
    assert len({(method.kind, method.name) for method in BUILT_IN}) == len(BUILT_IN)
    assert {method.kind for method in (*BUILT_IN, registry.LEARNER)} == set(get_args(Kind))
    assert registry.names("drafter")[:3] == ("none", "prompt-lookup", "recycling")
    assert set(registry.names("verifier")) >= {"greedy", "sample-match", "coupled", "rejection"}
    assert registry.names("controller")[:2] == ("fixed", "cost-model")
    assert registry.names("runtime") == ("cpu", "torch", "transformers", "reference")


def test_every_method_says_what_it_promises() -> None:
    for method in (*BUILT_IN, *METHODS):
        assert method.guarantee
        assert method.needs
        assert method.paper


def test_papers_are_cited_by_name_year_and_place() -> None:
    papers = [part for m in registry.methods() if m.paper != "-" for part in m.paper.split("; ")]
    for paper in papers:
        assert re.fullmatch(
            r"(after )?(\w.+, )?[A-Z][\w-]+( et al\.| and [A-Z]\w+)? 20\d\d, "
            r"(arXiv:\d{4}\.\d{5}|github\.com/\S+)",
            paper,
        ), paper


def test_what_comes_after_a_paper_says_how_it_differs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    lines = re.findall(r"^\| `([\w-]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    ways = {"fuse", "graft"}  # of combining drafters
    after = {method.name for method in registry.methods() if method.paper.startswith("after ")}
    assert sorted(name for name, *_ in lines) == sorted(after | ways)
    assert not any("; after " in method.paper for method in registry.methods())


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_unknown_name_is_answered_with_the_choices(kind: Kind, plugins: list[Point]) -> None:
    with pytest.raises(InvalidOption) as caught:
        registry.find(kind, "magic")
    message = str(caught.value)
    assert message.startswith(f"{kind} 'magic' is unknown")
    for name in registry.names(kind):
        assert name in message


def test_plugins_join_the_built_in_methods(plugins: list[Point]) -> None:
    plugins.append(Point(MINE))
    assert registry.find("drafter", "mine") is MINE
    assert registry.names("drafter")[-1] == "mine"
    assert registry.methods()[: len(BUILT_IN)] == BUILT_IN


def test_a_plugin_may_bring_several_methods(plugins: list[Point]) -> None:
    plugins.append(Point((MINE, replace(MINE, name="yours"))))
    assert registry.names("drafter")[-2:] == ("mine", "yours")


def test_the_zoo_is_a_plugin() -> None:
    assert registry.methods()[: len(BUILT_IN)] == BUILT_IN
    assert set(METHODS) <= set(registry.methods()) - set(BUILT_IN)


@pytest.mark.parametrize("place", ["gone:PROOF", f"{__name__}:GONE"])
def test_a_proof_that_cannot_be_loaded_is_named(place: str) -> None:
    with pytest.raises(InvalidOption, match="the proof of drafter 'mine' cannot be loaded"):
        replace(MINE, proof=place).load_proof()
    assert MINE.load_proof() is None


def test_one_name_may_stand_for_two_kinds(plugins: list[Point]) -> None:
    plugins.append(Point(replace(MINE, name="greedy")))
    assert registry.find("drafter", "greedy").kind == "drafter"
    assert registry.find("verifier", "greedy").kind == "verifier"


@pytest.mark.parametrize(
    ("loaded", "says"),
    [
        (replace(MINE, name="recycling"), "reuses the drafter 'recycling'"),
        ("not a method", "not a paceline.registry.table.Method"),
        ([MINE, "not a method"], "not a paceline.registry.table.Method"),
        (ImportError("no module named 'gone'"), "plugin.module:METHOD"),
        (AttributeError("METHOD"), "plugin.module:METHOD"),
    ],
    ids=["name clash", "wrong type", "wrong type in a list", "missing module", "missing attribute"],
)
def test_a_bad_plugin_is_named_in_one_line(loaded: object, says: str, plugins: list[Point]) -> None:
    plugins.append(Point(loaded))
    with pytest.raises(InvalidOption) as caught:
        registry.methods()
    assert says in str(caught.value)
    assert "plugin.module:METHOD" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_plugins_may_not_share_a_name(plugins: list[Point]) -> None:
    plugins += [Point(MINE), Point(MINE, value="other:METHOD")]
    with pytest.raises(InvalidOption, match="other:METHOD reuses"):
        registry.methods()

"""The table of methods: built-in entries are true, plugins are checked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from paceline.core.types import Described
from paceline.denoising.process import Sampler
from paceline.drafters.base import Drafter, NoDrafter
from paceline.errors import InvalidOption
from paceline.methods import METHODS
from paceline.policy.controller import Controller
from paceline.registry import table as registry
from paceline.registry.table import BUILT_IN, GROUP, Kind, Method
from paceline.trees.base import TreeExpansion
from paceline.verifiers.base import Verifier

PLACE = "paceline.drafters.base:NoDrafter"
MINE = Method("mine", "drafter", PLACE)


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
    factory: Any = method.load()
    if method.kind == "runtime":
        assert factory.name == method.name
        assert callable(factory.load)
        return
    if method.kind in ("decoder", "stream"):  # classes and functions, each with its own way in
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
    assert [kind for kind in get_args(Kind) if kind in BUILT_IN] == list(BUILT_IN)
    assert {(m.kind, m.name) for m in registry.methods()} == {
        (kind, name) for kind, places in BUILT_IN.items() for name in places
    }
    assert registry.names("drafter")[:3] == ("none", "recycling", "eagle3")
    assert set(registry.names("verifier")) >= {"greedy", "sample-match", "coupled", "rejection"}
    assert registry.names("controller")[:2] == ("fixed", "cost-model")
    assert registry.names("runtime") == ("cpu", "torch", "transformers", "reference")


def test_every_method_says_what_it_promises() -> None:
    for method in registry.methods():
        assert method.guarantee
        assert method.needs
        assert method.paper


def test_what_is_said_of_a_method_stands_at_its_own_class() -> None:
    listed = {method.load() for method in registry.methods()}
    for factory in listed:
        assert factory.paper == "-" or "paper" in vars(factory), factory
    told = {each for each in _heirs(Described) | _heirs(Sampler) if "paper" in vars(each)}
    assert {each for each in told if each.__module__.startswith("paceline.")} <= listed


def _heirs(base: type) -> set[type]:
    return {each for heir in base.__subclasses__() for each in (heir, *_heirs(heir))}


def test_methods_are_listed_without_the_extras() -> None:
    gone = ("torch", "transformers", "llguidance", "starlette", "optuna", "matplotlib")
    code = f"""import sys
sys.modules.update(dict.fromkeys({gone}))
from paceline.registry import table
print(*(each.paper for each in table.methods()), sep="\\n")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [method.paper for method in registry.methods()]


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
    built_in = registry.methods()
    registry.methods.cache_clear()
    plugins.append(Point({"drafter": {"mine": PLACE}}))
    assert registry.find("drafter", "mine") == MINE
    assert registry.names("drafter")[-1] == "mine"
    assert [each for each in registry.methods() if each != MINE] == list(built_in)


def test_a_plugin_may_bring_several_methods(plugins: list[Point]) -> None:
    plugins.append(Point({"drafter": {"mine": PLACE, "yours": PLACE}}))
    assert registry.names("drafter")[-2:] == ("mine", "yours")


def test_the_methods_are_a_plugin(plugins: list[Point]) -> None:
    built_in = registry.methods()
    registry.methods.cache_clear()
    plugins.append(Point(METHODS))
    added = {(each.kind, each.name) for each in registry.methods() if each not in built_in}
    assert added == {(kind, name) for kind, places in METHODS.items() for name in places}


def test_a_method_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(InvalidOption, match=r"'mine' cannot be loaded \(.*gone.*\): mend or"):
        assert replace(MINE, factory="gone:DRAFTER").guarantee


@pytest.mark.parametrize("place", ["gone:PROOF", f"{__name__}:GONE"])
def test_a_proof_that_cannot_be_loaded_is_named(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MINE.load_proof() is None
    monkeypatch.setattr(NoDrafter, "proof", place)
    with pytest.raises(InvalidOption, match="the proof of drafter 'mine' cannot be loaded"):
        MINE.load_proof()


def test_one_name_may_stand_for_two_kinds(plugins: list[Point]) -> None:
    plugins.append(Point({"drafter": {"greedy": PLACE}}))
    assert registry.find("drafter", "greedy").kind == "drafter"
    assert registry.find("verifier", "greedy").kind == "verifier"


@pytest.mark.parametrize(
    ("loaded", "says"),
    [
        ({"drafter": {"recycling": PLACE}}, "reuses the drafter 'recycling'"),
        ("not an index", "not a paceline.registry.table.Index"),
        (MINE, "not a paceline.registry.table.Index"),
        ({"magic": {"mine": PLACE}}, "not a paceline.registry.table.Index"),
        ({"drafter": PLACE}, "not a paceline.registry.table.Index"),
        (ImportError("no module named 'gone'"), "plugin.module:METHOD"),
        (AttributeError("METHOD"), "plugin.module:METHOD"),
    ],
    ids=[
        *("name clash", "no mapping", "a method", "unknown kind", "no names"),
        *("missing module", "missing attribute"),
    ],
)
def test_a_bad_plugin_is_named_in_one_line(loaded: object, says: str, plugins: list[Point]) -> None:
    plugins.append(Point(loaded))
    with pytest.raises(InvalidOption) as caught:
        registry.methods()
    assert says in str(caught.value)
    assert "plugin.module:METHOD" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_plugins_may_not_share_a_name(plugins: list[Point]) -> None:
    plugins += [Point({"drafter": {"mine": PLACE}}, value) for value in ("one:M", "other:METHOD")]
    with pytest.raises(InvalidOption, match="other:METHOD reuses"):
        registry.methods()

"""Imports go one way, without cycles; heavy packages stay optional; the budget holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pkgutil import resolve_name

import pytest
from tests import names, structure
from tests.structure import MODULES, ROOT, TOP, Import, folder, imports_of, inner, layer

from paceline.core.expressions import parse
from paceline.methods import METHODS
from paceline.networks.published.wirings import DRAFTERS
from paceline.registry import assembly
from paceline.registry.samplers import DEFAULT_SAMPLERS
from paceline.registry.table import BUILT_IN

IMPORTS = [each for module in MODULES for each in imports_of(module)]

HEAVY = {
    "torch": (
        "runtimes.torch.",
        "runtimes.transformers",
        "networks.torch_ops",
        "lab.training.",
        "methods.",
        "cli.train",
    ),
    "transformers": ("runtimes.transformers",),
    "matplotlib": ("lab.measure.plots", "lab.training.card"),
    "optuna": ("lab.tuning.search",),
}
"""Where a heavy package may be imported, at any level of nesting."""


def test_the_package_was_found() -> None:
    assert {"core.types", "sampling.sampler", "engine.loop"} <= set(MODULES)
    assert len(IMPORTS) > 1000


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_upward(module: str) -> None:
    for each in imports_of(module):
        below = inner(each.target)
        if below is not None and folder(below) != folder(module):
            assert layer(below) < layer(module), f"{module} imports {each.target}"


def test_a_word_that_all_may_use_has_more_users_than_one() -> None:
    """Else it stands with its user. Those that are allowed are found, so it can fail."""
    assert structure.lonely() == set(structure.ONE_USER)


def test_nothing_but_the_methods_names_the_methods() -> None:
    for module, path in MODULES.items():
        assert folder(module) == "methods" or "paceline.methods." not in path.read_text(), module


def test_what_a_default_uses_is_core_and_all_else_is_a_method() -> None:
    """Rules that are proved by enumeration (`verifiers`, `trees`) and runtimes are core, too."""
    texts = [value for name, value in vars(assembly).items() if "DEFAULT_" in name]
    drafters = {name for text in texts for name in parse(text, "drafter").names}
    canvases = [parse(text, "sampler").names for text in DEFAULT_SAMPLERS.values()]
    used = {
        "drafter": {"none", "string-level", *DRAFTERS.values(), *drafters},  # files bring them
        "controller": {"fixed", "cost-model"},
        "decoder": {"autoregressive"},
        "sampler": {"tidar", *(name for names in canvases for name in names)},  # base of one
        "cache": {"none", "exact"},
    }
    assert {kind: set(BUILT_IN[kind]) for kind in used} == used  # type: ignore[index]
    assert set(BUILT_IN) - used.keys() == {"growth", "verifier", "runtime"}
    assert {kind for kind in METHODS if kind in ("growth", "runtime")} == set()
    lossless = [each for each in BUILT_IN["verifier"].values() if resolve_name(each).lossless]
    assert len(lossless) == len(BUILT_IN["verifier"])


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("runtimes.")])
def test_runtimes_know_only_the_contract_and_models(module: str) -> None:
    known = {"runtimes", "core", "errors", "models", "networks", "native"}
    for each in imports_of(module):
        below = inner(each.target)
        assert below is None or folder(below) in known, f"{module} imports {each.target}"


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_belong(package: str) -> None:
    for each in IMPORTS:
        if each.target.split(".")[0] == package:
            assert each.module.startswith(HEAVY[package]), f"{each.module} imports {package}"


def test_only_the_controls_of_the_audit_use_wrong_rules() -> None:
    wrong = {each.module for each in IMPORTS if each.target == "paceline.proof.negative"}
    assert wrong <= {"proof.controls"}
    users = {each.module for each in IMPORTS if each.target == "paceline.proof.controls"}
    assert users <= {"proof.inside"}


def cycle(imports: list[Import]) -> list[str]:
    """Modules of one import cycle, lazy and type-only imports included; empty if there is none."""
    graph: dict[str, set[str]] = {each.module: set() for each in imports}
    for each in imports:
        below = inner(each.target)
        if below in MODULES and below != each.module:
            graph[each.module].add(below or "")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_nothing_imports_in_circles() -> None:
    assert cycle(IMPORTS) == []


def test_a_lazy_import_that_closes_a_circle_is_seen() -> None:
    assert cycle([*IMPORTS, Import("core.types", "paceline.engine.loop", False)])


@pytest.mark.parametrize("module", MODULES)
def test_arguments_are_written_out(module: str) -> None:
    """A star before a tuple hides which parameter an argument is."""
    found = [each.lineno for each in structure.star_tuples(ast.parse(MODULES[module].read_text()))]
    assert found == [], f"{module} unpacks a literal"


def test_an_unpacked_literal_is_seen() -> None:
    for code in ("f(*(a, b), c)", "x = (*[a], b)"):
        assert list(structure.star_tuples(ast.parse(code)))
    assert not list(structure.star_tuples(ast.parse("f(*names); x = (*(n for n in names), b)")))


def test_a_class_name_stands_once() -> None:
    assert structure.namesakes().keys() == structure.TWICE.keys()
    assert len(structure.TWICE) <= 15


def test_files_that_kernels_name_are_there() -> None:
    named = [
        (path.name, each)
        for path in sorted((ROOT / "native").rglob("*.[ch]pp"))
        for each in re.findall(r"`([\w/]+\.py)`", path.read_text())
    ]
    assert len(named) > 5
    tops = ROOT, TOP
    assert [each for each in named if not any((top / each[1]).exists() for top in tops)] == []


def test_names_in_backticks_stand_for_something() -> None:
    """In docstrings and comments; `names.FOREIGN` lists those of others' code."""
    found = list(names.mentions())
    assert len(found) > 1000
    assert [each for each in found if not names.resolves(each)] == []


def test_a_name_that_is_gone_is_seen() -> None:
    gone = ("follows_noise", "TokenTree.leaves", "drafters/eagle9.py", "paceline fly", "--fly-high")
    assert not any(names.resolves(names.Mention("core.types", 1, each)) for each in gone)
    there = (
        "TokenTree",
        "TokenTree.parents",
        "core.tree",
        "paceline generate",
        "--drafter",
        "a * b",
    )
    assert all(names.resolves(names.Mention("core.types", 1, each)) for each in there)


def test_the_map_on_the_architecture_page_is_that_of_the_table() -> None:
    page = structure.PAGE.read_text()
    assert structure.map_table() in page
    assert structure.with_map(page) == page


def test_the_whole_is_within_its_budget() -> None:
    assert structure.over_budget() == []


def test_everything_else_imports_without_heavy_packages() -> None:
    """In a fresh interpreter where importing any of them fails."""
    heavy = {each.module for each in IMPORTS if each.eager and each.target.split(".")[0] in HEAVY}
    users = {each.module: set() for each in IMPORTS}
    for each in IMPORTS:
        if each.eager and (below := inner(each.target)) is not None:
            users[each.module].add(below)
    grown = True
    while grown:
        more = {m for m, targets in users.items() if targets & heavy} - heavy
        heavy, grown = heavy | more, bool(more)
    allowed = tuple(place for places in HEAVY.values() for place in places)
    assert all(module.startswith(allowed) for module in heavy), heavy
    names = ", ".join(
        f"paceline.{m}".rstrip(".") for m in sorted(MODULES.keys() - heavy - {"__main__"})
    )
    code = f"import sys\nfor name in {list(HEAVY)}: sys.modules[name] = None\nimport {names}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

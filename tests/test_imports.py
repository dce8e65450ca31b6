"""Imports follow the flow of data, heavy packages stay optional, and nothing imports in circles."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

SPEC = find_spec("paceline")
assert SPEC is not None
assert SPEC.submodule_search_locations is not None
ROOT = Path(SPEC.submodule_search_locations[0])

LAYERS = (
    ("errors", "version"),
    ("types",),
    (
        *(
            "options",
            "tree",
            "law",
            "noise",
            "randomness",
            "sampling",
            "metrics",
            "target",
            "sequence",
        ),
        *("loops", "stopping", "text", "transcript", "models", "weights"),
        *("native", "processor", "calibration"),
    ),
    ("networks",),
    ("shapes", "growth", "drafters", "verifiers", "controllers", "runtimes", "scheduling"),
    ("decode",),
    (
        "exactness",
        "engine",
        "intake",
        "method",
        *("built_in", "built_in_drafters", "drafting"),
        "registry",
        "naming",
        "search",
        "suggest",
        "tuned",
    ),
    ("loading",),
    ("",),  # the package's own __init__
    ("audit", "bench", "cli", "export", "serving", "training", "tuning", "__main__"),
)
"""Parts from the bottom up: a part imports its own layer and those before it."""

RUNTIMES_MAY = {
    *("runtimes", "types", "target", "tree", "errors", "models", "networks"),
    *("native", "processor"),
}

HEAVY = {
    "openvino": {
        *("runtimes.openvino", "runtimes.openvino_graph", "runtimes.openvino_requests"),
        *("runtimes.openvino_branches", "runtimes.openvino_core", "runtimes.openvino_plugin"),
        *("runtimes.openvino_network", "runtimes.openvino_nodes", "runtimes.openvino_runner"),
    },
    "torch": {
        *("runtimes.torch", "runtimes.transformers", "runtimes.transformers_loading"),
        *("models.llama", "networks.torch_ops"),
        *("training.acceptance_head", "training.auxiliary", "training.checkpoint"),
        *("training.digest", "training.fused_losses", "training.logits", "training.losses"),
        *("training.module", "training.objective", "training.optimiser_state", "training.trainer"),
        *("runtimes.torch_cache", "runtimes.torch_draft_ops", "runtimes.torch_lent"),
        *("runtimes.torch_runner", "training.run_card", "cli.train_drafter"),
        *("training.glancing", "runtimes.torch_network_cache"),
        *("training.acceptance_training", "training.forward", "training.frozen", "training.online"),
        *("training.on_policy", "training.optimisers", "training.own_drafts"),
        *("training.prompt_tokens", "training.prompt_tokens_forward", "cli.train_prompt_tokens"),
        *("training.prompt_tokens_card", "training.prompt_tokens_recipe", "training.material"),
        "training.screen",
    },
    "transformers": {"runtimes.transformers", "runtimes.transformers_loading"},
    "matplotlib": {
        *("bench.plots", "training.plotting", "training.scaling_plot", "training.card_plot"),
        "training.calibration_plot",
    },
    "optuna": {"tuning.search", "training.vocabulary_search"},
}
"""Which modules may import a heavy package, at any level of nesting."""


class Import(NamedTuple):
    """One import statement: who, what, and whether it runs when the module is imported."""

    module: str
    target: str
    eager: bool


def module_name(path: Path) -> str:
    """Dotted name below the package; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_of(module: str) -> list[Import]:
    """All imports of a module, those for type checkers alone left out."""
    found: list[Import] = []

    def visit(node: ast.AST, eager: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                visit(other, eager)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(module, alias.name, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full.removeprefix("paceline.") in MODULES and full.startswith("paceline.")
                found.append(Import(module, full if known else node.module or "", eager))
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, eager and not inner)

    visit(ast.parse(MODULES[module].read_text()), True)
    return found


IMPORTS = [each for module in MODULES for each in imports_of(module)]


def inner(name: str) -> str | None:
    """Name below the package, or None for an import from outside."""
    if name == "paceline":
        return ""
    return name.removeprefix("paceline.") if name.startswith("paceline.") else None


def layer(module: str) -> int:
    """Index of the layer that a module belongs to."""
    part = module.split(".")[0]
    for index, parts in enumerate(LAYERS):
        if part in parts:
            return index
    raise AssertionError(f"module {module} belongs to no layer: add it to LAYERS")


def test_the_package_was_found() -> None:
    assert {"types", "tree", "sampling", "decode.autoregressive"} <= set(MODULES)
    assert len(IMPORTS) > 100


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_upward(module: str) -> None:
    for each in imports_of(module):
        below = inner(each.target)
        if below is not None:
            assert layer(below) <= layer(module), f"{module} imports {each.target}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("runtimes.")])
def test_runtimes_know_only_the_contract_and_models(module: str) -> None:
    for each in imports_of(module):
        below = inner(each.target)
        if below is not None:
            assert below.split(".")[0] in RUNTIMES_MAY, f"{module} imports {each.target}"


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_where_they_belong(package: str) -> None:
    users = {each.module for each in IMPORTS if each.target.split(".")[0] == package}
    assert users <= HEAVY[package]


def test_only_the_audit_uses_wrong_rules_and_only_as_controls() -> None:
    wrong = "exactness.negative"
    users = {each.module for each in IMPORTS if each.target.startswith(f"paceline.{wrong}")}
    assert all(user.startswith(wrong) for user in users - {"exactness.controls"})
    users = {each.module for each in IMPORTS if each.target == "paceline.exactness.controls"}
    assert users <= {"exactness.inside"}


def test_nothing_imports_in_circles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for each in IMPORTS:
        below = inner(each.target)
        if each.eager and below in MODULES and below != each.module:
            graph[each.module].add(below or "")
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_everything_else_imports_without_heavy_packages() -> None:
    """In a fresh interpreter where importing any of them fails."""
    light = MODULES.keys() - set().union(*HEAVY.values()) - {"__main__"}
    names = ", ".join(f"paceline.{module}".rstrip(".") for module in sorted(light))
    code = f"import sys\nfor name in {list(HEAVY)}: sys.modules[name] = None\nimport {names}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

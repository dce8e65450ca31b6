"""The map of the package: folders from the bottom up, the imports between them, and a budget.

`python -m tests.structure` prints the budget by folder; `--write` renews the map in
docs/architecture.md. `tests/test_structure.py` holds the code against all of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).parent.parent
ROOT = TOP / "src" / "paceline"
PAGE = TOP / "docs" / "architecture.md"

FOLDERS: tuple[tuple[str, str], ...] = (
    ("errors", "exceptions that name what is wrong and what to do"),
    ("core", "types, token trees, the contract of a target, options, metrics, the processor"),
    ("native", "C++ kernels, how they are compiled, and programs over them"),
    ("sampling", "logits to distributions, keyed randomness, Gumbel noise, a sequence"),
    ("models", "config, weights, tokenizers and files of models"),
    ("networks", "trained drafter networks, and the operations of all models in PyTorch"),
    ("policy", "how much to draft: costs, acceptance estimates, the draft gate, controllers"),
    ("verifiers", "lossless rules that check a draft"),
    ("trees", "the one place where trees of drafts are built"),
    ("drafters", "what defaults draft with, combinations, and what drafters of a kind share"),
    (
        "runtimes",
        "targets and networks on the CPU, on torch, on transformers, and a reference in NumPy",
    ),
    ("audio", "sound as models hear it: files as samples, samples as log-mel frames"),
    ("engine", "the decode loop, prefill, scheduling, stop rules, requests"),
    ("listening", "speech to text: windows, timestamps, captions"),
    ("denoising", "decoders that fill a canvas: rules, cache plans, processes"),
    ("registry", "methods by name, and from names to a running engine"),
    ("", "the public API"),
    ("proof", "exactness by enumeration of the shipped code"),
    ("lab.measure", "benchmarks, workloads, bounds, fingerprints, reports, results pages"),
    ("lab.audit", "any engine beside itself, with speculation and without"),
    ("lab.export", "drafters in the layout of other engines"),
    ("lab.training", "training data, and the training of all that is trained"),
    ("lab.tuning", "the search behind `paceline tune`"),
    ("serving", "the HTTP server, and batches of requests in files"),
    ("cli", "commands"),
    (
        "methods",
        "what no default uses, a file or a folder a method: found by entry points, never imported "
        "by the others",
    ),
)
"""Folder and purpose. A module imports its own folder and those before it."""

FREE = {"version", "weights", "__main__", "lab"}
"""Modules without a layer: a number, files, and the entry of `python -m`."""

BUDGET = {
    "lines": 80_597,
    "lines of methods": 16_415,
    "modules": 523,
    "docstrings": 0.14,
    "loose": 6,
}


class Import(NamedTuple):
    """One import: who, what, and whether it runs when the module is imported."""

    module: str
    target: str
    eager: bool


def module_name(path: Path) -> str:
    """Dotted name below the package; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_of(module: str) -> Iterator[Import]:
    """All imports of a module: lazy ones, those for type checkers, and dynamic ones by a literal.

    Raises ValueError for a dynamic import of the package by a computed name.
    """

    def visit(node: ast.AST, eager: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            eager = False
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, eager) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{module} imports relatively")
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full.startswith("paceline.") and full.removeprefix("paceline.") in MODULES
                yield Import(module, full if known else node.module or "", eager)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "resolve_name")
        ):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield Import(module, str(name.value), False)
            elif module not in LATE:
                raise ValueError(f"{module} imports a computed name: {ast.unparse(node)}")
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, eager and not inner)

    yield from visit(ast.parse(MODULES[module].read_text()), True)


LATE = {"registry.table", "networks.catalogue", "lab.audit.named", "cli.app"}
"""Modules that import what a user or an entry of an index names."""


def inner(name: str) -> str | None:
    """Name below the package, or None for an import from outside."""
    if name == "paceline":
        return ""
    return name.removeprefix("paceline.") if name.startswith("paceline.") else None


def folder(module: str) -> str:
    """The folder of a module, two names in `lab`; or the module itself where it is loose."""
    parts = module.split(".")
    return ".".join(parts[: 1 + (parts[0] == "lab")])


def layer(module: str) -> int:
    """Place of a module's folder in `FOLDERS`; -1 for those that anybody may import.

    Raises KeyError for a folder that the table does not know.
    """
    if folder(module) in FREE:
        return len(FOLDERS) if module == "__main__" else -1
    places = {name: place for place, (name, _) in enumerate(FOLDERS)}
    return places[folder(module)]


def star_tuples(tree: ast.AST) -> Iterator[ast.Starred]:
    """Literals that are unpacked where their elements could stand: `f(*(a, b), c)`."""
    for node in ast.walk(tree):
        parts = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        for each in parts:
            if isinstance(each, ast.Starred) and isinstance(each.value, (ast.Tuple, ast.List)):
                yield each


TWICE = {
    "Rows": "of a sequence in a forward; what a program records as one operation's",
    "Sampler": "of tokens; of canvases, as `--sampler` has it",
    "Threshold": "a rule for canvases; a tree expansion, both by that name",
    "TopAndOne": "a tree expansion, and the rule for its drafts, both by that name",
}
"""Class names that may stand in two modules, and what each means there."""


def namesakes() -> dict[str, list[str]]:
    """Class names that stand in more than one place, with their modules."""
    found: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


SHARED = {"core", "models", "engine"}
"""Folders whose public words serve more than one user."""

ONE_USER = {
    "core.target.HearsOn": "what runtimes of sounds that grow can do",
    "core.target.Slides": "what runtimes of endless texts can do",
    "core.tree.follow": "a walk of a tree, beside the others",
    "core.tree.validate": "what a tree is, for the tests of all that makes one",
    "engine.by_temperature.ControllersByKind": "of decoding, put together by name",
    "engine.by_temperature.DraftersByKind": "of decoding, put together by name",
    "models.families.gemma4.layer_over": "a layer of the family, which its assistants are made of",
    "models.grammar.constraint_of": "of `generate`, beside what it makes",
    "models.grids.expand": "formats of files, beside those that are read",
    "models.source.FirstLayers": "a source like the others",
    "models.source.smaller_sibling": "files beside a file, which sources know",
}
"""Words there that one file elsewhere uses, or none, and why they stand there all the same."""


def _words(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines, at its top."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def _used(module: str, tree: ast.Module) -> Iterator[str]:
    """Words that a module uses, its own included, as "module.word"."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{inner(node.module or '')}.{alias.name}".lstrip(".")
                modules[alias.asname or alias.name] = full
                yield full
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield f"{module}.{node.id}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{modules.get(node.value.id)}.{node.attr}"
        elif isinstance(node, ast.Constant) and str(node.value).startswith("paceline."):
            yield str(node.value).removeprefix("paceline.").replace(":", ".")


def lonely() -> set[str]:
    """Public words of `SHARED` that nobody in their folder uses, and at most one file elsewhere."""
    trees = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}
    users: dict[str, set[str]] = {}
    for module, tree in trees.items():
        for word in _used(module, tree):
            users.setdefault(word, set()).add(module)
    return {
        f"{module}.{name}"
        for module, tree in trees.items()
        if folder(module) in SHARED
        for name in _words(tree)
        if not name.startswith("_")
        and len(by := users.get(f"{module}.{name}", set())) < 2
        and folder(module) not in map(folder, by)
    }


def docstring_lines(tree: ast.AST) -> int:
    """Lines of strings that stand alone: docstrings, and those after an attribute."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class Size(NamedTuple):
    """What a folder weighs."""

    lines: int
    cpp: int
    modules: int
    docstrings: int


def sizes() -> dict[str, Size]:
    """By folder of the package."""
    out: dict[str, Size] = {}
    for path in sorted(ROOT.rglob("*")):
        if path.suffix not in (".py", ".cpp", ".hpp"):
            continue
        parts = path.relative_to(ROOT).parts
        name = parts[0] if len(parts) > 1 else "(loose)"
        text = path.read_text()
        count, python = text.count("\n"), path.suffix == ".py"
        docs = docstring_lines(ast.parse(text)) if python else 0
        old = out.get(name, Size(0, 0, 0, 0))
        new = Size(count * python, count * (not python), int(python), docs)
        out[name] = Size(*(a + b for a, b in zip(old, new, strict=True)))
    return out


def over_budget() -> list[str]:
    """What is larger than `BUDGET` allows, a line each."""
    by_folder = sizes()
    total = Size(*map(sum, zip(*by_folder.values(), strict=True)))
    methods = by_folder["methods"].lines
    found = {
        "lines": total.lines + total.cpp - methods,
        "lines of methods": methods,
        "modules": total.modules,
        "docstrings": round(total.docstrings / total.lines, 4),
        "loose": sum("." not in name and path.stem != "__init__" for name, path in MODULES.items()),
    }
    return [f"{k}: {found[k]} of {most}" for k, most in BUDGET.items() if found[k] > most]


def map_table() -> str:
    """The map of folders as a Markdown table, from the bottom up."""
    rows = ["| folder | what it holds |", "|---|---|"]
    for name, purpose in FOLDERS:
        path = ROOT / name.replace(".", "/") if name else ROOT / "__init__.py"
        path = path if path.exists() else path.with_suffix(".py")
        shown = name.replace(".", "/") or "paceline"
        rows.append(f"| [{shown}](../{path.relative_to(TOP).as_posix()}) | {purpose} |")
    return "\n".join(rows)


def with_map(page: str) -> str:
    """A page with the map between its marks renewed."""
    before, start, rest = page.partition("<!-- map -->\n")
    _, end, after = rest.partition("<!-- /map -->")
    return f"{before}{start}{map_table()}\n{end}{after}"


def main() -> None:
    """Print the budget by folder; with --write, renew the map."""
    if "--write" in sys.argv:
        PAGE.write_text(with_map(PAGE.read_text()))
    print(f"{'folder':12}{'python':>8}{'C++':>7}{'modules':>9}{'docstrings':>12}")
    found = sizes()
    found["all"] = Size(*map(sum, zip(*found.values(), strict=True)))
    for name, each in found.items():
        share = f"{100 * each.docstrings / max(each.lines, 1):.1f}%"
        print(f"{name:12}{each.lines:8}{each.cpp:7}{each.modules:9}{share:>12}")
    for line in over_budget():
        print(f"over budget: {line}")
    sys.exit(bool(over_budget()))


if __name__ == "__main__":
    main()

"""What a figure was made from, as a short digest: it tells lines that are older than their code."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from paceline.networks import catalogue
from paceline.networks.weights import shipped_file
from paceline.registry import table
from paceline.weights import weight_files

_PACKAGE = Path(__file__).parents[2]
_ROOTS = (_PACKAGE.parent, _PACKAGE.parents[1])
"""Where dotted names are looked up: the package, and benchmarks beside it."""

_METHODS = "paceline.methods"
_TELLING = frozenset({"main", "findings", "compared", "note", "cells", "COLUMNS"})
"""What scripts tell their figures by; these are the same however they are told."""

Methods = Iterable[tuple[table.Kind, str]]


def code(methods: Methods, names: Iterable[str], *texts: str) -> str:
    """Return the digest of methods' modules, of further modules or folders, and of texts.

    Of a method counts its module and what this imports of `paceline.methods`, not the engine below,
    whose texts are held by tests. Comments, docstrings and layout do not count, and of scripts
    neither imports nor how they tell what they found.
    """
    files = {path for name in names for path in _files(name)}
    for each in methods:
        for place in _places(*each):
            files |= _with_imports(place.partition(":")[0])
    parts = sorted(_shape(path) for path in files)
    return hashlib.sha256("\n".join([*texts, *parts]).encode()).hexdigest()[:12]


def weights(methods: Methods, model: str, fingerprint: str) -> str:
    """Return the digest of the weights that ship for methods on a model; empty if there are none.

    model: its folder's name, if it is a denoiser.
    """
    named = (shipped_file(name, fingerprint) for kind, name in methods if kind == "drafter")
    files = [*filter(None, named)]
    for folder in weight_files(f"denoisers/{model}") if model else ():
        files += sorted(folder.glob("*.safetensors"))
    return hashlib.sha256("".join(map(_bytes, files)).encode()).hexdigest()[:6] if files else ""


def _places(kind: table.Kind, name: str) -> Iterator[str]:
    yield table.find(kind, name).factory
    if kind == "drafter":
        yield from (point.value for point in entry_points(group=catalogue.GROUP, name=name))
        yield from (each for each in [catalogue.NETWORKS.get(name)] if isinstance(each, str))


def _files(name: str) -> list[Path]:
    """Return the files of a module, or of all modules in a folder; none for another's package."""
    for root in _ROOTS:
        path = root.joinpath(*name.split("."))
        if path.is_dir():
            return sorted(path.rglob("*.py"))
        if (file := path.with_name(f"{path.name}.py")).exists():
            return [file]
    return []


@cache
def _with_imports(module: str) -> frozenset[Path]:
    found: dict[str, Path] = {}
    left = [module]
    while left:
        name = left.pop()
        path = _ROOTS[0].joinpath(*name.split(".")).with_suffix(".py")
        if name in found or not path.exists():
            continue
        found[name] = path
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_METHODS):
                left += [str(node.module), *(f"{node.module}.{each.name}" for each in node.names)]
    return frozenset(found.values())


@cache
def _shape(path: Path) -> str:
    """Return a digest of a module's syntax, alike for all versions of Python."""
    module = ast.parse(path.read_text("utf-8"))
    if _PACKAGE not in path.parents:
        module.body = [node for node in module.body if not _tells(node)]

    def shape(node: object) -> str:
        if isinstance(node, list):
            return "".join(map(shape, node))
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return ""  # a docstring
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({','.join(f'{n}={shape(v)}' for n, v in fields)})"

    return hashlib.sha256(shape(module).encode()).hexdigest()


def _tells(node: ast.stmt) -> bool:
    # Whether a part of a script only reads the command line, or puts figures in words.
    names = [getattr(node, "name", "")]
    if isinstance(node, ast.Assign):
        names = [getattr(each, "id", "") for each in node.targets]
    return isinstance(node, ast.Import | ast.ImportFrom | ast.If) or not _TELLING.isdisjoint(names)


@cache
def _bytes(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Names in backticks, in docstrings and comments of the package, and what they stand for."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from tests.structure import MODULES, ROOT, TOP

FOREIGN = {
    "CXX": "the environment variable of compilers",
    "GGUFReader": "of the package gguf",
    "medusa_generate": "of Medusa's own code",
    "mc_sim_7b_63": "a tree in Medusa's own code",
    "kmask2_4layer_tree": "a tree in Hydra's own code",
    "medusa/model/medusa_choices.py": "a file of Medusa",
    "models/choices.py": "a file of Hydra",
    "attn_factor": "of llama.cpp",
    "enable_thinking": "an argument of chat templates",
    "model_type": "a key of configs",
    "topk": "of torch",
    "rope_freqs.weight": "a tensor in GGUF files",
}
"""Names that stand for something outside this repository."""

_PLAIN = re.compile(r"[A-Za-z_]\w+(\.\w+)*(?=(\(.*\))?$)")
_PATH = re.compile(r"[\w/.-]*/[\w/.-]+|\w+\.(py|cpp|hpp|md|toml)")
_COMMAND = re.compile(r"paceline( [a-z-]+)+")
_OPTION = re.compile(r"--[a-z-]+")
_SAMPLE = re.compile(r"(.*/)?(NAME|FILE).*")


class Mention(NamedTuple):
    """A name in backticks, and where it stands."""

    module: str
    line: int
    text: str


def _texts(module: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, with their first lines."""
    source = MODULES[module].read_text()
    for node in _nodes(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    if not re.search("#.*`", source):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def mentions() -> Iterator[Mention]:
    """All spans in backticks."""
    for module in MODULES:
        for line, text in _texts(module):
            for found in re.finditer(r"`([^`]+)`", text):
                at = line + text.count("\n", 0, found.start())
                yield Mention(module, at, " ".join(found[1].split()))


@cache
def _nodes(module: str) -> tuple[ast.AST, ...]:
    """The module's syntax, itself first."""
    return tuple(ast.walk(ast.parse(MODULES[module].read_text())))


@cache
def _named(module: str) -> tuple[set[str], set[str]]:
    """Names and strings in a module's code, and those of them that others can name.

    Strings are keys of files and messages; others can name classes, functions, attributes, and
    constants.
    """
    used: set[str] = set()
    made: set[str] = set()
    for node in _nodes(module):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            made.add(node.name)
        elif isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            (made if isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.Constant):
            used.add(str(node.value))
            if str(node.value).startswith("PACELINE_"):
                made.add(str(node.value))
        elif isinstance(node, (ast.arg, ast.keyword)):
            used.add(str(node.arg))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made.add(node.target.id)
        elif isinstance(node, ast.alias):
            used.update(node.name.split("."), {node.asname or node.name})
    for node in getattr(_nodes(module)[0], "body", ()):
        if isinstance(node, ast.Assign):
            made |= {part.id for part in node.targets if isinstance(part, ast.Name)}
    return used | made, made


@cache
def _package() -> set[str]:
    """What can be named from anywhere: modules, what they make, methods, types and calls in C++."""
    found = {part for module in MODULES for part in module.split(".")} | {"paceline"}
    for module in MODULES:
        found |= _named(module)[1]
    found |= set(re.findall(r"`([\w-]+)", (TOP / "docs" / "methods.md").read_text()))
    for path in (ROOT / "native").rglob("*.[ch]pp"):
        for pair in re.findall(r"(?:struct|class|enum) (\w+)|(\w+)\(", path.read_text()):
            found |= set(pair)
    return found


@cache
def _files() -> str:
    """Paths of the repository, a line each, with and without their suffixes."""
    found = [path for top in ("src", "benchmarks", "docs") for path in (TOP / top).rglob("*")]
    found += TOP.glob("*.*")
    return "".join(
        f"/{path.relative_to(TOP)}\n/{path.with_suffix('').relative_to(TOP)}\n" for path in found
    )


@cache
def _commands() -> str:
    return (TOP / "docs" / "cli.md").read_text()


@cache
def _members(name: str) -> set[str]:
    """What classes of this name have, and their bases; empty where the package has none."""
    found: set[str] = set()
    for module in MODULES:
        if name in _named(module)[1]:
            for node in _nodes(module):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    for base in node.bases:
                        found |= _members(ast.unparse(base).split("[")[0])
                    for part in ast.walk(node):
                        found |= {
                            str(getattr(part, key, "")) for key in ("name", "attr", "id", "arg")
                        }
    return found


def resolves(mention: Mention) -> bool:
    """Whether a mention names something that there is; True where it is no name but a formula."""
    module, _, text = mention
    if text in FOREIGN or _SAMPLE.fullmatch(text):
        return True
    if _COMMAND.fullmatch(text):
        return f"## {text}\n" in _commands()
    if _OPTION.fullmatch(text):
        return f"`{text}" in _commands()
    if _PATH.fullmatch(text):
        return f"/{text}\n" in _files()
    if text in _named(module)[0] or not (plain := _PLAIN.match(text)):
        return True
    names = plain[0].split(".")
    if not all(name in _package() or name in _named(module)[0] for name in names):
        return False
    return all(not _members(owner) or name in _members(owner) for owner, name in pairwise(names))


if __name__ == "__main__":
    for each in mentions():
        if not resolves(each):
            print(*each)

"""Every method by name: the built-in table, and entry points that plugins fill.

A plugin package declares entry points in the group `paceline.methods`, each loading to a `Method`.
Built-in methods are `Method` objects too; nothing else distinguishes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from paceline.built_in import BUILT_IN
from paceline.errors import InvalidOption
from paceline.method import Kind, Method

__all__ = ["BUILT_IN", "GROUP", "Kind", "Method", "find", "methods", "names"]

GROUP = "paceline.methods"


@cache
def methods() -> tuple[Method, ...]:
    """Built-in methods and those of installed plugins, which may not reuse a name."""
    found = {(method.kind, method.name): method for method in BUILT_IN}
    for point in entry_points(group=GROUP):
        try:
            method = point.load()
        except Exception as error:
            raise InvalidOption(
                f"plugin {point.value} cannot be loaded ({error}): mend or uninstall it"
            ) from error
        if not isinstance(method, Method):
            raise InvalidOption(f"plugin {point.value} is not a paceline.registry.Method")
        if (method.kind, method.name) in found:
            raise InvalidOption(f"plugin {point.value} reuses the {method.kind} '{method.name}'")
        found[method.kind, method.name] = method
    return tuple(found.values())


def names(kind: Kind) -> tuple[str, ...]:
    """Names of all methods of a kind."""
    return tuple(method.name for method in methods() if method.kind == kind)


def find(kind: Kind, name: str) -> Method:
    """The method of that kind and name.

    Raises:
        InvalidOption: there is none; the message lists what there is.
    """
    for method in _of(kind):
        if method.name == name:
            return method
    raise InvalidOption(f"{kind} {name!r} is unknown: use {', '.join(names(kind))}")


def _of(kind: Kind) -> Iterator[Method]:
    return (method for method in methods() if method.kind == kind)

"""Registry of methods: the built-in table, and entry points in group `paceline.methods`."""

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
    """Return built-in methods and those of plugins; InvalidOption if a plugin is unusable."""
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
    return tuple(method.name for method in methods() if method.kind == kind)


def find(kind: Kind, name: str) -> Method:
    """Return the method of that kind and name; InvalidOption if there is none."""
    for method in _of(kind):
        if method.name == name:
            return method
    raise InvalidOption(f"{kind} {name!r} is unknown: use {', '.join(names(kind))}")


def _of(kind: Kind) -> Iterator[Method]:
    return (method for method in methods() if method.kind == kind)

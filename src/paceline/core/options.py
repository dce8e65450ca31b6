"""Options: help and bounds that stand at the fields of a dataclass, and those of methods, from text
to constructor arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import cache
from typing import Any, Literal, NamedTuple, NewType, get_args, get_origin, get_type_hints

from paceline.errors import InvalidOption, PacelineError

# An option that names a file: given where the engine is made, never in a request.
File = NewType("File", str)

# Parser and description by the type that a constructor declares.
_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    str: (str, "text"),
    File: (str, "a file"),
}


def arguments(
    factory: type, kind: str, options: Mapping[str, str], *given: str, files: bool = True
) -> dict[str, Any]:
    """Parse options by the types that a constructor declares, except for the `given` arguments.

    Raises InvalidOption if the constructor has no such option, the text has the wrong type, or it
    names a file and `files` are not allowed.
    """
    if not options:
        return {}
    name = getattr(factory, "name", factory.__name__)
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]  # of the class, not an instance
    parameters = inspect.signature(factory).parameters
    readers = {
        each: _reader(hints[each]) for each in parameters if each in hints and each not in given
    }
    known = {each: reader for each, reader in readers.items() if reader is not None}
    out = {}
    for key, text in options.items():
        if key not in known:
            choices = f"use {', '.join(known)}" if known else "it has none"
            raise InvalidOption(f"{kind} '{name}' has no option {key!r}: {choices}")
        read, value = known[key]
        try:
            out[key] = read(text)
        except (ValueError, KeyError) as error:
            raise InvalidOption(
                f"option {key} of {kind} '{name}' must be {value}, not {text!r}"
            ) from error
        if not files and hints[key] is File and text != parameters[key].default:
            raise InvalidOption(
                f"option {key} of {kind} '{name}' names a file, as no request may: leave it out"
            )
    return out


def _reader(hint: Any) -> tuple[Callable[[str], Any], str] | None:
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return dict(zip(choices, choices, strict=True)).__getitem__, " or ".join(choices)
    return _READERS.get(hint)


def within(name: str, value: float, low: float, high: float, note: str = "") -> None:
    """Raise InvalidOption unless `low <= value <= high`; NaN is in no range. `note` explains."""
    if not low <= value <= high:
        raise InvalidOption(
            f"{name} must be from {low} to {high}{note and ', '}{note}, not {value!r}"
        )


def require(good: bool, name: str, value: object, rule: str) -> None:
    """Raise InvalidOption unless `good`; `rule` describes valid values."""
    if not good:
        raise InvalidOption(f"{name} must be {rule}, not {value!r}")


class Allowed(NamedTuple):
    """Values that a field may have besides its default: `Annotated[int, "Help.", at_least(1)]`."""

    holds: Callable[[Any], bool]
    rule: str


def at_least(least: int, kind: Any = int) -> Allowed:
    return Allowed(lambda value: isinstance(value, kind) and value >= least, f"{least} or more")


def among(*names: str) -> Allowed:
    return Allowed(names.__contains__, " or ".join(names))


NAMED = Allowed(bool, "a name, or left out")


@cache
def _annotated(options: Any) -> list[tuple[Field[Any], tuple[Any, ...]]]:
    # Fields and what is said beside their types.
    hints = get_type_hints(options, include_extras=True)
    return [(each, hints[each.name].__metadata__) for each in fields(options)]


def described(options: type) -> list[tuple[str, str]]:
    """Return names and help of the fields of a dataclass, which stands first beside their types."""
    return [(each.name, said[0]) for each, said in _annotated(options)]


def check_fields(options: Any) -> None:
    """Raise InvalidOption unless every field has its default or is within its bounds."""
    kind: Any = type(options)
    for each, said in _annotated(kind):
        value = getattr(options, each.name)
        for bound in said[1:]:
            require(value is each.default or bound.holds(value), each.name, value, bound.rule)


def check_text(name: str, value: Any, error: type[PacelineError] = InvalidOption) -> None:
    """Raise `error` if a text, or one inside of lists and mappings, has half a character.

    Such come from bytes that are no UTF-8, and from halves of UTF-16 pairs in JSON.
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as found:
            raise error(
                f"{name} is no UTF-8 text ({found.object[found.start]!a} at character "
                f"{found.start}): convert it first"
            ) from None
    elif isinstance(value, Mapping):
        check_text(name, list(value), error)
        check_text(name, list(value.values()), error)
    elif isinstance(value, list | tuple):
        for each in value:
            check_text(name, each, error)

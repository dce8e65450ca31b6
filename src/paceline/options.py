"""How options of methods are written, `NAME:key=value,key=value`, and turned into arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.errors import InvalidOption

_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    str: (str, "text"),
}
"""How the text of an option becomes a value of the type that its constructor asks for."""


def split_options(text: str, kind: str) -> tuple[str, dict[str, str]]:
    """The name and the options in `NAME` or `NAME:key=value,key=value`.

    Args:
        text: what the user wrote.
        kind: what it names, for messages: "verifier", "drafter", "controller".

    Raises:
        InvalidOption: something after the colon is no `key=value`, or a key stands there twice.
    """
    name, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    for entry in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not key or not equals or key in options:
            raise InvalidOption(
                f"{kind} option {entry!r} is no key=value, or is given twice: write "
                f"{name}:key=value,key=value"
            )
        options[key] = value
    return name, options


def arguments(factory: type, kind: str, options: Mapping[str, str], *given: str) -> dict[str, Any]:
    """Keyword arguments for a class, read from text by the types that its constructor declares.

    Args:
        factory: the class.
        kind: of the method, for messages.
        options: what the user set.
        *given: arguments that are not the user's to set.

    Raises:
        InvalidOption: the constructor has no such option, or the text is no value of its type.
    """
    if not options:
        return {}
    name = getattr(factory, "name", factory.__name__)
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]  # of the class, not an instance
    readers = {
        each: _reader(hints[each])
        for each in inspect.signature(factory).parameters
        if each in hints and each not in given
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
    return out


def _reader(hint: Any) -> tuple[Callable[[str], Any], str] | None:
    """What reads a value of a type from text, and how messages call such a value."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return dict(zip(choices, choices, strict=True)).__getitem__, " or ".join(choices)
    return _READERS.get(hint)


def require(good: bool, name: str, value: object, rule: str) -> None:
    """Raise InvalidOption unless a parameter is `good`; `rule` says what it must be."""
    if not good:
        raise InvalidOption(f"{name} must be {rule}, not {value!r}")

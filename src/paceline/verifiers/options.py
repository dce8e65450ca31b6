"""What a rule may be built from, and how its options are written: `NAME:key=value,key=value`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from paceline.errors import InvalidOption
from paceline.types import Capabilities

_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    str: (str, "text"),
}
"""How the text of an option becomes a value of the type that its constructor asks for."""


@dataclass(frozen=True, slots=True)
class VerifierContext:
    """What a verifier may be built from.

    Attributes:
        target: capabilities of the target whose drafts it verifies.
        model: fingerprint of the target's weights, for rules with trained heads.
        encode: text to token ids, for rules with prompts of their own.
        options: what the user set, as text.
    """

    target: Capabilities
    model: str
    encode: Callable[[str], list[int]]
    options: Mapping[str, str] = field(default_factory=dict)


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options in `NAME` or `NAME:key=value,key=value`.

    Raises:
        InvalidOption: something after the colon is no `key=value`, or a key stands there twice.
    """
    name, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    for entry in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not key or not equals or key in options:
            raise InvalidOption(
                f"verifier option {entry!r} is no key=value, or is given twice: write "
                f"{name}:key=value,key=value"
            )
        options[key] = value
    return name, options


def arguments(factory: type, options: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments for a class, read from text by the types that its constructor declares.

    Raises:
        InvalidOption: the constructor has no such option, or the text is no value of its type.
    """
    name = getattr(factory, "name", factory.__name__)
    hints = get_type_hints(factory.__init__)  # type: ignore[misc]  # of the class, not an instance
    known = {
        each: hints[each]
        for each in inspect.signature(factory).parameters
        if hints.get(each) in _READERS
    }
    out = {}
    for key, text in options.items():
        if key not in known:
            choices = f"use {', '.join(known)}" if known else "it has none"
            raise InvalidOption(f"verifier '{name}' has no option {key!r}: {choices}")
        read, kind = _READERS[known[key]]
        try:
            out[key] = read(text)
        except (ValueError, KeyError) as error:
            raise InvalidOption(
                f"option {key} of verifier '{name}' must be {kind}, not {text!r}"
            ) from error
    return out


def require(good: bool, name: str, value: object, rule: str) -> None:
    """Raise InvalidOption unless a parameter is `good`; `rule` says what it must be."""
    if not good:
        raise InvalidOption(f"{name} must be {rule}, not {value!r}")

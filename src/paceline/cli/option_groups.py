"""Options that several commands take, declared once: a dataclass whose fields are options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Spread arguments that are dataclasses over the command line, field by field.

    A field says type, help and default as an argument does, and stands where its dataclass stood.
    Fields that `__init__` does not take are no options. Only keyword arguments may come behind.

    Raises:
        ValueError: two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _options(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    spread = Signature(parameters)

    @wraps(command)
    def flat(*args: Any, **options: Any) -> None:
        given = spread.bind(*args, **options)
        made = {
            name: group(
                **{
                    each.name: given.arguments.pop(each.name)
                    for each in _taken(group)
                    if each.name in given.arguments
                }
            )
            for name, group in groups.items()
        }
        command(*given.args, **given.kwargs, **made)

    flat.__signature__ = spread  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def _taken(group: Any) -> list[Field[Any]]:
    return [each for each in fields(group) if each.init]


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    own = signature(group).parameters  # knows the defaults
    return [
        own[each.name].replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
        for each in _taken(group)
    ]

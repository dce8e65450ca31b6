"""Blocks of options that several commands have: a command takes each as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import update_wrapper, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from paceline.cli import options as o
from paceline.core.target import RuntimeOptions

if TYPE_CHECKING:
    from paceline.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, and where it runs."""

    model: o.Model = "smollm2-135m"
    runtime: o.Runtime = "auto"
    device: o.Device = None
    precision: o.Precision = None
    layout: o.TreeLayout = None


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """How drafts are verified, and how large they are."""

    verifier: o.Verifier = "auto"
    controller: o.Controller = "auto"
    nodes: o.Nodes = None
    depth: o.Depth = None
    draft_model: o.DraftModel = None


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """What decoding may use."""

    threads: o.Threads = None
    max_context: o.MaxContext = None
    kv_precision: o.KvPrecision = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """From logits to the law of a token."""

    temperature: o.Temperature = 0.0
    top_k: o.TopK = 0
    top_p: o.TopP = 1.0
    min_p: o.MinP = 0.0
    repetition_penalty: o.RepetitionPenalty = 1.0


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer sees it: every field of a block is an option, in the block's place."""
    hints = get_type_hints(command, include_extras=True)
    blocks: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []

    def option(name: str, default: Any, hint: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))

    for name, parameter in inspect.signature(command).parameters.items():
        if name not in blocks:
            option(name, parameter.default, hints[name])
            continue
        inside = get_type_hints(blocks[name], include_extras=True)
        for field in fields(blocks[name]):
            option(field.name, field.default, inside[field.name])

    def call(**given: Any) -> None:
        built = {
            name: block(**{field.name: given.pop(field.name) for field in fields(block)})
            for name, block in blocks.items()
        }
        command(**given, **built)

    update_wrapper(call, command, assigned=("__module__", "__name__", "__doc__"), updated=())
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def runtime_options(place: ModelOptions, room: ResourceOptions) -> RuntimeOptions:
    """Checked options for loading a model.

    Raises:
        InvalidOption: as `options.runtime_options`.
    """
    return o.runtime_options(
        *(place.device, place.precision, place.layout),
        *(room.threads, room.max_context),
        kv_precision=room.kv_precision,
    )


def check_names(place: ModelOptions, rules: SpeculationOptions, *drafters: str) -> None:
    """Find unknown methods before anything is downloaded or loaded.

    Raises:
        InvalidOption: a name is unknown; the message lists what there is.
    """
    o.check_names(place.runtime, rules.verifier, rules.controller, *drafters)


def load(
    place: ModelOptions,
    room: ResourceOptions,
    drafter: str,
    rules: SpeculationOptions,
    max_batch: int,
) -> Engine:
    """The engine that the options ask for.

    Raises:
        PacelineError: as `paceline.load`.
    """
    from paceline.registry import loading

    return loading.load(
        **asdict(place), **asdict(room), drafter=drafter, **asdict(rules), max_batch=max_batch
    )


# Options that several commands take, declared once:


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

"""Blocks of options that several commands have: a command takes each as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, get_type_hints

from paceline.cli import options as o
from paceline.target import RuntimeOptions

if TYPE_CHECKING:
    from paceline.engine import Engine


@dataclass(frozen=True, slots=True)
class Place:
    """Which model, and where it runs."""

    model: o.Model = "smollm2-135m"
    runtime: o.Runtime = "auto"
    device: o.Device = None
    precision: o.Precision = None
    layout: o.TreeLayout = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How drafts are verified, and how large they are."""

    verifier: o.Verifier = "auto"
    controller: o.Controller = "auto"
    nodes: o.Nodes = None
    depth: o.Depth = None
    draft_model: o.DraftModel = None


@dataclass(frozen=True, slots=True)
class Room:
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


def in_blocks(command: Callable[..., None]) -> Callable[..., None]:
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


def runtime_options(place: Place, room: Room) -> RuntimeOptions:
    """Checked options for loading a model.

    Raises:
        InvalidOption: as `options.runtime_options`.
    """
    return o.runtime_options(
        *(place.device, place.precision, place.layout),
        *(room.threads, room.max_context),
        kv_precision=room.kv_precision,
    )


def check_names(place: Place, rules: Rules, *drafters: str) -> None:
    """Find unknown methods before anything is downloaded or loaded.

    Raises:
        InvalidOption: a name is unknown; the message lists what there is.
    """
    o.check_names(place.runtime, rules.verifier, rules.controller, *drafters)


def load(place: Place, room: Room, drafter: str, rules: Rules, max_batch: int) -> Engine:
    """The engine that the options ask for.

    Raises:
        PacelineError: as `paceline.load`.
    """
    from paceline import loading

    return loading.load(
        **asdict(place), **asdict(room), drafter=drafter, **asdict(rules), max_batch=max_batch
    )

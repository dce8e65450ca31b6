"""Options that several commands share, the dataclasses that group them, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import reduce, wraps
from inspect import Parameter, Signature, signature
from operator import or_
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from paceline.cli.output import remark
from paceline.core.options import described
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.models.generation import completed, told
from paceline.models.pictures import Picture
from paceline.registry.options import Options
from paceline.sampling.processors import sampler_names

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.models.source import ModelSource

Number = TypeVar("Number", int, float)


_HELP = dict(described(Options))
Model = Annotated[str, _HELP["model"]]
Runtime = Annotated[str, _HELP["runtime"]]
Precision = Annotated[str | None, _HELP["precision"]]
Threads = Annotated[int | None, _HELP["threads"]]
MaxNewTokens = Annotated[int, "Most tokens to generate."]
Temperature = Annotated[float, "0 is greedy."]
PresencePenalty = Annotated[float, "Subtracted once for tokens in the output."]
FrequencyPenalty = Annotated[float, "Subtracted per occurrence in the output."]
Seed = Annotated[int, "Keys all randomness."]
Stop = Annotated[list[str] | None, "String that ends the text; repeatable."]
IgnoreEos = Annotated[bool, "Go on after end tokens."]
StopLoops = Annotated[bool, "End a text that has come to repeat itself."]
Endless = Annotated[
    bool, "Go on beyond the context: the first tokens stay, the oldest others are forgotten."
]
System = Annotated[str | None, "System message."]
Image = Annotated[list[Path] | None, "A picture to ask about: PNG, JPEG or WebP; repeatable."]
LiveBy = Annotated[
    str | None,
    "Method of live captions: careless-whisper, with its --adapter; in transcribe also "
    "cache-aware-conformer, with its weights as --model.",
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Prompts = Annotated[
    Path | None, "Spec-Bench JSONL: question_id, category, turns. Default: built-in mix."
]
Results = Annotated[Path | None, "Directory for results; resumes what was interrupted."]
Record = Annotated[Path | None, "Result file of the documentation to write, too."]
Data = Annotated[Path, "Folder of `paceline train data`."]
Folders = Annotated[
    list[Path],
    typer.Option("--data", help="Folder of `paceline train data`; several, one each time."),
]
DATA = [Path("data")]
"""Where `paceline train data` writes by default."""
KeepFeatures = Annotated[Path | None, "Folder to keep hidden states in, for several runs."]


class Takes:
    """Options of an engine that a command takes, in this order: `Annotated[Options, Takes(...)]`.

    `defaults` are the command's own.
    """

    def __init__(self, *names: str, **defaults: Any) -> None:
        self.names, self.defaults = names, defaults


MODEL = ("model", "runtime", "device", "precision", "adapter", "denoiser")
COMPUTE = ("runtime", "device", "precision", "threads")
VERIFICATION = ("verifier", "controller", "nodes", "depth", "draft_model")
SPECULATION = ("drafter", *VERIFICATION)
CANVAS = ("sampler", "block", "canvas_cache")
LIMITS = ("threads", "max_context", "kv_precision")
CHATS = ("mmproj", "chat_template", "fold_system", "generation_config")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Processing of logits to the distribution of a token; what is None is left to the model."""

    temperature: Annotated[
        float | None, "0 is greedy, and the default but for the model's own."
    ] = None
    top_k: Annotated[int | None, "Sample from the k most likely tokens; 0 is off."] = None
    top_p: Annotated[float | None, "Sample from the most likely tokens of this mass."] = None
    min_p: Annotated[float | None, "Drop tokens below this share of the most likely one."] = None
    repetition_penalty: Annotated[float | None, "For tokens in prompt or output; 1 is off."] = None
    repeat_last_n: Annotated[int | None, "Tokens that penalties look at; -1: all."] = None
    dry_multiplier: Annotated[float | None, "DRY: taken off what goes on repeating."] = None
    dry_base: Annotated[float | None, "DRY: growth per repeated token; 1.75."] = None
    dry_allowed_length: Annotated[int | None, "DRY: repetition that is free; 2."] = None
    dry_penalty_last_n: Annotated[int | None, "DRY: tokens it looks at; -1: all."] = None
    dry_sequence_breakers: Annotated[list[str] | None, "DRY: a text; repeatable."] = None
    typical_p: Annotated[float | None, "Keep the most typical tokens of this mass."] = None
    top_n_sigma: Annotated[float | None, "Drop logits so many deviations down."] = None
    dynatemp_range: Annotated[float | None, "How far temperature moves."] = None
    dynatemp_exponent: Annotated[float | None, "Of the share of entropy; 1."] = None
    xtc_probability: Annotated[float | None, "XTC: how often it drops tokens."] = None
    xtc_threshold: Annotated[float | None, "XTC: drops those above but one; 0.1."] = None
    mirostat: Annotated[int | None, "1 or 2 hold the text's surprise; 0 is off."] = None
    mirostat_tau: Annotated[float | None, "Mirostat: surprise in bits; 5."] = None
    mirostat_eta: Annotated[float | None, "Mirostat: rate of adapting; 0.1."] = None
    samplers: Annotated[str | None, "Their order, parted by ;. Others are off."] = None

    def given(self) -> dict[str, Any]:
        """Return fields of `SamplingParams` that are given."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for name, read in ("dry_sequence_breakers", tuple), ("samplers", sampler_names):
            if name in given:
                given[name] = read(given[name])
        return given

    def complete(self, params: SamplingParams, engine: Engine) -> SamplingParams:
        """Return parameters with what the model's files ask for where no option says otherwise."""
        params, asked = completed(params, engine.defaults, self.given())
        if asked:
            remark(
                f"as the model's files ask: {told(asked)} (--no-generation-config leaves it out)"
            )
        return params


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Make options of arguments with help beside their type, and of the fields of dataclasses.

    A field gives type, help and default of an option, in the place of its dataclass. Only keyword
    arguments may come after one. ValueError if two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        group, *said = get_args(hints[name]) or (hints[name],)
        if is_dataclass(group):
            own = _parameters(group, *said)
            groups[name] = group, [each.name for each in own]
            parameters += own
        else:
            option = _option(name, hints[name], parameter.default)
            parameters.append(parameter.replace(annotation=option))
    spread = Signature(parameters)

    @wraps(command)
    def flat(*args: Any, **options: Any) -> None:
        given = spread.bind(*args, **options)
        names = given.arguments
        made = {}
        for name, (group, taken) in groups.items():
            values = {each: names.pop(each) for each in taken if each in names}
            try:
                made[name] = group(**values)
            except InvalidOption as error:
                raise InvalidOption(_as_typed(str(error), values)) from error
        command(*given.args, **given.kwargs, **made)

    flat.__signature__ = spread  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def _as_typed(message: str, names: Iterable[str]) -> str:
    # Errors begin with the name of a field.
    name, *_ = message.split(" ", 1)
    return f"--{name.replace('_', '-')}{message[len(name) :]}" if name in names else message


def _parameters(group: Any, takes: Takes | None = None) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    own = signature(group).parameters  # knows the defaults
    every = (each.name for each in fields(group) if each.init)
    names = list(every) if takes is None else takes.names
    defaults = {} if takes is None else takes.defaults
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=defaults.get(name, own[name].default),
            annotation=_option(name, hints[name], own[name].default),
        )
        for name in names
    ]


def _option(name: str, hint: Any, default: Any) -> Any:
    # Of types, those that can be typed are left.
    kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if not said or not isinstance(said[0], str):
        return hint
    flag = name.replace("_", "-")
    names = [] if kind is not bool else [f"--{flag}/--no-{flag}" if default else f"--{flag}"]
    if get_origin(kind) is UnionType:
        kinds = (each for each in get_args(kind) if get_origin(each) is not Mapping)
        kind = reduce(or_, kinds)
    return Annotated[kind, typer.Option(*names, help=said[0])]


def check_at_least_one(**counts: int | None) -> None:
    """Raise InvalidOption if an option is given and below 1."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidOption(f"--{name.replace('_', '-')} must be 1 or more, not {value}")


def load(asked: Options) -> tuple[Engine, ModelSource]:
    """Load the engine that the options ask for; errors as of `paceline.load`."""
    from paceline.registry import loading

    loaded = loading.load_model(asked)
    return loading.make_engine(loaded, asked), loaded.source


def numbers(
    option: str, text: str, kind: Callable[[str], Number], least: float = -math.inf
) -> list[Number]:
    """Read numbers separated by commas; InvalidOption if one is none, or is below `least`."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        raise InvalidOption(f"{option} {text!r} is not numbers separated by commas") from None
    if not all(each >= least for each in found):
        raise InvalidOption(f"{option} takes numbers from {least:g} on, not {text!r}")
    return found


def pictures(images: Iterable[Path]) -> list[dict[str, Any]]:
    """Return pictures as parts of a message; PromptError if one cannot be read."""
    return [{"type": "image", "image": Picture.open(each.expanduser())} for each in images]

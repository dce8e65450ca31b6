"""Options that several commands share, the dataclasses that group them, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from paceline.cli.output import remark
from paceline.core.expressions import parse
from paceline.core.options import require
from paceline.core.target import RuntimeOptions
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.models.generation import completed, told
from paceline.registry import table as registry
from paceline.sampling.processors import sampler_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from paceline.engine.engine import Engine
    from paceline.models.source import ModelSource
    from paceline.training.trainer import Recipe

Number = TypeVar("Number", int, float)


def _said(text: str) -> Any:
    return typer.Option(help=text)


Model = Annotated[str, _said("smollm2-135m, a GGUF file, a Hugging Face directory, or a hub id.")]
Runtime = Annotated[str, _said("cpu, torch, transformers, reference or auto.")]
Device = Annotated[str | None, _said("cpu or cuda; default by runtime.")]
Precision = Annotated[
    str | None, _said("On cpu: file (weights as stored), int8, int4, fp32; else fp32 or bf16.")
]
Denoiser = Annotated[
    str | None,
    _said(
        "Facts of a diffusion checkpoint that its files do not say: "
        "mask=ID,attention=full|block|order,block=N,shift=true|false. Or rows: trained mask rows."
    ),
]
Drafter = Annotated[
    str,
    _said(
        "See `paceline methods`; none is plain decoding, A+B merges; auto is what `paceline "
        "tune` found."
    ),
]
Verifier = Annotated[
    str, _said("See `paceline methods`; auto is coupled. Options: NAME:key=value,...")
]
Controller = Annotated[
    str, _said("cost-model, fixed, or auto: fixed if --nodes or --depth is given.")
]
Nodes = Annotated[int | None, _said("Draft size in tokens.")]
Depth = Annotated[int | None, _said("Draft depth in tokens.")]
DraftModel = Annotated[str | None, _said("Model for --drafter draft-model.")]
Threads = Annotated[int | None, _said("CPU threads.")]
MaxContext = Annotated[int | None, _said("Longest sequence in tokens.")]
MaxNewTokens = Annotated[int, _said("Most tokens to generate.")]
Temperature = Annotated[float, _said("0 is greedy.")]
PresencePenalty = Annotated[float, _said("Subtracted once for tokens in the output.")]
FrequencyPenalty = Annotated[float, _said("Subtracted per occurrence in the output.")]
Seed = Annotated[int, _said("Keys all randomness.")]
Stop = Annotated[list[str] | None, _said("String that ends the text; repeatable.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after end tokens.")]
StopLoops = Annotated[
    bool, typer.Option("--stop-loops", help="End a text that has come to repeat itself.")
]
System = Annotated[str | None, _said("System message.")]
KvPrecision = Annotated[str | None, _said("Of the key-value cache on runtime cpu: fp16 or fp32.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Prompts = Annotated[
    Path | None, _said("Spec-Bench JSONL: question_id, category, turns. Default: built-in mix.")
]
Data = Annotated[Path, _said("Folder of `paceline train data`.")]
Folders = Annotated[
    list[Path],
    typer.Option("--data", help="Folder of `paceline train data`; several, one each time."),
]
DATA = [Path("data")]
"""Where `paceline train data` writes by default."""
Loss = Annotated[str, _said("cross-entropy, forward-kl, reverse-kl, jsd, tvd or tvd++.")]
TrainingPrecision = Annotated[str, _said("fp32 or bf16.")]
KeepFeatures = Annotated[Path | None, _said("Folder to keep hidden states in, for several runs.")]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Model and runtime."""

    model: Model = "smollm2-135m"
    runtime: Runtime = "auto"
    device: Device = None
    precision: Precision = None
    denoiser: Denoiser = None


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Runtime of commands that build no trees."""

    runtime: Runtime = "auto"
    device: Device = None
    precision: Precision = None
    threads: Threads = None


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """Verification and size of drafts."""

    verifier: Verifier = "auto"
    controller: Controller = "auto"
    nodes: Nodes = None
    depth: Depth = None
    draft_model: DraftModel = None


@dataclass(frozen=True, slots=True)
class CanvasOptions:
    """Models that fill a canvas."""

    sampler: Annotated[
        str | None,
        _said(
            "For models that fill a canvas, see `paceline methods`: RULE, WRAPPER>RULE, or "
            "autoregressive."
        ),
    ] = None
    block: Annotated[int | None, _said("Places that are filled before those right of them.")] = None
    canvas_cache: Annotated[
        str | None, _said("Which keys of a canvas are kept, see `paceline methods`.")
    ] = None


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """Limits of decoding."""

    threads: Threads = None
    max_context: MaxContext = None
    kv_precision: KvPrecision = None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a model's files are followed in chats."""

    chat_template: Annotated[
        str | None, _said("In place of the model's: a Jinja file, or the text itself.")
    ] = None
    fold_system: Annotated[
        bool,
        typer.Option(
            "--fold-system",
            help="Put system messages before the first user turn, if the template takes none.",
        ),
    ] = False
    generation_config: Annotated[
        bool,
        typer.Option(
            "--generation-config/--no-generation-config",
            help="Sampling that is not given is what the model's files ask for.",
        ),
    ] = True


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Processing of logits to the distribution of a token; what is None is left to the model."""

    temperature: Annotated[
        float | None, _said("0 is greedy, and the default but for the model's own.")
    ] = None
    top_k: Annotated[int | None, _said("Sample from the k most likely tokens; 0 is off.")] = None
    top_p: Annotated[float | None, _said("Sample from the most likely tokens of this mass.")] = None
    min_p: Annotated[
        float | None, _said("Drop tokens below this share of the most likely one.")
    ] = None
    repetition_penalty: Annotated[
        float | None, _said("For tokens in prompt or output; 1 is off.")
    ] = None
    repeat_last_n: Annotated[int | None, _said("Tokens that penalties look at; -1: all.")] = None
    dry_multiplier: Annotated[float | None, _said("DRY: taken off what goes on repeating.")] = None
    dry_base: Annotated[float | None, _said("DRY: growth per repeated token; 1.75.")] = None
    dry_allowed_length: Annotated[int | None, _said("DRY: repetition that is free; 2.")] = None
    dry_penalty_last_n: Annotated[int | None, _said("DRY: tokens it looks at; -1: all.")] = None
    dry_sequence_breakers: Annotated[list[str] | None, _said("DRY: a text; repeatable.")] = None
    typical_p: Annotated[float | None, _said("Keep the most typical tokens of this mass.")] = None
    top_n_sigma: Annotated[float | None, _said("Drop logits so many deviations down.")] = None
    dynatemp_range: Annotated[float | None, _said("How far temperature moves.")] = None
    dynatemp_exponent: Annotated[float | None, _said("Of the share of entropy; 1.")] = None
    xtc_probability: Annotated[float | None, _said("XTC: how often it drops tokens.")] = None
    xtc_threshold: Annotated[float | None, _said("XTC: drops those above but one; 0.1.")] = None
    mirostat: Annotated[int | None, _said("1 or 2 hold the text's surprise; 0 is off.")] = None
    mirostat_tau: Annotated[float | None, _said("Mirostat: surprise in bits; 5.")] = None
    mirostat_eta: Annotated[float | None, _said("Mirostat: rate of adapting; 0.1.")] = None
    samplers: Annotated[str | None, _said("Their order, parted by ;. Others are off.")] = None

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


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Recipe of drafter networks."""

    vocabulary: Annotated[int, _said("Tokens that may be drafted.")] = 8192
    loss: Loss = "forward-kl"
    batch_tokens: Annotated[int, _said("Tokens per update.")] = 2048
    rate: Annotated[float, _said("Highest learning rate of matrices (Muon).")] = 0.02
    prompt_weight: Annotated[
        float, _said("Weight of prompt tokens, which the target did not write.")
    ] = 0.1
    on_policy: Annotated[
        float, _said("Share of batches that teach on the drafter's own drafts.")
    ] = 0.0
    training_precision: TrainingPrecision = "bf16"
    seed: Seed = 0
    model: Model = "smollm2-135m"

    def recipe(self, tokens: int, seed: int | None = None) -> Recipe:
        """Return the recipe of a run on so many tokens; InvalidOption for values out of range."""
        from paceline.training.trainer import Recipe

        return Recipe(
            tokens,
            self.loss,
            self.batch_tokens,
            matrix_rate=self.rate,
            vector_rate=self.rate / 10,
            prompt_weight=self.prompt_weight,
            precision=self.training_precision,
            seed=self.seed if seed is None else seed,
            on_policy=self.on_policy,
        )

    @property
    def words(self) -> str:
        """The options as on a command line, without paths."""
        return " ".join(f"--{k.replace('_', '-')} {v}" for k, v in asdict(self).items())


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Spread arguments that are dataclasses over the command line, field by field.

    A field gives type, help and default of an option, in the place of its dataclass. Only keyword
    arguments may come after one. ValueError if two options have the same name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))
    spread = Signature(parameters)

    @wraps(command)
    def flat(*args: Any, **options: Any) -> None:
        given = spread.bind(*args, **options)
        names = given.arguments
        made = {
            name: group(
                **{f.name: names.pop(f.name) for f in _init_fields(group) if f.name in names}
            )
            for name, group in groups.items()
        }
        command(*given.args, **given.kwargs, **made)

    flat.__signature__ = spread  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def _init_fields(group: Any) -> list[Field[Any]]:
    return [each for each in fields(group) if each.init]


def _parameters(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    own = signature(group).parameters  # knows the defaults
    return [
        own[each.name].replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
        for each in _init_fields(group)
    ]


def runtime_options(*groups: DataclassInstance, **single: Any) -> RuntimeOptions:
    """Return checked options for loading a model, from groups of options and single ones.

    Raises:
        InvalidOption: an unknown cache precision, or a count below 1.
    """
    known = {each.name for each in fields(RuntimeOptions)}
    given = {k: v for group in groups for k, v in asdict(group).items() if k in known} | single
    for name in ("device", "precision"):
        require(given.get(name) != "", f"--{name}", "", "a name, or left out")
    check_at_least_one(threads=given.get("threads"), max_context=given.get("max_context"))
    options = RuntimeOptions(**given)
    if options.kv_precision is not None:
        from paceline.runtimes.cpu.target import check_kv_precision

        check_kv_precision(options.kv_precision)
    return options


def check_at_least_one(**counts: int | None) -> None:
    """Raise InvalidOption if an option is given and below 1."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidOption(f"--{name.replace('_', '-')} must be 1 or more, not {value}")


def check_names(
    runtime: str, *drafters: str, speculation: SpeculationOptions | None = None
) -> None:
    """Find unknown methods before anything is downloaded or loaded.

    Raises:
        InvalidOption: a name is unknown; the message lists what there is.
    """
    rules = speculation or SpeculationOptions()
    named: list[tuple[registry.Kind, str]] = [
        ("verifier", rules.verifier),
        ("controller", rules.controller),
        *(("drafter", each) for each in drafters),
    ]
    if runtime != "auto":
        registry.find("runtime", runtime)
    for kind, text in named:
        for name in parse(text, kind).names if text != "auto" else ():
            registry.find(kind, name)


def load(
    place: ModelOptions,
    options: RuntimeOptions,
    drafter: str,
    rules: SpeculationOptions,
    chats: ChatOptions,
    max_batch: int,
    canvas: CanvasOptions | None = None,
) -> tuple[Engine, ModelSource]:
    """Load the engine that the options ask for; errors as of `paceline.load`."""
    from paceline.registry import loading

    canvas = canvas or CanvasOptions()
    loading.check_canvas(canvas.sampler, canvas.canvas_cache)
    loaded = loading.load_model(
        place.model,
        runtime=place.runtime,
        options=options,
        denoiser=place.denoiser,
        chat_template=chats.chat_template,
        fold_system=chats.fold_system,
    )
    engine = loading.make_engine(
        loaded,
        drafter=drafter,
        **asdict(rules),
        **asdict(canvas),
        max_batch=max_batch,
        generation_config=chats.generation_config,
    )
    return engine, loaded.source


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

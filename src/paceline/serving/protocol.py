"""Bodies of requests, with the ranges that OpenAI documents and the usual extras of other servers.

Every body is checked whole before anything is done with it. `BadRequest` names the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from paceline.errors import PacelineError


class BadRequest(PacelineError):
    """A client's mistake: the field that is wrong, the HTTP status, and OpenAI's code, if any."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


TOO_LONG = "context_length_exceeded"
# Lists and objects in a body, and values: time in which what reads them holds Python's lock.
MOST_NESTED = 20_000
MOST_VALUES = 250_000
Limit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # -1 sets none
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Tops = Annotated[int, Meta(ge=0, le=20)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Tokens = list[Token]
Factor = Annotated[float, Meta(ge=0, le=1_000_000)]
Last = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Stop = Annotated[str, Meta(max_length=1000)]
Template = Annotated[str, Meta(max_length=100_000)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Json = dict[str, Any]


class StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SpeculationLimits(Struct, forbid_unknown_fields=True):
    """Limits of drafts. They change how fast an answer comes, and nothing else.

    `draft_token_ids` is what the client drafted of the answer; `once` ends it with the first
    verification: for devices that draft by themselves.
    """

    enabled: bool = True
    nodes: Count | None = None
    depth: Count | None = None
    draft_token_ids: Annotated[list[int], Meta(max_length=64)] | None = None
    once: bool = False


class TextPart(Struct):
    text: str
    type: Literal["text"] = "text"


class Prediction(Struct):
    """What the answer is likely to repeat. It changes how fast it comes, and nothing else."""

    content: str | list[TextPart]
    type: Literal["content"] = "content"

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class DenoisingOptions(Struct, forbid_unknown_fields=True):
    """How a model that fills a canvas does so; see docs/diffusion.md."""

    sampler: Annotated[str, Meta(max_length=1000)] | None = None
    block: Count | None = None
    cache: Annotated[str, Meta(max_length=200)] | None = None
    ending: Literal["fill", "cut", "hold"] = "fill"
    steps: bool = False
    prompt_rows: Literal["blocks", "causal"] = "blocks"


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """One of these; `disable_any_whitespace` makes JSON compact."""

    json: Json | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None


class ResponseFormat(Struct):
    """`json_schema` is {"name", "schema", "strict"}; other servers have the schema beside `type`.

    "json", "regex" and "grammar" are those of other servers, with `value` or a field of their own.
    """

    type: Literal["text", "json_object", "json_schema", "json", "regex", "grammar"]
    json_schema: Json | bool | None = None
    schema: Json | bool | str | None = None
    value: Any = None
    pattern: str | None = None
    grammar: str | None = None
    strict: bool | None = None
    name: str | None = None
    description: str | None = None


class Body(Struct, kw_only=True):
    """What all requests for text have in common. A null field is one that is left out."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    repeat_last_n: Last | None = None
    dry_multiplier: Factor | None = None
    dry_base: Annotated[float, Meta(ge=1, le=1_000_000)] | None = None
    dry_allowed_length: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    dry_penalty_last_n: Last | None = None
    dry_sequence_breakers: Annotated[list[str], Meta(max_length=64)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=1_000_000)] | None = None
    dynatemp_range: Factor | None = None
    dynatemp_exponent: Factor | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    mirostat: Literal[0, 1, 2] | None = None
    mirostat_tau: Factor | None = None
    mirostat_eta: Factor | None = None
    samplers: str | Annotated[list[str], Meta(max_length=64)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=64)] | None = None
    stop_token_ids: Tokens | None = None
    allowed_token_ids: Tokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Tops | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Limit | None = None
    resume_token_ids: Tokens | None = None
    endless: bool | Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    speculation: SpeculationLimits | None = None
    denoising: DenoisingOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Json | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: Json | bool | str | None = None
    metadata: Json | None = None
    user: str | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Several(Body, kw_only=True):
    """What chat and completions have in common."""

    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    n_predict: Limit | None = None
    return_sources: bool | None = None
    return_progress: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None


class ChatRequest(Several, kw_only=True):
    messages: Annotated[list[Json], Meta(min_length=1)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Tops | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    chat_template: Template | None = None
    chat_template_kwargs: Json | None = None
    documents: list[Json] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class CompletionRequest(Several, kw_only=True):
    prompt: str | list[str | Token | list[Token]]
    max_tokens: Limit | None = None
    logprobs: Tops | None = None
    echo: bool | None = None
    suffix: str | None = None


class TextOptions(Struct):
    format: ResponseFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(Body, kw_only=True):
    unheeded: ClassVar[tuple[str, ...]] = ("prompt_logprobs", "return_token_ids")
    input: str | list[Json]
    previous_response_id: str | None = None
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    top_logprobs: Tops | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Json | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: Json | None = None


class TokenizeRequest(Struct, kw_only=True):
    """Text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[Json] | None = None
    chat_template_kwargs: Json | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: Tokens


# Fields that would change the answer if they were obeyed: refused rather than ignored. A value that
# asks for nothing (null, false, empty, 1 of `best_of`) is let pass.
_NO_SAMPLER = "there is no such sampler: leave it out"
_REFUSED = {
    "best_of": "answers are not ranked: use n",
    "use_beam_search": "there is no beam search: leave it out",
    "functions": "this form is outdated: use tools",
    "function_call": "this form is outdated: use tool_choice",
    "conversation": "the server keeps no conversations: send the whole conversation as input",
    "background": "answers are given at once: leave it out",
    "prompt_embeds": "prompts are text or token ids: leave it out",
    "context": "the server keeps no conversations: use /api/chat",
    "mcp_servers": "the server calls no other servers: leave it out",
    "container": "the server runs no code: leave it out",
    "audio": "the server writes text only: leave it out",
    "prompt": "the server keeps no prompts: send the text itself",
    "web_search_options": "the server does not search: leave it out",
    **dict.fromkeys(
        ("chat_template", "template"), "the server uses the model's own template: leave it out"
    ),
    **dict.fromkeys(
        ("sampler_order", "sampler_priority", "temperature_last"), "name the order in samplers"
    ),
    **dict.fromkeys(("dynamic_temperature", "dynatemp_low", "dynatemp_high"), "use dynatemp_range"),
    **dict.fromkeys(("tfs", "tfs_z", "top_a", "epsilon_cutoff", "eta_cutoff"), _NO_SAMPLER),
    **dict.fromkeys(("smoothing_factor", "smoothing_curve", "penalty_alpha"), _NO_SAMPLER),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_repetition_penalty"), _NO_SAMPLER),
    "guidance_scale": _NO_SAMPLER,
}
_NOTHING: tuple[Any, ...] = (None, False, 0, 1, "", "none", [], {})
# Other names that presets have for a field, and values with another meaning under them.
_OTHER_NAMES: dict[str, tuple[str, dict[Any, Any]]] = {
    "repeat_penalty": ("repetition_penalty", {}),
    "repetition_penalty_range": ("repeat_last_n", {0: -1}),
    "dry_range": ("dry_penalty_last_n", {0: -1}),
    "typ_p": ("typical_p", {}),
    "mirostat_mode": ("mirostat", {}),
}
# Fields that may stand in `metadata`, as themselves or as JSON in a text: routers let that through.
_HIDDEN = ("speculation", "return_token_ids", "resume_token_ids")
# Defaults of other servers, which their routers send along. With these values they ask for nothing.
_NEUTRAL = {
    "no_stop_trim": False,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "best_of": 1,
    "truncate": False,
    "modalities": ["text"],
}
# Fields that are checked and change nothing here. They are named unless they ask for nothing.
_UNHEEDED: dict[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "verbose": (False,),
}
# Of escapes in JSON, half of a pair that stands alone: the decoder's words for it mislead.
_HALF = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]\w\w)|\\.")
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
T = TypeVar("T", bound=Struct)
_BUILDING = Lock()

_KINDS = ChatRequest, CompletionRequest, ResponsesRequest
FIELDS = frozenset(name for kind in _KINDS for name in kind.__struct_fields__)
"""Names of all fields of requests for text."""


def decode(kind: type[T], data: bytes, strict: bool = False) -> tuple[T, list[str]]:
    """Return the checked body, and the names of fields that are ignored.

    Raises:
        BadRequest: it is no JSON, a field is missing or out of range, or is not supported, or, if
            `strict`, is unknown.
    """
    if data.count(b"[") + data.count(b"{") > MOST_NESTED or data.count(b",") > MOST_VALUES:
        raise BadRequest(
            f"the body holds more than {MOST_NESTED} lists and objects, or {MOST_VALUES} values: "
            "send less",
            status=413,
        )
    try:
        fields = object_of(data)
    except NoObject as error:
        raise BadRequest(f"the body {error}") from error
    return checked(kind, fields, strict)


class NoObject(ValueError):
    """Bytes are no JSON object; the message goes on behind their name."""


def object_of(data: bytes) -> Json:
    """Return the JSON object that bytes of a client hold, or raise NoObject."""
    try:
        found = msgspec.json.decode(data)
    except RecursionError as error:
        raise NoObject("is JSON that is nested too deeply: flatten it") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        halves = [found[1] for found in _HALF.finditer(data) if found[1]]
        reason = f"{halves[0].decode()} is half of a UTF-16 pair" if halves else error
        raise NoObject(f"is no valid JSON ({reason}): mend it") from error
    if not isinstance(found, dict):
        raise NoObject("must be a JSON object")
    return found


def checked(
    kind: type[T], fields: Json, strict: bool = False, texts: bool = False
) -> tuple[T, list[str]]:
    """Return the body that fields make, which may change, and places of what is ignored of them.

    Numbers may be written as `texts`, as they are in forms. Raises BadRequest as `decode`.
    """
    with _BUILDING:
        _build(kind)
    hidden = _unhidden(fields)
    if issubclass(kind, Body):
        _rename(fields)
    _refuse(kind, fields)
    try:
        body = msgspec.convert(fields, kind, strict=not texts)
    except RecursionError as error:
        raise BadRequest("the JSON is nested too deeply: flatten it") from error
    except msgspec.ValidationError as error:
        text = str(error)
        place = _PLACE.search(text)
        param = place.group(1) if place else None
        missing = re.search(r"missing required field `(\w+)`", text)
        if missing:
            param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        if param and re.split(r"\W", param)[0] in hidden:
            param = f"metadata.{param}"
        message = _PLACE.sub("", text)
        raise BadRequest(f"{param}: {message}" if param else message, param or None) from error
    ignored = [place for place, value in _unknown(kind, fields, "") if value is not None]
    unheeded = _UNHEEDED | dict.fromkeys(getattr(kind, "unheeded", ()), _NOTHING)
    ignored += [
        name
        for name, nothing in unheeded.items()
        if getattr(body, name, None) not in (None, *nothing)
        and (name != "store" or kind is not ResponsesRequest)  # which are kept
    ]
    stop = getattr(body, "stop", None)
    if isinstance(stop, list):
        ignored += [f"stop[{i}]" for i, text in enumerate(stop) if not text]
    if strict and ignored:
        raise BadRequest(f"{ignored[0]}: the server cannot heed it: leave it out", ignored[0])
    return body, ignored


@cache
def _build(kind: type[Struct]) -> None:
    # msgspec reads a type at its first use, and two threads that do so at once end the process.
    with suppress(msgspec.ValidationError):
        msgspec.convert({}, kind)


def _unhidden(fields: Json) -> list[str]:
    # Puts what `metadata` hides into its fields; a field itself is stronger.
    held = fields.get("metadata")
    held = held if isinstance(held, dict) else {}
    names = [name for name in _HIDDEN if held.get(name) is not None and fields.get(name) is None]
    for name in names:
        value = held[name]
        try:
            fields[name] = msgspec.json.decode(value) if isinstance(value, str) else value
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(
                f"metadata.{name}: it is no JSON ({error}): mend it", f"metadata.{name}"
            ) from error
    return names


def _rename(fields: Json) -> None:
    window = fields.get("repeat_penalty") is not None and fields.get("repeat_last_n") is None
    for name, (meant, values) in _OTHER_NAMES.items():
        given = fields.pop(name, None)
        if given is None:
            continue
        given = next((other for value, other in values.items() if value == given), given)
        if fields.get(meant) not in (None, given):
            raise BadRequest(
                f"{name}: it is {meant}, which says another value: leave out one", name
            )
        fields[meant] = given
    if window and fields.get("repeat_last_n") is None:
        fields["repeat_last_n"] = 64  # llama.cpp's and Ollama's


def _refuse(kind: type[Struct], fields: Json) -> None:
    # Refuses what would change the answer, and takes out what asks for nothing.
    refused = _REFUSED | getattr(kind, "refused", {})
    for name in [name for name in fields if name not in _objects(kind)]:
        value = fields[name]
        if name in refused and value not in _NOTHING:
            raise BadRequest(f"{name}: {refused[name]}", name)
        if name in refused or (name in _NEUTRAL and value == _NEUTRAL[name]):
            del fields[name]


def _unknown(kind: type[Struct], value: Any, place: str) -> Iterator[tuple[str, Any]]:
    # Places of fields, at any depth, that types do not have.
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from _unknown(kind, each, f"{place}[{i}]")
    elif isinstance(value, dict):
        known = _objects(kind)
        for name, each in value.items():
            at = f"{place}.{name[:100]}" if place else name[:100]
            if name not in known:
                yield at, each
            elif inner := known[name]:
                yield from _unknown(inner, each, at)


@cache
def _objects(kind: type[Struct]) -> dict[str, type[Struct] | None]:
    # The fields of a type, with the type of objects in them, if they have one.
    hints = get_type_hints(kind)
    return {name: _struct(hints[name]) for name in kind.__struct_fields__}


def _struct(hint: Any) -> type[Struct] | None:
    if inner := get_args(hint):
        return next(filter(None, map(_struct, inner)), None)
    return hint if isinstance(hint, type) and issubclass(hint, Struct) else None

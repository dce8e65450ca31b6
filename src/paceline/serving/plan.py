"""From a checked body to jobs: prompts, sampling parameters, constraints.

All of it is done outside the event loop and the engine's thread, since templates, tokenizers and
grammars take their time.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from msgspec.structs import asdict

from paceline.core.constraint import Constraint
from paceline.core.types import PRESETS, CanvasParams, SamplingParams, Speculation
from paceline.engine.engine import Prepared
from paceline.errors import PromptError
from paceline.models.generation import completed
from paceline.models.pictures import Picture
from paceline.models.shown import pictures_in
from paceline.registry.samplers import make_sampler
from paceline.sampling.processors import sampler_names
from paceline.serving.holding import Calls, hold
from paceline.serving.messages import (
    Notes,
    chat_messages,
    describe_tools,
    read_tools,
    response_messages,
    template_arguments,
)
from paceline.serving.model import ServedModel
from paceline.serving.protocol import (
    TOO_LONG,
    BadRequest,
    Body,
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    Several,
    TokenizeRequest,
)
from paceline.serving.worker import Job, Outbox

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(slots=True)
class Plan:
    """What a request asks for, ready for the engine. Choice p * n + i is answer i to prompt p."""

    prompts: list[Prepared]
    seed: int
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    progress: bool = False
    echo: Sequence[str] = ()
    """Texts of the prompts, if answers are to begin with them."""
    waves: bool = False
    """Whether it asks for many small answers, decoded as many at a time as a batch holds."""
    before: list[Json] = field(default_factory=list)
    """Items of the Responses API that stand before the request's own."""
    places: Sequence[Sequence[int]] = ()
    """Where tokens begin in these, if that is asked for."""
    tools: Json = field(default_factory=dict)
    """Schemas of the arguments of what the model may call, by its name."""
    notes: Notes = field(default_factory=Notes)
    """What was left out of the request."""
    seconds: float = 0.0
    """Of sound that is to be written down."""

    @property
    def params(self) -> SamplingParams:
        return self.prompts[0].params

    def jobs(self, outbox: Outbox) -> list[Job]:
        return [
            Job(replace(prompt, sample=sample), outbox, place * self.n + sample, self.progress)
            for place, prompt in enumerate(self.prompts)
            for sample in range(self.n)
        ]


def guarded(plan: Callable[..., T], *asked: Any) -> T:
    """Return what `plan` makes of what is asked; BadRequest if that is nested too deeply."""
    try:
        return plan(*asked)
    except RecursionError as error:
        raise BadRequest("the JSON is nested too deeply: flatten it") from error


def plan_chat(model: ServedModel, body: ChatRequest) -> Plan:
    """Return the plan of a chat answer; errors as of `_plan`."""
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequest(
            "continue_final_message: the last message goes on, so add_generation_prompt must be "
            "false",
            "continue_final_message",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs: they need logprobs true", "top_logprobs")
    arguments = template_arguments(body.chat_template_kwargs or {})
    if body.documents:
        arguments["documents"] = body.documents
    arguments["add_generation_prompt"] = body.add_generation_prompt is not False
    arguments["continue_final_message"] = bool(body.continue_final_message)
    notes = Notes(sees=model.sees)
    messages = chat_messages(body.messages, notes)
    tools, calls = _tools(model, body.tools, body.tool_choice, body.parallel_tool_calls, notes)
    _reason(model, body.reasoning_effort, "reasoning_effort", arguments, notes)
    ids = _chat(model, messages, tools, arguments, contexts=_contexts(body))
    reasons = _reasons(model, ids, arguments)
    constraint = hold(model, body, body.response_format, calls, notes, reasons)
    tops = (body.top_logprobs or 0) if body.logprobs else None
    most = _most(body.max_completion_tokens, body.max_tokens, body.n_predict)
    plan = _plan(model, body, [ids], most, tops, constraint, pictures=pictures_in(messages))
    plan.tools, plan.notes = _schemas(tools), notes
    return _several(plan, body)


def plan_completion(model: ServedModel, body: CompletionRequest) -> Plan:
    """Return the plan of a completion; errors as of `_plan`."""
    given = prompts_of(body.prompt, "prompt")
    if len(given) * (body.n or 1) > 1024:
        raise BadRequest("prompt: more than 1024 answers are asked for: send fewer", "prompt")
    if body.truncate_prompt_tokens is None:
        texts = [each for each in given if isinstance(each, str)]
        check_length(model, texts, "prompt", _contexts(body))
    tokenizer = model.tokenizer
    prompts = [tokenizer.prompt(p, raw=True) if isinstance(p, str) else list(p) for p in given]
    scored = body.prompt_logprobs
    if body.echo and scored is None and (body.logprobs is not None or body.max_tokens == 0):
        scored = body.logprobs or 0
    notes = Notes()
    constraint = hold(model, body, body.response_format, None, notes)
    most = _most(body.max_tokens, body.n_predict)
    plan = _plan(model, body, prompts, most, body.logprobs, constraint, scored)
    plan.notes = notes
    if body.echo:
        shown = [prompt.tokens for prompt in plan.prompts]
        if body.truncate_prompt_tokens is None:
            shown = given
        plan.echo = [p if isinstance(p, str) else tokenizer.decode(p) for p in shown]
        if body.logprobs is not None:
            plan.places = list(map(tokenizer.offsets, shown))
    return _several(plan, body)


def prompts_of(given: Any, field: str) -> list[Any]:
    """Return a list of texts or of token ids; BadRequest if there is none, or both."""
    given = [given] if isinstance(given, str) else given
    kinds = {type(each) for each in given}
    if len(kinds) != 1:
        raise BadRequest(f"{field}: give a text, token ids, or a list of one kind of them", field)
    return [given] if kinds == {int} else given


def plan_response(model: ServedModel, body: ResponsesRequest) -> Plan:
    """Return the plan of an answer of the Responses API; errors as of `_plan`."""
    notes = Notes(sees=model.sees)
    tools, calls = _tools(model, body.tools, body.tool_choice, body.parallel_tool_calls, notes)
    messages = response_messages(body.input, body.instructions, notes)
    before: list[Json] = []
    if body.previous_response_id is not None:
        if not model.kept:
            raise BadRequest(
                "previous_response_id: the server keeps no answers: send the whole conversation as "
                "input",
                "previous_response_id",
            )
        turn = model.kept.get(body.previous_response_id, "previous_response_id")
        before = [*turn.items, *(item for item in turn.response["output"] if not _broken(item))]
        at = 0 if body.instructions is None else 1  # which are those of this turn alone
        told = Notes(sees=model.sees, pictures=notes.pictures, pixels=notes.pixels)
        messages[at:at] = response_messages(before, notes=told) if before else []
    format = body.text.format if body.text else None
    arguments = template_arguments(body.chat_template_kwargs or {})
    asked = {key: value for key, value in (body.reasoning or {}).items() if value is not None}
    _reason(model, asked.pop("effort", None), "reasoning.effort", arguments, notes)
    notes.left += [f"reasoning.{key}" for key in asked]
    kept = "message.output_text.logprobs"
    notes.left += [f"include:{each}" for each in body.include or () if each != kept]
    ids = _chat(model, messages, tools, arguments, "input", _contexts(body))
    reasons = _reasons(model, ids, arguments)
    constraint = hold(model, body, format, calls, notes, reasons)
    wanted = kept in (body.include or ())
    tops = (body.top_logprobs or 0) if wanted or body.top_logprobs else None
    if tools and tops is not None:
        raise BadRequest(
            "include: log-probabilities are not parted among text and calls: leave out tools, or "
            "ask for a chat completion",
            "include" if wanted else "top_logprobs",
        )
    most, shown = _most(body.max_output_tokens), pictures_in(messages)
    plan = _plan(model, body, [ids], most, tops, constraint, pictures=shown)
    plan.before = before
    plan.tools, plan.notes = _schemas(tools), notes
    plan.stream = bool(body.stream)
    return plan


def _broken(item: Json) -> bool:
    # Whether an item is a call that was cut in its arguments.
    try:
        json.loads(item.get("arguments", "{}"))
    except ValueError:
        return True
    return False


def tokenize(model: ServedModel, body: TokenizeRequest, notes: Notes) -> list[int]:
    """Return the token ids of a text or of a conversation; errors as of `plan_chat`."""
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("prompt: give prompt or messages, one of them", "prompt")
    if body.prompt is not None:
        check_length(model, [body.prompt], "prompt", 16)
        return model.tokenizer.encode(body.prompt, special=body.add_special_tokens)
    arguments = template_arguments(body.chat_template_kwargs or {})
    arguments["add_generation_prompt"] = body.add_generation_prompt
    arguments["continue_final_message"] = body.continue_final_message
    tools = read_tools(body.tools or [], notes=notes)
    return _chat(model, chat_messages(body.messages, notes), tools, arguments)


def _plan(
    model: ServedModel,
    body: Body,
    prompts: list[list[int]],
    most: int | None,
    tops: int | None,
    constraint: Constraint | None,
    scored: int | None = None,
    pictures: Sequence[Picture] = (),
) -> Plan:
    """Return the plan that all kinds of requests share.

    `most` is the most tokens, `tops` log-probabilities of the answer, `scored` of the prompt;
    `pictures` are of the only one.

    Raises:
        BadRequest: fields contradict each other.
        PacelineError: the prompt does not fit, or a token is unknown.
    """
    if body.truncate_prompt_tokens is not None:
        kept = body.truncate_prompt_tokens
        kept = kept if kept >= 0 else model.context - max(most or 1, 1)
        prompts = [ids[max(0, len(ids) - kept) :] for ids in prompts]
    if body.resume_token_ids and len(prompts) > 1:
        raise BadRequest("resume_token_ids: one answer is resumed at a time", "resume_token_ids")
    seed = secrets.randbits(53) if body.seed is None else body.seed
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    room = _room(model, body, max(map(len, prompts)), most)
    params = SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else max(body.top_p, 1e-9),
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_biases(body.logit_bias or {}),
        allowed_tokens=tuple(dict.fromkeys(body.allowed_token_ids or ())),
        seed=seed % 2**64,
        max_new_tokens=room,
        min_tokens=body.min_tokens or 0,
        stop=tuple(each for each in stop if each),
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
        ignore_eos=bool(body.ignore_eos),
        keep_stop=bool(body.include_stop_str_in_output),
        logprobs=tops,
        prompt_logprobs=body.prompt_logprobs if scored is None else scored,
        shown_tokens=()
        if isinstance(body, CompletionRequest)
        else model.style.shown_tokens(model.tokenizer),
    )
    # A client's word is stronger than the model's own, which is stronger than OpenAI's.
    said = [name for name in model.engine.defaults if getattr(body, name) is not None]
    params, _ = completed(replace(params, **_preset(body)), model.engine.defaults, said)
    asked: dict[str, Any] = {"speculation": _speculation(body), "constraint": constraint}
    asked["endless"], asked["pictures"] = body.endless or False, pictures
    asked["resume"] = body.resume_token_ids or ()
    if isinstance(body, Several) and body.prediction is not None:
        check_length(model, [body.prediction.text], "prediction", 4)
        asked["prediction"] = model.tokenizer.encode(body.prediction.text)
    if body.denoising is not None:
        if body.denoising.sampler is not None:
            make_sampler(body.denoising.sampler, files=False)
        asked["denoising"] = CanvasParams(**asdict(body.denoising))
    return Plan([model.engine.prepare(ids, params, **asked) for ids in prompts], seed)


def _contexts(body: Body) -> int:
    # Contexts that a prompt may fill: without an end as many as there is room for in a body.
    return 2**20 if body.endless else 1


def _most(*given: int | None) -> int | None:
    # The first limit that is given; -1 is none.
    most = next((each for each in given if each is not None), None)
    return None if most == -1 else most


def _room(model: ServedModel, body: Body, prompt: int, most: int | None) -> int:
    # The most tokens of an answer: clients ask for more than there is room for. A prompt that never
    # fits is told in OpenAI's words, which clients read.
    context: int = model.context
    if body.endless:
        return context if most is None else most
    if prompt < context:
        return context - prompt if most is None else min(most, context - prompt)
    what = {ChatRequest: "messages", ResponsesRequest: "input"}.get(type(body), "prompt")
    raise _too_long(model, what, str(prompt))


def _too_long(model: ServedModel, field: str, tokens: str) -> BadRequest:
    said = (
        f"This model's maximum context length is {model.context} tokens. However, your {field} "
        f"resulted in {tokens} tokens. Please reduce the length of the {field}."
    )
    return BadRequest(said, field, code=TOO_LONG)


def check_length(model: ServedModel, texts: Sequence[str], field: str, contexts: int = 1) -> None:
    """Raise BadRequest if texts must have more tokens than so many contexts.

    Nothing is read to its end that is long beyond doubt: beginnings of 16 characters for each token
    of room, then of twice as many, are tokenised until one has too many tokens.
    """
    room = model.context * contexts
    for text in texts:
        size = 16 * room
        while len(text) > size:
            read = len(model.tokenizer.encode(text[:size]))
            if read > room + room // 4:
                raise _too_long(model, field, f"over {read}")
            size *= 2


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _reason(model: ServedModel, effort: Any, field: str, arguments: Json, notes: Notes) -> None:
    # Hands the effort to a template that reads it, or says that nothing does.
    if effort is None:
        return
    if model.tokenizer.reads("reasoning_effort"):
        arguments.setdefault("reasoning_effort", effort)
    elif model.tokenizer.reads("enable_thinking"):
        arguments.setdefault("enable_thinking", effort != "none")
    elif effort != "none" or model.style.think is not None:
        notes.left.append(field)


def _preset(body: Body) -> dict[str, Any]:
    # What samplers of presets ask for, in the words of `SamplingParams`.
    asked = {name: getattr(body, name) for name in PRESETS}
    if body.dry_sequence_breakers is not None:
        asked["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    if body.samplers is not None:
        asked["samplers"] = sampler_names(body.samplers)
    return {name: value for name, value in asked.items() if value is not None}


def _several(plan: Plan, body: Several) -> Plan:
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadRequest("stream_options: they need stream true", "stream_options")
    plan.n, plan.stream = body.n or 1, bool(body.stream)
    if body.resume_token_ids and plan.n > 1:
        raise BadRequest("n: one answer is resumed, so it must be 1", "n")
    plan.progress = bool(body.return_progress and body.stream)
    plan.include_usage = bool(options and options.include_usage)
    plan.continuous_usage = bool(options and options.continuous_usage_stats)
    return plan


def _biases(given: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError as error:
        raise BadRequest(f"logit_bias: keys are token ids ({error})", "logit_bias") from error


def _speculation(body: Body) -> Speculation:
    limits = body.speculation
    if limits is None:
        return Speculation()
    draft = tuple(limits.draft_token_ids or ())
    return Speculation(limits.nodes, limits.depth, limits.enabled, draft, limits.once)


def _chat(
    model: ServedModel,
    messages: list[Json],
    tools: list[Json],
    arguments: Json,
    field: str = "messages",
    contexts: int = 1,
) -> list[int]:
    check_length(model, ["\n".join(_strings([messages, tools]))], field, contexts)
    if not model.tokenizer.reads("tools", bool(tools)):
        messages, tools = describe_tools(messages, tools), []
    try:
        return model.tokenizer.chat(messages, tools or None, **arguments)
    except PromptError as error:
        raise BadRequest(f"{field}: {error}", field) from error


def _schemas(tools: list[Json]) -> Json:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


def _tools(
    model: ServedModel,
    given: list[Json] | None,
    choice: str | Json | None,
    parallel: bool | None,
    notes: Notes,
) -> tuple[list[Json], Calls | None]:
    """Return the tools to show, and what holds calls of them to their schemas, if that can be."""
    tools = read_tools(given or [], notes=notes)
    choice, tools = _allowed(choice, tools, notes)
    mode = choice if isinstance(choice, str) else "auto"
    if isinstance(choice, dict):
        mode = _chosen(choice, tools, notes)
    elif mode == "any":
        mode = "required"
    elif mode not in ("none", "auto", "required"):
        raise BadRequest(
            "tool_choice: it must be none, auto, required, or a function of tools", "tool_choice"
        )
    if mode == "none":
        return [], None
    if mode != "auto" and not tools:
        none = "no function among the tools" if given else "there are no tools to call"
        raise BadRequest(f"tool_choice: {none}: give functions in tools", "tool_choice")
    return tools, Calls.of(model, tools, mode, parallel)


def _reasons(model: ServedModel, ids: list[int], arguments: Json) -> bool | None:
    """Return whether the prompt opened reasoning; None if the answer does not begin with it."""
    think = model.style.think
    if think is None:
        return None
    end = model.tokenizer.decode(ids[-32:], skip_special=False).rstrip()
    if model.style.inside(end):
        return True
    if model.style.said and not end.endswith(model.style.turn):  # a message goes on
        return None
    off = arguments.get("enable_thinking") is False or end.endswith(think[1])
    return None if off else False


def _allowed(
    choice: str | Json | None, tools: list[Json], notes: Notes
) -> tuple[str | Json | None, list[Json]]:
    # A choice of type "allowed_tools" is a mode and a part of the tools.
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return choice, tools
    inner = choice.get("allowed_tools", choice)
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise BadRequest("tool_choice.tools: give a list of tools", "tool_choice")
    functions = [each for each in listed if each.get("type") == "function"]
    names = {_chosen(each, tools, notes) for each in functions}
    return inner.get("mode"), [tool for tool in tools if tool["function"]["name"] in names]


def _chosen(choice: Json, tools: list[Json], notes: Notes) -> str:
    # The function that an object names; the Responses API leaves out one level.
    inner = choice.get("function")
    inner = inner if isinstance(inner, dict) else choice
    name: str = notes.shown(inner.get("namespace"), inner.get("name"))
    if name not in (tool["function"]["name"] for tool in tools):
        asked = inner.get("name") or choice.get("type")
        raise BadRequest(f"tool_choice: there is no function {asked!r} in tools", "tool_choice")
    return name

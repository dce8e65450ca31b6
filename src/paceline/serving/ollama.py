"""Ollama's API: its requests as chats and completions, its answers as lines of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

from msgspec import Struct
from msgspec.json import encode

from paceline.core.types import PRESETS
from paceline.engine.engine import Event
from paceline.errors import PromptError
from paceline.models.shown import BLIND
from paceline.serving.embeddings import EmbeddingAnswer, StatesRequest, written
from paceline.serving.fill import plan_filling
from paceline.serving.hosting import Hosted
from paceline.serving.messages import Notes
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, chat_logprobs
from paceline.serving.plan import Plan, plan_chat
from paceline.serving.protocol import BadRequest, ChatRequest, CompletionRequest, Tops, checked

Json = dict[str, Any]
T = TypeVar("T", ChatRequest, CompletionRequest)
# Options of sampling, which requests have under the same names, and Ollama's values for some.
_OPTIONS = frozenset(PRESETS).union(
    ["temperature", "top_k", "top_p", "min_p", "tfs_z", "seed", "stop", "max_tokens"],
    ["repeat_penalty", "presence_penalty", "frequency_penalty"],
)
_USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_seconds(body: object) -> float | None:
    """Return how long a request lets its model stay, in seconds, below 0 for ever; None unsaid.

    Raises BadRequest for what is no number and no duration such as "5m" or "1h30m".
    """
    said = getattr(body, "keep_alive", None)
    if said is None or isinstance(said, float | int):
        return said
    text = said.strip()
    size = text.removeprefix("-")
    parts = re.findall(r"(\d+\.?\d*)(ns|us|ms|s|m|h)", size)
    if re.fullmatch(r"\d+(\.\d*)?", size):
        found = float(size)
    elif size and "".join(map("".join, parts)) == size:
        found = sum(float(count) * _SECONDS[unit] for count, unit in parts)
    else:
        raise BadRequest("keep_alive: give seconds, or a duration such as 5m", "keep_alive")
    return found if size == text else -found


class OllamaRequest(Struct, kw_only=True):
    model: str
    stream: bool | None = None
    options: Json | None = None
    format: str | Json | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Tops | None = None


class OllamaChat(OllamaRequest, kw_only=True):
    messages: list[Json] = []
    tools: list[Json] | None = None


class OllamaGenerate(OllamaRequest, kw_only=True):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class EmbedRequest(StatesRequest, kw_only=True):
    model: str
    keep_alive: float | str | None = None


class ShowRequest(Struct, kw_only=True):
    model: str
    verbose: bool | None = None


def plan_ollama_chat(model: ServedModel, body: OllamaChat) -> Plan:
    """Return the plan of a chat; errors as of `plan_chat`."""
    notes = Notes(sees=model.sees)
    messages = [_message(each, i, notes) for i, each in enumerate(body.messages)]
    return _planned(model, body, messages, notes)


def plan_generate(model: ServedModel, body: OllamaGenerate) -> Plan:
    """Return the plan of a prompt: a chat, or as it is if `raw`, or around a `suffix`."""
    if body.images and (body.raw or body.suffix):
        raise BadRequest("images: they need a chat: leave out raw and suffix", "images")
    if not (body.raw or body.suffix):
        system = [{"role": "system", "content": body.system}] if body.system else []
        content = _shown(body.prompt, body.images, "images", Notes(sees=model.sees))
        said = [{"role": "user", "content": content}] if content else []
        return _planned(model, body, system * len(said) + said, Notes())
    if not (body.prompt or body.suffix):
        return _loaded(body)
    if body.system:
        raise BadRequest("system: it has no place in a raw prompt: leave it out", "system")
    asked, left = _asked(CompletionRequest, body, prompt=body.prompt, suffix=body.suffix)
    asked.logprobs = (body.top_logprobs or 0) if body.logprobs else None
    plan = plan_filling(model, asked)
    plan.stream = body.stream is not False
    plan.notes.left += left
    return plan


def _loaded(body: OllamaRequest) -> Plan:
    # What asks for nothing loads the model, which is done.
    return Plan([], 0, stream=body.stream is not False)


def _planned(
    model: ServedModel, body: OllamaChat | OllamaGenerate, messages: list[Json], notes: Notes
) -> Plan:
    if not messages:
        return _loaded(body)
    asked, left = _asked(ChatRequest, body, messages=messages)
    asked.logprobs, asked.top_logprobs = body.logprobs, body.top_logprobs
    asked.tools = body.tools if isinstance(body, OllamaChat) else None
    if isinstance(body.think, bool):
        asked.chat_template_kwargs = {"enable_thinking": body.think}
        if body.think and model.style.think is None:
            left.append("think")
    else:
        asked.reasoning_effort = body.think
    if asked.messages[-1]["role"] == "assistant":
        asked.continue_final_message, asked.add_generation_prompt = True, False
    plan = plan_chat(model, asked)
    plan.stream = body.stream is not False
    names = {"reasoning_effort": "think"}
    plan.notes.left = [names.get(each, each) for each in (*plan.notes.left, *notes.left, *left)]
    return plan


def _asked(kind: type[T], body: OllamaRequest, **fields: Any) -> tuple[T, list[str]]:
    # The request as OpenAI's API has it, and names of options that are left out.
    given = {name: value for name, value in (body.options or {}).items() if value is not None}
    if "num_predict" in given:
        given["max_tokens"] = given.pop("num_predict")
    for name, value in (("seed", -1), ("max_tokens", -2)):  # which are those of none
        if given.get(name) == value:
            del given[name]
    fields |= _USUAL | {name: given.pop(name) for name in _OPTIONS & given.keys()}
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        fields["response_format"] = {"type": "json_schema", "schema": body.format}
    elif body.format:
        raise BadRequest('format: it must be "json" or a JSON schema', "format")
    try:
        asked, _ = checked(kind, fields)
    except BadRequest as error:
        name = error.param or ""
        if name not in _OPTIONS:
            raise
        own = "options." + {"max_tokens": "num_predict"}.get(name, name)
        raise BadRequest(str(error).replace(name, own, 1), own) from error
    return asked, [f"options.{name}" for name in given]


def _shown(text: Any, images: Any, field: str, notes: Notes) -> Any:
    # A content with pictures, which are base64 alone.
    if not images:
        return text
    if not notes.sees:
        raise PromptError(f"{field}[0] {BLIND}")
    if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
        raise PromptError(f"{field} must be a list of pictures in base64")
    urls = [{"url": f"data:;base64,{each}"} for each in images]
    parts: list[Json] = [{"type": "image_url", "image_url": url} for url in urls]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _message(message: Json, i: int, notes: Notes) -> Json:
    notes.unread(
        message, f"messages[{i}]", "role content thinking images tool_name tool_calls tool_call_id"
    )
    out: Json = {key: message.get(key) for key in ("role", "content", "tool_call_id")}
    out["content"] = _shown(out["content"], message.get("images"), f"messages[{i}].images", notes)
    if message.get("thinking"):
        out["reasoning_content"] = message["thinking"]
    if message.get("tool_name"):
        out["name"] = message["tool_name"]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise PromptError(f"messages[{i}].tool_calls must be a list")
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
            raise PromptError(f"messages[{i}].tool_calls[{j}].function.arguments must be an object")
        arguments = json.dumps(function["arguments"])
        made = {"name": function.get("name"), "arguments": arguments}
        notes.unread(call, f"messages[{i}].tool_calls[{j}]", "function")
        notes.unread(function, f"messages[{i}].tool_calls[{j}].function", "name arguments")
        out.setdefault("tool_calls", []).append({"id": call.get("id"), "function": made})
    return out


class OllamaAnswer(Answer):
    object = "chat"
    prefix = "ollama"
    parted = True
    end = b""
    media: ClassVar[str] = "application/x-ndjson"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._given = 0  # calls that were told

    def chunks(self, place: int, event: Event) -> list[Json]:
        deltas = self.feed(place, event)
        said: Json = {"content": "", "thinking": ""}
        for delta in deltas:
            if delta.kind != "call":
                said["thinking" if delta.kind == "reasoning" else "content"] += delta.text
        told = self._told(said["content"], said["thinking"], self._calls())
        logprobs = chat_logprobs(self.model.tokens, event.logprobs)
        some = any(said.values()) or "tool_calls" in told.get("message", {}) or logprobs
        extra = {"logprobs": logprobs} if logprobs else {}
        return [self._line(told | extra, False)] if some else []

    def closing(self) -> list[Json]:
        return [self._line(self._told("", "", []), True)]

    def failing(self, error: Json) -> list[Json]:
        return [{"error": error["error"]["message"]}]

    def encode(self, chunks: Sequence[Json]) -> bytes:
        return b"".join(encode(line) + b"\n" for line in chunks)

    def waiting(self) -> list[Json]:
        return [self._line(self._told("", "", []), False)]

    def whole(self) -> Json:
        if not self.choices:
            return self.closing()[0]
        choice = self.choices[0]
        self._given = 0
        told = self._told(choice.content, choice.reasoning, self._calls())
        found = chat_logprobs(self.model.tokens, choice.logprobs)
        return self._line(told | ({"logprobs": found} if found else {}), True)

    def _calls(self) -> list[Json]:
        # Calls that are whole, and were not told before.
        choice, out = self.choices[0], []
        ready = len(choice.calls) - (choice.completion is None)
        for index, call in enumerate(choice.calls[self._given : max(ready, self._given)]):
            try:
                arguments = json.loads(call["function"]["arguments"])
            except ValueError:  # the answer was cut: such a call is none
                continue
            name = call["function"]["name"]
            out.append({"function": {"index": index, "name": name, "arguments": arguments}})
        self._given = max(ready, self._given)
        return out

    def _told(self, content: str, thinking: str, calls: list[Json]) -> Json:
        message: Json = {"role": "assistant", "content": content}
        message |= {"thinking": thinking} if thinking else {}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _line(self, said: Json, done: bool) -> Json:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        head = {"model": self._head["model"], "created_at": now, **said, "done": done}
        if not self.choices:
            return head | {"done_reason": "load"}
        completion = self.choices[0].completion
        if not done or completion is None:
            return head
        stats, counts = completion.stats, self.usage()
        return head | {
            "done_reason": "length" if completion.finish_reason == "length" else "stop",
            "total_duration": int(1e9 * (stats.prefill_seconds + stats.decode_seconds)),
            "load_duration": 0,
            "prompt_eval_count": counts["prompt_tokens"],
            "prompt_eval_duration": int(1e9 * stats.prefill_seconds),
            "eval_count": counts["completion_tokens"],
            "eval_duration": int(1e9 * stats.decode_seconds),
            **{name: self._head[name] for name in ("system_fingerprint", "seed")},
        }


class GenerateAnswer(OllamaAnswer):
    object = "generate"

    def _told(self, content: str, thinking: str, calls: list[Json]) -> Json:
        return {"response": content} | ({"thinking": thinking} if thinking else {})


class EmbedAnswer(EmbeddingAnswer):
    def whole(self) -> Json:
        count = self.usage()["prompt_tokens"]
        durations = {"total_duration": 0, "load_duration": 0, "prompt_eval_count": count}
        model, states = self._head["model"], list(map(written, self.states()))
        return {"model": model, "embeddings": states, **durations}


def tags(hosted: Sequence[Hosted]) -> Json:
    """Return the list of models, as Ollama has it."""
    return {"models": [_listed(each, name) for each in hosted for name in each.names]}


def running(hosted: Sequence[Hosted]) -> Json:
    """Return the list of models that are loaded, as Ollama has it."""
    never: Json = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0}
    return {
        "models": [
            _listed(each, name) | never | {"context_length": each.model.context}
            for each in hosted
            for name in each.names
            if each.model is not None
        ]
    }


def _listed(hosted: Hosted, name: str) -> Json:
    if hosted.model is not None:
        return _entry(hosted.model, name) | {"size": hosted.size}
    return {"name": name, "model": name, "size": hosted.size, "digest": "", "details": {}}


def shown(model: ServedModel) -> Json:
    """Return what is told of the model."""
    tokenizer, able = model.tokenizer, ["completion", "embedding"]
    able += ["tools"] if tokenizer.chat_template else []
    able += ["thinking"] if model.style.think is not None else []
    able += ["vision"] if model.sees else []
    facts: Json = {"general.architecture": "paceline", "paceline.context_length": model.context}
    entry = _entry(model, model.name)
    out: Json = {"modelfile": f"FROM {model.path}\n", "parameters": "", "license": ""}
    out |= {"template": tokenizer.chat_template or "", "model_info": facts, "capabilities": able}
    return out | {"details": entry["details"], "modified_at": entry["modified_at"]}


def _entry(model: ServedModel, name: str) -> Json:
    made = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    precision = model.engine.decoder.target.capabilities.precision
    details: Json = {"parent_model": "", "format": "gguf", "family": "", "families": []}
    details |= {"parameter_size": "", "quantization_level": precision}
    entry: Json = {"name": name, "model": name, "modified_at": made, "size": 0}
    return entry | {"digest": model.fingerprint.removeprefix("fp_"), "details": details}

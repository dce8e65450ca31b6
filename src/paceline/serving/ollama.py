"""Ollama's API: its requests as chats and completions, its answers as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct
from msgspec.json import encode

from paceline.engine.engine import Event, Prepared
from paceline.errors import PromptError
from paceline.serving.embeddings import EmbeddingAnswer, state_plan
from paceline.serving.fill import plan_filling
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, Choice, chat_choice, chat_logprobs
from paceline.serving.plan import Plan, plan_chat
from paceline.serving.protocol import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    Tops,
    decode,
)
from paceline.version import __version__

Json = dict[str, Any]
# Options of sampling, by their names here, with Ollama's values where none is given.
_OPTIONS = {
    "temperature": ("temperature", 0.8),
    "top_k": ("top_k", 40),
    "top_p": ("top_p", 0.9),
    "min_p": ("min_p", None),
    "seed": ("seed", None),
    "stop": ("stop", None),
    "repeat_penalty": ("repetition_penalty", None),
    "presence_penalty": ("presence_penalty", None),
    "frequency_penalty": ("frequency_penalty", None),
    "num_predict": ("max_tokens", None),
}


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
    messages: Annotated[list[Json], Meta(min_length=1)]
    tools: list[Json] | None = None


class OllamaGenerate(OllamaRequest, kw_only=True):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class EmbedRequest(Struct, kw_only=True):
    model: str
    input: str | Annotated[list[str], Meta(min_length=1, max_length=2048)]
    dimensions: int | None = None
    keep_alive: float | str | None = None


class ShowRequest(Struct, kw_only=True):
    model: str
    verbose: bool | None = None


def plan_ollama_chat(model: ServedModel, body: OllamaChat) -> Plan:
    """Return the plan of a chat; errors as of `plan_chat`."""
    return _planned(model, body, [_message(each, i) for i, each in enumerate(body.messages)])


def plan_generate(model: ServedModel, body: OllamaGenerate) -> Plan:
    """Return the plan of a prompt: a chat, or as it is if `raw`, or around a `suffix`."""
    if body.images:
        raise BadRequest("images: only text is read: leave them out", "images")
    if not (body.raw or body.suffix):
        system = [{"role": "system", "content": body.system}] if body.system else []
        return _planned(model, body, [*system, {"role": "user", "content": body.prompt}])
    if body.system:
        raise BadRequest("system: it has no place in a raw prompt: leave it out", "system")
    fields, left = _fields(body)
    asked, _ = decode(CompletionRequest, encode(fields | {"prompt": body.prompt}))
    asked.suffix = body.suffix
    asked.logprobs = (body.top_logprobs or 0) if body.logprobs else None
    plan = plan_filling(model, asked)
    plan.stream = body.stream is not False
    plan.notes.left += left
    return plan


def plan_embed(model: ServedModel, body: EmbedRequest) -> Plan:
    """Return the plan of embeddings."""
    size = model.engine.decoder.target.capabilities.hidden_size
    if body.dimensions not in (None, 0, size):
        raise BadRequest(f"dimensions: this model's embeddings have {size}", "dimensions")
    return state_plan(model, [body.input] if isinstance(body.input, str) else body.input, "input")


def _planned(model: ServedModel, body: OllamaChat | OllamaGenerate, messages: list[Json]) -> Plan:
    fields, left = _fields(body)
    fields |= {"messages": messages, "logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    asked, _ = decode(ChatRequest, encode(fields))
    asked.tools = body.tools if isinstance(body, OllamaChat) else None
    if body.think is not None:
        asked.chat_template_kwargs = {"enable_thinking": bool(body.think)}
        if body.think and model.style.think is None:
            left.append("think")
    if asked.messages[-1]["role"] == "assistant":
        asked.continue_final_message, asked.add_generation_prompt = True, False
    plan = plan_chat(model, asked)
    plan.stream = body.stream is not False
    plan.notes.left += left
    return plan


def _fields(body: OllamaRequest) -> tuple[Json, list[str]]:
    # Fields of the request as OpenAI's API has them, and names of options that are left out.
    given = dict(body.options or {})
    fields: Json = {name: given.pop(own, value) for own, (name, value) in _OPTIONS.items()}
    if fields["max_tokens"] is not None and fields["max_tokens"] < 0:  # no limit
        fields["max_tokens"] = None
    if body.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        fields["response_format"] = {"type": "json_schema", "schema": body.format}
    elif body.format:
        raise BadRequest('format: it must be "json" or a JSON schema', "format")
    left = [f"options.{name}" for name in given]
    return fields, left if body.keep_alive is None else [*left, "keep_alive"]


def _message(message: Json, i: int) -> Json:
    if message.get("images"):
        raise PromptError(f"messages[{i}].images: only text is read: leave them out")
    out: Json = {key: message[key] for key in ("role", "content") if key in message}
    if message.get("thinking"):
        out["reasoning_content"] = message["thinking"]
    if message.get("tool_name"):
        out["name"] = message["tool_name"]
    for j, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
            raise PromptError(f"messages[{i}].tool_calls[{j}].function.arguments must be an object")
        arguments = json.dumps(function["arguments"])
        made = {"name": function.get("name"), "arguments": arguments}
        out.setdefault("tool_calls", []).append({"type": "function", "function": made})
    return out


class OllamaAnswer(Answer):
    object = "chat"
    prefix = "ollama"
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
        lines = chunks or [self._line(self._told("", "", []), False)]
        return b"".join(encode(line) + b"\n" for line in lines)

    def whole(self) -> Json:
        choice = self.choices[0]
        self._given = 0
        told = self._told(choice.content, choice.reasoning, self._calls())
        found = chat_logprobs(self.model.tokens, choice.logprobs)
        return self._line(told | ({"logprobs": found} if found else {}), True)

    def _choice(self, prompt: Prepared) -> Choice:
        return chat_choice(self.model, self.plan, prompt, self.id)

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
        completion = self.choices[0].completion
        if not done or completion is None:
            return head
        stats, counts = completion.stats, self.usage()
        spent = stats.draft_seconds + stats.forward_seconds + stats.overhead_seconds
        return head | {
            "done_reason": "length" if completion.finish_reason == "length" else "stop",
            "total_duration": int(1e9 * (stats.prefill_seconds + spent)),
            "load_duration": 0,
            "prompt_eval_count": counts["prompt_tokens"],
            "prompt_eval_duration": int(1e9 * stats.prefill_seconds),
            "eval_count": counts["completion_tokens"],
            "eval_duration": int(1e9 * spent),
            **{name: self._head[name] for name in ("system_fingerprint", "seed")},
        }


class GenerateAnswer(OllamaAnswer):
    object = "generate"

    def _told(self, content: str, thinking: str, calls: list[Json]) -> Json:
        return {"response": content} | ({"thinking": thinking} if thinking else {})


class EmbedAnswer(EmbeddingAnswer):
    def whole(self) -> Json:
        count = sum(len(each.tokens) for each in self.plan.prompts)
        states = [[float(x) for x in state.astype("f4")] for state in self.states()]
        durations = {"total_duration": 0, "load_duration": 0, "prompt_eval_count": count}
        return {"model": self._head["model"], "embeddings": states, **durations}


def tags(model: ServedModel) -> Json:
    """Return the list of models, as Ollama has it."""
    return {"models": [_entry(model, name) for name in model.names]}


def running(model: ServedModel) -> Json:
    never = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0, "context_length": model.context}
    return {"models": [_entry(model, name) | never for name in model.names]}


ASKED: dict[str, tuple[type[Any], Callable[[ServedModel, Any], Plan], type[Answer]]] = {
    "chat": (OllamaChat, plan_ollama_chat, OllamaAnswer),
    "generate": (OllamaGenerate, plan_generate, GenerateAnswer),
    "embed": (EmbedRequest, plan_embed, EmbedAnswer),
}
ABOUT: dict[str, Callable[[ServedModel], Json]] = {
    "tags": tags,
    "ps": running,
    "version": lambda model: {"version": __version__},
}


def shown(model: ServedModel) -> Json:
    """Return what is told of the model."""
    tokenizer, able = model.tokenizer, ["completion", "embedding"]
    able += ["tools"] if tokenizer.chat_template else []
    able += ["thinking"] if model.style.think is not None else []
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


def rewritten(body: bytes, status: int, request: str) -> bytes:
    """Return an error of OpenAI's shape in Ollama's."""
    return encode({"error": json.loads(body)["error"]["message"]})

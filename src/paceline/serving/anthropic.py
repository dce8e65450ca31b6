"""Anthropic's Messages API: its requests as chats, its answers and streams of named events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from paceline.engine.engine import Event, Prepared
from paceline.errors import PromptError
from paceline.serving.answers.parser import Delta
from paceline.serving.http import sse
from paceline.serving.messages import Notes
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, Choice, chat_choice
from paceline.serving.plan import Plan, plan_chat
from paceline.serving.protocol import BadRequest, Body, ChatRequest, Count, ResponseFormat, Stop

Json = dict[str, Any]
# A line for the vendor's accounts that Claude Code puts first, other in each request: with it no
# prompt would begin like the one before.
_BILLING = "x-anthropic-billing-header:"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_STOPS = {"tool_calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


class Thinking(Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class ToolChoice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Struct):
    """`format` is {"type": "json_schema", "schema"}."""

    effort: str | None = None
    format: Json | None = None


class CountRequest(Body, kw_only=True):
    messages: Annotated[list[Json], Meta(min_length=1)]
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Json | None = None
    cache_control: Json | None = None
    chat_template_kwargs: Json | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Meta(max_length=64)] | None = None


def plan_messages(model: ServedModel, body: CountRequest) -> Plan:
    """Return the plan of an answer; errors as of `plan_chat`."""
    notes = Notes()
    chat = _chat(model, body, notes)
    plan = plan_chat(model, chat)
    plan.notes.left += notes.left
    return plan


def _chat(model: ServedModel, body: CountRequest, notes: Notes) -> ChatRequest:
    own: Json = {name: getattr(body, name) for name in Body.__struct_fields__}
    chat = ChatRequest(**own, messages=list(_messages(body, notes)))
    if isinstance(body, MessagesRequest):
        chat.max_tokens = body.max_tokens
        if body.stop_sequences:
            chat.stop = body.stop_sequences
    if chat.messages[-1]["role"] == "assistant":  # whose turn is not over
        chat.continue_final_message, chat.add_generation_prompt = True, False
    chat.tools = _tools(body.tools or [], notes) or None
    if body.tool_choice is not None:
        kind, choice = body.tool_choice.type, body.tool_choice
        chat.tool_choice = {"any": "required"}.get(kind, kind)
        if kind == "tool":
            chat.tool_choice = {"type": "function", "function": {"name": choice.name}}
        if choice.disable_parallel_tool_use is not None:
            chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    output = body.output_config or OutputConfig()
    chat.reasoning_effort = output.effort
    wanted = output.format or body.output_format
    if wanted is not None:
        if wanted.get("type") != "json_schema":
            raise BadRequest(
                "output_config.format.type: it must be json_schema", "output_config.format.type"
            )
        chat.response_format = ResponseFormat("json_schema", schema=wanted.get("schema"))
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    arguments = dict(body.chat_template_kwargs or {})
    if model.tokenizer.reads("enable_thinking"):
        arguments.setdefault("enable_thinking", thinks)
    elif thinks and model.style.think is None:
        notes.left.append("thinking")
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        notes.left.append("thinking.budget_tokens")
    chat.chat_template_kwargs = arguments
    return chat


def _messages(body: CountRequest, notes: Notes) -> Iterator[Json]:
    system = []
    for place, block in _blocks(body.system or [], "system"):
        text = _text(block, place)
        if text.startswith(_BILLING):
            notes.left.append(place)
        else:
            system.append(text)
    if system:
        yield {"role": "system", "content": "\n\n".join(system)}
    for i, message in enumerate(body.messages):
        field = f"messages[{i}]"
        role, blocks = message.get("role"), _blocks(message.get("content"), f"{field}.content")
        if role == "assistant":
            yield _said(blocks, notes)
        elif role in ("user", "system"):
            texts: list[str] = []
            for place, block in blocks:
                if block.get("type") != "tool_result":
                    texts += _texts(block, place)
                    continue
                if texts:
                    yield {"role": role, "content": "\n".join(texts)}
                    texts = []
                yield _result(block, place)
            if texts or not blocks:
                yield {"role": role, "content": "\n".join(texts)}
        else:
            raise PromptError(f"{field}.role is {role!r}: it must be user, assistant or system")


def _said(blocks: Sequence[tuple[str, Json]], notes: Notes) -> Json:
    out: Json = {"role": "assistant", "content": ""}
    for place, block in blocks:
        kind = block.get("type")
        if kind == "text":
            out["content"] += _text(block, place)
        elif kind == "thinking":
            out["reasoning_content"] = out.get("reasoning_content", "") + _text(block, place, kind)
        elif kind == "tool_use":
            given = block.get("input")
            if not isinstance(given, dict):
                raise PromptError(f"{place}.input must be an object, not {type(given).__name__}")
            call = {"name": _text(block, place, "name"), "arguments": json.dumps(given)}
            out.setdefault("tool_calls", []).append(
                {"id": _text(block, place, "id"), "type": "function", "function": call}
            )
        elif isinstance(kind, str):  # what other servers did, or hid
            notes.left.append(f"{place}:{kind}")
        else:
            raise PromptError(f"{place}.type is missing: say what the block is")
    return out


def _result(block: Json, place: str) -> Json:
    blocks = _blocks(block.get("content") or [], f"{place}.content")
    text = "\n".join(text for inner, each in blocks for text in _texts(each, inner))
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _text(block, place, "tool_use_id"), "content": text}


def _texts(block: Json, place: str) -> list[str]:
    # The text of a block that a user may send.
    if block.get("type") != "document":
        return [_text(block, place)]
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "text":
        return [_text(source, f"{place}.source", "data")]
    if source.get("type") == "content":
        inner = _blocks(source.get("content"), f"{place}.source.content")
        return [_text(each, name) for name, each in inner]
    raise PromptError(f"{place}.source.type is {source.get('type')!r}: only text is read")


def _text(block: Json, place: str, key: str = "text") -> str:
    if key == "text" and block.get("type") != "text":
        raise PromptError(f"{place}.type is {block.get('type')!r}: only text is read")
    text = block.get(key)
    if not isinstance(text, str):
        raise PromptError(f"{place}.{key} must be text, not {type(text).__name__}")
    return text


def _blocks(content: Any, field: str) -> list[tuple[str, Json]]:
    # Blocks with their places.
    if isinstance(content, str):
        return [(field, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise PromptError(f"{field} must be text, or a list of blocks")
    return [(f"{field}[{i}]", each) for i, each in enumerate(content)]


def _tools(tools: Sequence[Json], notes: Notes) -> list[Json]:
    out = []
    for i, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):  # the vendor's own
            notes.left.append(f"tools[{i}]:{tool['type']}")
            continue
        names = {"name", "description", "strict"} & tool.keys()
        function = {key: tool[key] for key in names} | {"parameters": tool.get("input_schema")}
        out.append({"type": "function", "function": function})
    return out


class MessageAnswer(Answer):
    object = "message"
    prefix = "msg"
    end = b""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._blocks: list[Json] = []
        self._kind = ""  # of the block that is open
        self._arguments = ""  # of the call that is open
        self._new: list[Json] = []

    def opening(self) -> list[Json]:
        message = self._message() | {"stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message}]

    def feed(self, place: int, event: Event) -> list[Delta]:
        deltas = super().feed(place, event)
        self._new = []
        for delta in deltas:
            if delta.kind != self._kind or delta.name:
                self._end()
                self._begin(delta)
            self._more(delta)
        if self.done:
            self._end()
        return deltas

    def chunks(self, place: int, event: Event) -> list[Json]:
        self.feed(place, event)
        return self._new

    def closing(self) -> list[Json]:
        delta = {"stop_reason": self._stopped[0], "stop_sequence": self._stopped[1]}
        end = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return [end, {"type": "message_stop"}]

    def failing(self, error: Json) -> list[Json]:
        code = str(error["error"]["code"])
        return [error_body(error["error"]["message"], int(code) if code.isdigit() else 400)]

    def encode(self, chunks: Sequence[Json]) -> bytes:
        return sse(chunks or [{"type": "ping"}], named=True)

    def whole(self) -> Json:
        stopped = {"stop_reason": self._stopped[0], "stop_sequence": self._stopped[1]}
        return self._message() | stopped

    def _choice(self, prompt: Prepared) -> Choice:
        return chat_choice(self.model, self.plan, prompt, self.id)

    def _message(self) -> Json:
        head: Json = {"id": self.id, "type": "message", "role": "assistant"}
        head |= {"model": self._head["model"], "content": self._blocks, "usage": self._usage()}
        return head | {name: self._head[name] for name in ("system_fingerprint", "seed")}

    def _usage(self) -> Json:
        counts = self.usage()
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": counts["completion_tokens"],
        }

    @property
    def _stopped(self) -> tuple[str, str | None]:
        # Why the answer ended, and the stop sequence that ended it.
        choice = self.choices[0]
        done = choice.completion
        assert done is not None  # it has ended
        reason = choice.finish_reason or "stop"
        stop = self.stop_string(choice)
        if reason == "stop" and stop is not None:
            return "stop_sequence", stop
        if reason == "length" and len(done.token_ids) < self.plan.params.max_new_tokens:
            return "model_context_window_exceeded", None
        return _STOPS[reason], None

    def _begin(self, delta: Delta) -> None:
        self._kind, self._arguments = delta.kind, ""
        if delta.kind == "content":
            block: Json = {"type": "text", "text": ""}
        elif delta.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            call = next(c for c in self.choices[0].calls if delta.id in (c["id"], ""))
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
        self._blocks.append(block)
        self._tell("content_block_start", content_block={**block})
        if len(self._blocks) == 1:
            self._new.append({"type": "ping"})

    def _more(self, delta: Delta) -> None:
        block, text = self._blocks[-1], delta.text
        if delta.kind == "call":
            self._arguments += text
            if text:
                self._tell(delta={"type": "input_json_delta", "partial_json": text})
            return
        kind = "text" if delta.kind == "content" else "thinking"
        block[kind] += text
        self._tell(delta={"type": f"{kind}_delta", kind: text})

    def _end(self) -> None:
        if not self._kind:
            return
        block = self._blocks[-1]
        if self._kind == "reasoning":
            block["signature"] = hashlib.sha256(block["thinking"].encode()).hexdigest()
            self._tell(delta={"type": "signature_delta", "signature": block["signature"]})
        self._tell("content_block_stop")
        if self._kind == "call":
            try:
                block["input"] = json.loads(self._arguments)
            except ValueError:  # the answer was cut: such a call is none
                self._blocks.pop()
        self._kind = ""

    def _tell(self, name: str = "content_block_delta", /, **fields: Any) -> None:
        self._new.append({"type": name, "index": len(self._blocks) - 1, **fields})


def error_body(message: str, status: int, request: str = "") -> Json:
    """Return an error in Anthropic's shape."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return error | ({"request_id": request} if request else {})


def model_entry(model: ServedModel, name: str) -> Json:
    """Return a model as Anthropic's list has it."""
    made = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry: Json = {"type": "model", "id": name, "display_name": name, "created_at": made}
    return entry | {"max_input_tokens": model.context}


def model_list(model: ServedModel) -> Json:
    names = [model_entry(model, name) for name in model.names]
    ends = {"first_id": model.names[0], "last_id": model.names[-1]}
    return {"data": names, "has_more": False, **ends}


def rewritten(body: bytes, status: int, request: str) -> bytes:
    """Return an error of OpenAI's shape in Anthropic's."""
    message = json.loads(body)["error"]["message"]
    return msgspec.json.encode(error_body(message, status, request))

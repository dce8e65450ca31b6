"""Anthropic's Messages API: its requests as chats, its answers and streams of named events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from paceline.errors import PromptError
from paceline.serving.answers.parser import Delta
from paceline.serving.hosting import Hosted
from paceline.serving.messages import Notes
from paceline.serving.model import ServedModel
from paceline.serving.objects import ItemAnswer
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
# What is read of blocks.
_READ = {
    "text": "text",
    "thinking": "thinking signature",
    "tool_use": "id name input",
    "tool_result": "tool_use_id content is_error",
    "document": "source",
    "image": "source",
}
_OWN_TOOL = "name description strict input_schema"
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
    unheeded: ClassVar[tuple[str, ...]] = ("prompt_logprobs", "return_token_ids")
    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Meta(max_length=64)] | None = None


def plan_messages(model: ServedModel, body: CountRequest) -> Plan:
    """Return the plan of an answer; errors as of `plan_chat`."""
    notes = Notes()
    chat = _chat(model, body, notes)
    plan = plan_chat(model, chat)
    names = {"reasoning_effort": "output_config.effort"}
    plan.notes.left = [*notes.left, *(names.get(each, each) for each in plan.notes.left)]
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
    for place, block in _blocks(body.system or [], "system", notes):
        text = _text(block, place)
        if text.startswith(_BILLING):
            notes.left.append(place)
        else:
            system.append(text)
    if system:
        yield {"role": "system", "content": "\n\n".join(system)}
    for i, message in enumerate(body.messages):
        field = f"messages[{i}]"
        notes.unread(message, field, "role content")
        role = message.get("role")
        blocks = _blocks(message.get("content"), f"{field}.content", notes)
        if role == "assistant":
            yield _said(blocks, notes)
        elif role in ("user", "system"):
            said: list[str | Json] = []
            for place, block in blocks:
                if block.get("type") == "image":
                    said.append(_image(block, place))
                    continue
                if block.get("type") != "tool_result":
                    said += _texts(block, place, notes)
                    continue
                if said:
                    yield {"role": role, "content": _content(said)}
                    said = []
                yield _result(block, place, notes)
            if said or not blocks:
                yield {"role": role, "content": _content(said)}
        else:
            raise PromptError(f"{field}.role is {role!r}: it must be user, assistant or system")


def _content(said: Sequence[str | Json]) -> str | list[Json]:
    texts = [each for each in said if isinstance(each, str)]
    if len(texts) == len(said):
        return "\n".join(texts)
    return [{"type": "text", "text": each} if isinstance(each, str) else each for each in said]


def _image(block: Json, place: str) -> Json:
    # As a chat request has it.
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") not in ("base64", "url"):
        raise PromptError(f"{place}.source.type is {source.get('type')!r}: it must be base64")
    if source["type"] == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    data = _text(source, f"{place}.source", "data")
    return {"type": "image_url", "image_url": {"url": f"data:;base64,{data}"}}


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


def _result(block: Json, place: str, notes: Notes) -> Json:
    blocks = _blocks(block.get("content") or [], f"{place}.content", notes)
    text = "\n".join(text for inner, each in blocks for text in _texts(each, inner, notes))
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _text(block, place, "tool_use_id"), "content": text}


def _texts(block: Json, place: str, notes: Notes) -> list[str]:
    # The text of a block that a user may send.
    if block.get("type") != "document":
        return [_text(block, place)]
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    notes.unread(source, f"{place}.source", "media_type data content")
    if source.get("type") == "text":
        return [_text(source, f"{place}.source", "data")]
    if source.get("type") == "content":
        inner = _blocks(source.get("content"), f"{place}.source.content", notes)
        return [_text(each, name) for name, each in inner]
    raise PromptError(f"{place}.source.type is {source.get('type')!r}: only text is read")


def _text(block: Json, place: str, key: str = "text") -> str:
    if key == "text" and block.get("type") != "text":
        raise PromptError(f"{place}.type is {block.get('type')!r}: only text is read")
    text = block.get(key)
    if not isinstance(text, str):
        raise PromptError(f"{place}.{key} must be text, not {type(text).__name__}")
    return text


def _blocks(content: Any, field: str, notes: Notes) -> list[tuple[str, Json]]:
    # Blocks with their places.
    if isinstance(content, str):
        return [(field, {"type": "text", "text": content})]
    if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
        raise PromptError(f"{field} must be text, or a list of blocks")
    for i, block in enumerate(content):
        notes.unread(block, f"{field}[{i}]", _READ.get(str(block.get("type")), " ".join(block)))
    return [(f"{field}[{i}]", each) for i, each in enumerate(content)]


def _tools(tools: Sequence[Json], notes: Notes) -> list[Json]:
    out = []
    for i, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):  # the vendor's own
            notes.left.append(f"tools[{i}]:{tool['type']}")
            continue
        notes.unread(tool, f"tools[{i}]", _OWN_TOOL)
        function = {key: tool[key] for key in _OWN_TOOL.split()[:3] if key in tool}
        function["parameters"] = tool.get("input_schema")
        out.append({"type": "function", "function": function})
    return out


class MessageAnswer(ItemAnswer):
    object = "message"
    prefix = "msg"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        assert isinstance(self.body, MessagesRequest)
        self._most = self.body.max_tokens  # asked for: there may be less room

    def opening(self) -> list[Json]:
        message = self._message() | {"stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": message}]

    def closing(self) -> list[Json]:
        end = {"type": "message_delta", "delta": self._stopped(), "usage": self._usage()}
        return [end, {"type": "message_stop"}]

    def failing(self, error: Json) -> list[Json]:
        code = str(error["error"]["code"])
        return [error_body(error["error"]["message"], int(code) if code.isdigit() else 400)]

    def waiting(self) -> list[Json]:
        return [{"type": "ping"}]

    def whole(self) -> Json:
        return self._message() | self._stopped()

    def _message(self) -> Json:
        head: Json = {"id": self.id, "type": "message", "role": "assistant"}
        said = [block for block in self._items if block.get("input", block) is not None]
        head |= {"model": self._head["model"], "content": said, "usage": self._usage()}
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

    def _stopped(self) -> Json:
        # Why the answer ended, and the stop sequence that ended it.
        choice = self.choices[0]
        reason, stop = choice.finish_reason or "stop", self.stop_string(choice)
        told = _STOPS[reason]
        if reason == "stop" and stop is not None:
            told = "stop_sequence"
        elif reason == "length" and self.plan.params.max_new_tokens < self._most:
            told = "model_context_window_exceeded"
        return {"stop_reason": told, "stop_sequence": stop if told == "stop_sequence" else None}

    def _begin(self, kind: str, call: Json) -> None:
        if kind == "content":
            block: Json = {"type": "text", "text": ""}
        elif kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            name = call["function"]["name"]
            block = {"type": "tool_use", "id": call["id"], "name": name, "input": {}}
        self._items.append(block)
        self._arguments = ""
        self._tell("content_block_start", content_block={**block})
        if len(self._items) == 1:
            self._new.append({"type": "ping"})

    def _more(self, delta: Delta) -> None:
        block, text = self._items[-1], delta.text
        if delta.kind == "call":
            self._arguments += text
            if text:
                self._tell(delta={"type": "input_json_delta", "partial_json": text})
            return
        kind = "text" if delta.kind == "content" else "thinking"
        block[kind] += text
        self._tell(delta={"type": f"{kind}_delta", kind: text})

    def _end(self) -> None:
        block = self._items[-1]
        if self._kind == "reasoning":
            block["signature"] = hashlib.sha256(block["thinking"].encode()).hexdigest()
            self._tell(delta={"type": "signature_delta", "signature": block["signature"]})
        self._tell("content_block_stop")
        if self._kind == "call":
            try:
                block["input"] = json.loads(self._arguments)
            except ValueError:  # it was cut: such a call is none
                block["input"] = None

    def _tell(self, name: str = "content_block_delta", /, **fields: Any) -> None:
        self._new.append({"type": name, "index": len(self._items) - 1, **fields})


def error_body(message: str, status: int, request: str = "") -> Json:
    """Return an error in Anthropic's shape."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return error | ({"request_id": request} if request else {})


def model_entry(hosted: Hosted, name: str) -> Json:
    """Return a model as Anthropic's list has it."""
    made = datetime.fromtimestamp(hosted.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    entry: Json = {"type": "model", "id": name, "display_name": name, "created_at": made}
    return entry | {"max_input_tokens": None if hosted.model is None else hosted.model.context}


def model_list(hosted: Sequence[Hosted]) -> Json:
    names = [model_entry(each, name) for each in hosted for name in each.names]
    ends = {"first_id": names[0]["id"], "last_id": names[-1]["id"]}
    return {"data": names, "has_more": False, **ends}

"""Messages and tools of requests, from the shapes that clients send to those of templates.

Nothing is fetched, from nowhere. Errors are PromptError and name the field.
"""

from __future__ import annotations

import binascii
import json
import re
import reprlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import PromptError
from paceline.models.pictures import MOST_PIXELS, Picture
from paceline.models.shown import BLIND, pictures_in
from paceline.models.template import call_arguments
from paceline.serving.answers.style import HERMES

Message = dict[str, Any]

_ROLES = {
    "developer": "system",
    "function": "tool",
    **{name: name for name in ("system", "user", "assistant", "tool")},
}
# Names under which clients send the reasoning of an answer.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_TEXTS = ("text", "input_text", "output_text")
# Calls in the input of a Responses request, by where their arguments stand.
_CALLS = {
    **dict.fromkeys(("function_call", "mcp_call"), "arguments"),
    **dict.fromkeys(("local_shell_call", "shell_call"), "action"),
    "custom_tool_call": "input",
    "apply_patch_call": "operation",
}
# Items there that have no text for a model: hosted tools', references, what other servers made.
_SILENT = (
    r"\w+_call(_output)?|tool_search_output|mcp_\w+|\w*compaction\w*|item_reference|program(_output)?"
    r"|additional_tools|configuration_update|ghost_snapshot"
)
# Fields of objects at any place that say nothing to a model.
_MUTE = frozenset(
    [
        "annotations",
        "cache_control",
        "encrypted_content",
        "id",
        "index",
        "logprobs",
        "status",
        "type",
    ]
)
_SAID = "role content refusal name tool_call_id reasoning_content tool_calls function_call"
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlist = _SHORT.maxother = 60
_MOST_PICTURES = 8  # of a request, and all of `MOST_PIXELS` together
_OWN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "self")
_DESCRIPTION = """\
You may call functions. They are described here, a JSON object each, within <tools></tools>:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(slots=True)
class Notes:
    """What is told of a request beside its messages.

    Attributes:
        left: what was left out of it: places, with their types.
        spaces: by the name that the model sees: namespace and own name of a function that has one.
        sees: the model reads pictures.
        pictures: how many there are so far; `pixels` are those of all.
    """

    left: list[str] = field(default_factory=list)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    sees: bool = False
    pictures: int = 0
    pixels: int = 0

    def shown(self, space: Any, own: Any) -> Any:
        """Return the name under which the model sees a function of a namespace."""
        return next((name for name, each in self.spaces.items() if each == (space, own)), own)

    def unread(self, value: Mapping[str, Any], field: str, read: str) -> None:
        """Name the fields of an object that are not among those `read`, and ask for something."""
        known = _MUTE.union(read.split())
        for name, given in value.items():
            if name not in known and given not in (None, False, "", [], {}):
                self.left.append(f"{field}.{name[:100]}")


def chat_messages(messages: Any, notes: Notes | None = None) -> list[Message]:
    """Read the messages of a chat request; `notes` names fields that are not read.

    "developer" becomes "system". A `refusal` is the text of a message without content; what has
    neither is empty. Parts of content become parts of type "text", or "image" with a `Picture`.
    """
    notes = notes or Notes()
    listed = enumerate(_list(messages, "messages", 1))
    return [_message(each, f"messages[{i}]", notes) for i, each in listed]


def response_messages(
    items: Any, instructions: str | None = None, notes: Notes | None = None
) -> list[Message]:
    """Read the `input` of a Responses request, and its `instructions` as a system message.

    Calls join the assistant's message before them, whatever kind of tool they are of. Text of
    reasoning goes with what follows it. Items that say nothing by themselves, such as those of
    hosted tools and references, are left out and named in `notes`.
    """
    notes = notes or Notes()
    out: list[Message] = []
    if instructions is not None:
        out.append({"role": "system", "content": _string(instructions, "instructions")})
    if isinstance(items, str):
        return [*out, {"role": "user", "content": items}]
    thought = ""
    for i, item in enumerate(_list(items, "input", 1)):
        field = f"input[{i}]"
        kind = _object(item, field).get("type")
        if kind is None:
            kind = "item_reference" if "role" not in item and "id" in item else "message"
        kind = kind if isinstance(kind, str) else _short(kind)
        said: Message | None = None
        if kind == "message":
            said = _message(item, field, notes)
            out.append(said)
        elif kind in _CALLS:
            if not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": ""})
            said = out[-1]
            said.setdefault("tool_calls", []).append(_item_call(item, kind, field, notes))
            if kind == "mcp_call" and item.get("output") is not None:
                out.append(_result(item, field, notes))
        elif kind.removesuffix("_output") in _CALLS:
            out.append(_result(item, field, notes))
        elif kind == "reasoning":
            key, texts = "content" if item.get("content") else "summary", []
            for j, part in enumerate(_list(item.get(key) or [], f"{field}.{key}", 0)):
                place = f"{field}.{key}[{j}]"
                notes.unread(_object(part, place), place, "text")
                texts.append(_string(part.get("text"), f"{place}.text"))
            notes.unread(item, field, "content summary")
            thought += "\n".join(texts)
            if not texts:
                notes.left.append(f"{field}:reasoning")
        elif re.fullmatch(_SILENT, kind):
            notes.left.append(f"{field}:{kind}")
        else:
            raise PromptError(
                f"{field}.type is {kind!r}: it must be message, function_call, "
                "function_call_output, reasoning, or another item of OpenAI's API"
            )
        if said is not None and thought and said["role"] == "assistant":
            said.setdefault("reasoning_content", thought)
            thought = ""
    if not out:
        raise PromptError("input: no item of it says anything to the model: send a message")
    return out


def read_tools(tools: Any, field: str = "tools", notes: Notes | None = None) -> list[Message]:
    """Read tools of a chat request, or of a Responses request, where functions are flat.

    A namespace is opened. Tools of other types, which the server cannot call, are left out and
    named in `notes`.
    """
    notes = notes or Notes()
    out: dict[str, Message] = {}

    def read(tools: Any, field: str, space: str) -> None:
        for i, tool in enumerate(_list(tools, field, 0)):
            place = f"{field}[{i}]"
            kind = _object(tool, place).get("type")
            if kind == "namespace" and not space:
                read(tool.get("tools"), f"{place}.tools", _string(tool.get("name"), place))
            elif kind == "function":
                inner, function = _function(tool, place, notes)
                own = function["name"]
                if space:
                    if own in out:
                        function["name"] = f"{space}.{own}"[:64]
                    notes.spaces[function["name"]] = space, own
                if function["name"] in out:
                    raise PromptError(
                        f"{inner}.name {own!r} stands twice: give each function its own"
                    )
                out[function["name"]] = {"type": "function", "function": function}
            elif isinstance(kind, str) and re.fullmatch(r"\w{1,40}", kind, re.ASCII):
                notes.left.append(f"{place}:{kind}")
            else:
                raise PromptError(f"{place}.type is {_short(kind)}: it must be 'function'")

    read(tools, field, "")
    return list(out.values())


def _function(tool: Mapping[str, Any], place: str, notes: Notes) -> tuple[str, Message]:
    nested = "function" in tool
    inner = f"{place}.function" if nested else place
    if nested:
        notes.unread(tool, place, "function")
    function = {**_object(tool["function"] if nested else tool, inner)}
    function.pop("type", None)
    name = function.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name, re.ASCII):
        raise PromptError(
            f"{inner}.name is {_short(name)}: it must be 1 to 64 letters, digits, '_', '-' or '.'"
        )
    function["parameters"] = _object(
        function.get("parameters") or {"type": "object", "properties": {}}, f"{inner}.parameters"
    )
    return inner, function


def template_arguments(arguments: Any, field: str = "chat_template_kwargs") -> dict[str, Any]:
    """Read arguments of the chat template; those that requests have fields for are refused."""
    given = dict(_object(arguments, field))
    for name in _OWN:
        if name in given:
            raise PromptError(f"{field}.{name} cannot be set: use the request's own field")
    return given


def describe_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Put tools, calls and results into words, for models whose template reads no tools.

    Tools go to the system message; calls are written as `HERMES` reads them; results become a
    message of the user.
    """
    out: list[Message] = []
    previous = ""
    for message in messages:
        role, text = message["role"], content_text(message)
        if pictures_in([message]):
            out.append({"role": role, "content": message["content"]})
            previous = role
            continue
        if role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        if previous == "tool" and role in ("tool", "user"):
            out[-1]["content"] += "\n" + text
        else:
            written = [text] if text else []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                name, arguments = json.dumps(function["name"]), function["arguments"]
                body = f'{{"name": {name}, "arguments": {arguments}}}'
                written.append(f"{HERMES.before}{body}{HERMES.after}")
            content = "\n".join(written)
            out.append({"role": "user" if role == "tool" else role, "content": content})
        previous = role
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        system = _DESCRIPTION.format(tools=lines)
        if out and out[0]["role"] == "system":
            system = f"{out.pop(0)['content']}\n\n{system}"
        out.insert(0, {"role": "system", "content": system})
    return out


def content_text(message: Message) -> str:
    """Return a read message's content as one text."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _message(message: Any, field: str, notes: Notes, called: str = "content") -> Message:
    # `called` is the client's name of the content.
    role = _object(message, field).get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise PromptError(f"{field}.role is {role!r}: it must be one of {', '.join(_ROLES)}")
    out: Message = {"role": _ROLES[role]}
    notes.unread(message, field, _SAID)
    content = message.get("content")
    if content is None:
        content = message.get("refusal")
    if content is None and role != "assistant":
        raise PromptError(f"{field}.{called} is missing: give text")
    out["content"] = _content(content, f"{field}.{called}", notes)
    for name in ("name", "tool_call_id", *_THOUGHTS):
        if message.get(name) is not None:
            known = "reasoning_content" if name in _THOUGHTS else name
            out.setdefault(known, _string(message[name], f"{field}.{name}"))
    calls = message.get("tool_calls")
    if message.get("function_call") is not None:  # the form of before tools
        place = f"{field}.function_call"
        out["tool_calls"] = [_call({"function": message["function_call"]}, place, place, notes)]
    if calls:
        place = f"{field}.tool_calls"
        if role != "assistant":
            raise PromptError(f"{place} belongs to messages of an assistant, not of a {role}")
        out["tool_calls"] = [
            _call(call, f"{place}[{i}]", f"{place}[{i}].function", notes)
            for i, call in enumerate(_list(calls, place, 0))
        ]
    return out


def _item_call(item: Mapping[str, Any], kind: str, field: str, notes: Notes) -> Message:
    key = _CALLS[kind]
    name, given = item.get("name"), item.get(key)
    if key == "input":
        given = _written(given, f"{field}.input")
    elif key != "arguments":
        name = kind.removesuffix("_call")
        given = json.dumps(_object(given, f"{field}.{key}"), ensure_ascii=False)
    name = notes.shown(item.get("namespace"), name)
    notes.unread(item, field, f"call_id name namespace output {key}")
    called = item.get("call_id") or item.get("id")
    call = {"id": called, "function": {"name": name, "arguments": given}}
    return _call(call, field, field, notes)


def _written(text: Any, field: str) -> str:
    # What was written to a tool that takes text, as the arguments of a function.
    return json.dumps({"input": _string(text, field)}, ensure_ascii=False)


def _result(item: Mapping[str, Any], field: str, notes: Notes) -> Message:
    # What a call gave: text, parts of which those that are no text are left out, or JSON.
    output = item.get("output")
    if isinstance(output, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in output
    ):
        for i, part in enumerate(output):
            if part["type"] not in _TEXTS:
                notes.left.append(f"{field}.output[{i}]:{part['type']}")
        output = [part for part in output if part["type"] in _TEXTS]
    elif output is not None and not isinstance(output, str):
        output = json.dumps(output, ensure_ascii=False)
    if item.get("type") != "mcp_call":  # which is a call too
        notes.unread(item, field, "call_id name namespace output")
    called = item.get("call_id") or item.get("id")
    result = {"role": "tool", "tool_call_id": called, "content": output}
    return _message(result, field, notes, "output")


def _content(content: Any, field: str, notes: Notes) -> str | list[Message]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for i, part in enumerate(_list(content, field, 0)):
        kind = _object(part, f"{field}[{i}]").get("type")
        if kind in ("image_url", "input_image"):
            parts.append({"type": "image", "image": _picture(part, f"{field}[{i}]", notes)})
            continue
        if kind not in (*_TEXTS, "refusal"):
            raise PromptError(f"{field}[{i}].type is {kind!r}: only text and pictures are read")
        key = "refusal" if kind == "refusal" else "text"
        notes.unread(part, f"{field}[{i}]", key)
        parts.append({"type": "text", "text": _string(part.get(key), f"{field}[{i}].{key}")})
    return parts


def _picture(part: Mapping[str, Any], field: str, notes: Notes) -> Picture:
    if not notes.sees:
        raise PromptError(f"{field} {BLIND}")
    given, place = part.get("image_url"), f"{field}.image_url"
    inner = given if isinstance(given, Mapping) else {"url": given}
    for object, where, read in ((part, field, "image_url"), (inner, place, "url")):
        usual = object.get("detail") in ("low", "auto")  # there is one size
        notes.unread(object, where, f"{read} detail" if usual else read)
    if inner is given:
        given, place = inner.get("url"), f"{place}.url"
    head, _, data = _string(given, place).partition(",")
    if not re.fullmatch(r"data:[^,]*;base64", head[:100], re.IGNORECASE):
        raise PromptError(
            f"{place} is no data: URL, and nothing is fetched: send the picture itself, as "
            "data:image/png;base64,..."
        )
    notes.pictures += 1
    if notes.pictures > _MOST_PICTURES:
        raise PromptError(f"{field} is picture {notes.pictures}: {_MOST_PICTURES} are the most")
    try:
        raw = b64decode(data, validate=True)
    except binascii.Error as error:
        raise PromptError(f"{place} is no base64 ({error}): encode the whole file") from error
    picture = Picture.of(raw, place, most_pixels=MOST_PIXELS - notes.pixels)
    notes.pixels += picture.pixels.size // 3
    return picture


def _call(call: Any, field: str, inner: str, notes: Notes) -> Message:
    # `inner` is where name and arguments stand.
    kind = _object(call, field).get("type") or "function"
    notes.unread(call, field, "function custom")
    if kind == "custom":
        custom = _object(call.get("custom"), f"{field}.custom")
        written = _written(custom.get("input"), f"{field}.custom.input")
        call = {"id": call.get("id"), "function": {**custom, "arguments": written}}
    elif kind != "function":
        raise PromptError(f"{field}.type is {kind!r}: only functions can be called")
    function = _object(call.get("function"), inner)
    notes.unread(function, inner, "name arguments input")
    out: Message = {
        "type": "function",
        "function": {
            "name": _string(function.get("name"), f"{inner}.name"),
            "arguments": _arguments(function.get("arguments"), f"{inner}.arguments"),
        },
    }
    if call.get("id") is not None:
        out["id"] = _string(call["id"], f"{field}.id")
    return out


def _arguments(value: Any, field: str) -> str:
    read = call_arguments(value, field)
    return value if isinstance(value, str) and read else json.dumps(read, ensure_ascii=False)


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PromptError(f"{field} must be an object, not {_short(value)}")
    return value


def _list(value: Any, field: str, least: int) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) < least:
        raise PromptError(f"{field} must be a list{' that is not empty' * least}")
    return value


def _string(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise PromptError(f"{field} must be text, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = _SHORT.repr(value)  # of large values no more than is shown
    return text if len(text) <= 40 else text[:40] + "..."

"""One call of a tool, a JSON object read character by character."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", "type", "id", *_ARGUMENTS)
_WORD = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_IN_STRING = ("string", "escape", "hex")


class JsonReader:
    """Check JSON as it comes.

    Attributes:
        depth: number of open objects and lists.
        state: what may follow, such as "value", "key" or "comma"; "done" after the value.
    """

    def __init__(self) -> None:
        self.state = "value"
        self._open: list[str] = []
        self._is_key = False
        self._hex = 0
        self._word = ""

    @property
    def depth(self) -> int:
        return len(self._open)

    def feed(self, char: str) -> bool:
        """Add a character; False if the text is not JSON with it."""
        if self.state in _IN_STRING:
            return self._string(char)
        if self.state == "word":
            if char.isalnum() or char in "+-.":
                self._word += char
                return True
            if not _WORD.fullmatch(self._word):
                return False
            self.state = "comma"
        return char in SPACE or self._mark(char)

    def _string(self, char: str) -> bool:
        if self.state == "string":
            if char == '"':
                self.state = "colon" if self._is_key else "comma"
            elif char == "\\":
                self.state = "escape"
            return char >= " "
        if self.state == "escape":
            self.state, self._hex = ("hex", 4) if char == "u" else ("string", 0)
            return char in 'u"\\/bfnrt'
        self._hex -= 1
        self.state = "hex" if self._hex else "string"
        return char in "0123456789abcdefABCDEF"

    def _mark(self, char: str) -> bool:
        state, inner = self.state, self._open[-1] if self._open else ""
        if state in ("value", "item") and char in "{[":
            self._open.append(char)
            self.state = "key" if char == "{" else "item"
        elif char == '"' and state in ("value", "item", "key", "next key"):
            self.state, self._is_key = "string", state.endswith("key")
        elif (char == "}" and inner == "{" and state in ("key", "comma")) or (
            char == "]" and inner == "[" and state in ("item", "comma")
        ):
            self._open.pop()
            self.state = "comma" if self._open else "done"
        elif state in ("value", "item") and (char.isalnum() or char == "-"):
            self.state, self._word = "word", char
        elif state == "colon" and char == ":":
            self.state = "value"
        elif state == "comma" and char == ",":
            self.state = "next key" if inner == "{" else "value"
        else:
            return False
        return True


class CallReader:
    """Take name and arguments from an object, in whatever order.

    Attributes:
        name: None until it is read.
        whole: the arguments were read to their end.
        done: the object was read to its end.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.whole = False
        self._json = JsonReader()
        self._last = ""
        self._key = ""
        self._seen: set[str] = set()
        self._text: list[str] = []  # of the string that is being read
        self._arguments: list[str] = []

    @property
    def done(self) -> bool:
        return self._json.state == "done"

    @property
    def opening(self) -> bool:
        """Whether the brace of the object, or of its arguments, was read last."""
        inside = 2 if self._key in _ARGUMENTS else 1
        return self._last == "{" and self._json.state == "key" and self._json.depth == inside

    def feed(self, char: str) -> bool:
        """Add a character; False if the object is no call with it."""
        reader, self._last = self._json, char
        depth, state = reader.depth, reader.state
        argues = self._key in _ARGUMENTS
        begins = depth == 1 and state == "value" and char not in SPACE
        if (begins and char != ("{" if argues else '"')) or not reader.feed(char):
            return False
        if argues and (begins or depth > 1):
            self._arguments.append(char)
            self.whole = self.whole or reader.depth == 1
        elif state in _IN_STRING or reader.state in _IN_STRING:
            self._text.append(char)
            if reader.state not in _IN_STRING:
                return self._take_string(is_key=reader.state == "colon")
        return True

    def take(self) -> str:
        """Return the arguments read since the last time, as written."""
        text = "".join(self._arguments)
        self._arguments.clear()
        return text

    def _take_string(self, is_key: bool) -> bool:
        text = json.loads("".join(self._text))
        self._text.clear()
        if is_key:
            self._key = text
            kind = "arguments" if text in _ARGUMENTS else text
            fresh = kind not in self._seen
            self._seen.add(kind)
            return fresh and text in _KEYS
        if self._key == "name":
            self.name = text
        return True


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant({"true": True, "false": False, "null": None}[node.id])


def _python(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def python_arguments(text: str) -> str | None:
    """Return the arguments of a call that is written as Python, "f(name=value)", as JSON.

    None if they are no named values; raises SyntaxError if the call is not whole.
    """
    try:
        call = _python(text)
        if not isinstance(call, ast.Call) or call.args or not all(k.arg for k in call.keywords):
            return None
        values = {k.arg: ast.literal_eval(_Words().visit(k.value)) for k in call.keywords}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


_PARAMETER = re.compile(
    r"<parameter=([^<>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_KINDS = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def element_arguments(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return the arguments of a call that is written as XML, `<parameter=key>value</parameter>`.

    What a value is says the schema of the arguments: text, unless it is JSON (or Python) of a type
    that is allowed. None if there is anything between the elements.
    """
    if _PARAMETER.sub("", text).strip():
        return None
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    values = {key: _typed(value, known.get(key)) for key, value in _PARAMETER.findall(text)}
    return json.dumps(values, ensure_ascii=False)


def _typed(text: str, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return text
    types = set(_types(schema)) or {"object", "array"}
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        try:
            read = ast.literal_eval(_Words().visit(_python(text.strip())))
        except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
            return text
    kind = "null" if read is None else _KINDS.get(type(read), "string")
    kinds = {kind, "number"} if kind == "integer" else {kind}
    return read if kind != "string" and kinds & types else text


def _types(schema: Any) -> Iterator[str]:
    # Clients send schemas of any shape.
    if isinstance(schema, list):
        for each in schema:
            yield from _types(each)
    elif isinstance(schema, Mapping):
        for name in ("type", "anyOf", "oneOf", "allOf"):
            yield from _types(schema.get(name))
    elif isinstance(schema, str):
        yield schema

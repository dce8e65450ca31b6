"""One call of a tool: JSON read character by character, other forms when they are whole."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
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


def _value(node: ast.expr) -> Any:
    return ast.literal_eval(_Words().visit(node))


Reader = Callable[[str, Mapping[str, Any]], str | None]
"""Reads arguments, what stands between a call's name and its end, by their schema, into JSON.

None if they never become a call's; raises SyntaxError if they go on.
"""


def python_arguments(text: str, schema: Mapping[str, Any]) -> str | None:
    """Read named values as Python writes them, `a=1, b='x'`, on one line."""
    if "\n" in text:
        return None
    try:
        call = _python(f"f({text})")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        if not all(each.arg for each in call.keywords):
            return None
        return _json({str(each.arg): _value(each.value) for each in call.keywords})
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None


_PARAMETER = re.compile(
    r"<parameter=([^<>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL
)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_KINDS = {bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def element_arguments(text: str, schema: Mapping[str, Any]) -> str | None:
    """Read XML of parameters, `<parameter=key>value</parameter>`, by `_typed`."""
    return _elements(_PARAMETER, text, schema)


def pair_arguments(text: str, schema: Mapping[str, Any]) -> str | None:
    """Read XML of pairs, `<arg_key>key</arg_key><arg_value>value</arg_value>`, by `_typed`."""
    return _elements(_PAIR, text, schema)


def _elements(element: re.Pattern[str], text: str, schema: Mapping[str, Any]) -> str | None:
    if element.sub("", text).strip():  # between the elements
        return None
    return _json({key: _typed(value, key, schema) for key, value in element.findall(text)})


def _json(value: Any) -> str | None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):
        return None
    # Python's strings may hold halves of characters.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _typed(text: str, key: str, root: Mapping[str, Any]) -> Any:
    # Text, unless it is JSON (or Python) of a type that the schema of this argument allows.
    schemas = _member(root, key)
    types = {each for schema in schemas for each in _types(schema, root)}
    types = types or ({"object", "array"} if schemas else set())
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = _word(text.strip())
    if read is None:
        return None if "null" in types else text
    kind = _KINDS.get(type(read), "string")
    whole = kind == "integer" or (kind == "number" and float(read).is_integer())
    kinds = {kind, "number", "integer"} if whole else {kind}
    return read if kind != "string" and kinds & types and _json(read) is not None else text


def _parts(schema: Any, root: Mapping[str, Any], depth: int = 9) -> Iterator[Mapping[str, Any]]:
    # A schema, and those that it refers to or is put together of. Clients send any shape.
    if not isinstance(schema, Mapping) or not depth:
        return
    yield schema
    for name in ("anyOf", "oneOf", "allOf"):
        for each in _listed(schema.get(name)):
            yield from _parts(each, root, depth - 1)
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith("#"):
        found: Any = root
        for key in filter(None, ref[1:].split("/")):
            found = found.get(key) if isinstance(found, Mapping) else None
        yield from _parts(found, root, depth - 1)


def _member(root: Mapping[str, Any], key: str) -> list[Any]:
    # The schemas of an argument.
    found, others = [], []
    for part in _parts(root, root):
        known = part.get("properties")
        if isinstance(known, Mapping) and isinstance(known.get(key), Mapping):
            found.append(known[key])
        elif isinstance(part.get("additionalProperties"), Mapping):
            others.append(part["additionalProperties"])
        whole = (v for v in _values(part) if isinstance(v, Mapping))
        found += [{"const": v[key]} for v in whole if key in v]
    return found or others


def _types(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    for part in _parts(schema, root):
        given = part.get("type")
        yield from (each for each in [given, *_listed(given)] if isinstance(each, str))
        found = _values(part)
        yield from ("null" if v is None else _KINDS.get(type(v), "string") for v in found)


def _values(schema: Mapping[str, Any]) -> list[Any]:
    return [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_QUOTE = '<|"|>'
_BARE = re.compile(r"\s*([^,:{}\[\]]+)")
_GAP = re.compile(r"\s*")


def marked_arguments(text: str, schema: Mapping[str, Any]) -> str | None:
    """Read Gemma 4's members: bare keys, strings between marks, `a:<|"|>x<|"|>,b:[1,{c:true}]`."""
    outside = "".join(text.split(_QUOTE)[::2])
    if text.count(_QUOTE) % 2 or outside.count("{") > outside.count("}"):
        raise SyntaxError("a value goes on")
    try:
        value, at = _marked("{" + text + "}", 0)
    except (ValueError, IndexError, RecursionError):
        return None
    return _json(value) if at == len(text) + 2 else None


def _marked(text: str, at: int) -> tuple[Any, int]:
    # The value at a place, and where it ends; ValueError or IndexError if there is none.
    at = _past(text, at)
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    if text[at] not in "{[":
        found = _BARE.match(text, at)
        if found is None:
            raise ValueError("no value")
        return _word(found[1].strip()), found.end()
    members = text[at] == "{"
    close = "}" if members else "]"
    out: list[Any] = []
    at = _past(text, at + 1)
    while text[at] != close:
        key: Any = None
        if members:
            end = text.index(":", at)
            key, end = _marked(text, at) if text.startswith(_QUOTE, at) else (text[at:end], end)
            at = text.index(":", end) + 1
            key = key.strip()
        value, at = _marked(text, at)
        out.append((key, value) if members else value)
        at = _past(text, at)
        if text[at] not in (",", close):
            raise ValueError("no comma")
        at = _past(text, at + (text[at] == ","))
    return dict(out) if members else out, at + 1


def _past(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _word(text: str) -> Any:
    try:
        return _value(_python(text))
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError):
        return text

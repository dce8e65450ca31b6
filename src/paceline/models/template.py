"""Chat templates: what Jinja makes of messages, and who wrote each character of it.

Templates see plain strings. `Traced` strings are equal to them in all that a template can ask, and
carry a mark for each character through what it does with them; so special tokens can be told from
text that spells one.
"""

from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, SupportsIndex, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from paceline.errors import PromptError

# Who wrote a character: the template, a message, the message that goes on, the tags around the
# reasoning of that one; or it cannot be known. What the first and the fourth wrote makes tokens.
OWN, TOLD, LAST, TAG, MIXED = b"o", b"t", b"l", b"r", b"?"
# What a template may raise while it is read or rendered, beside Jinja's own errors.
REFUSALS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SyntaxError,  # "break" in a macro
)
# Neither repr nor JSON shows it as it is.
_PROBE = "\x7f\\\x7f"
# Tags around the reasoning of models, as templates write them.
_THINK = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
# Of gpt-oss: what its templates have, and what stands between reasoning and words before a call.
_CHANNEL = "<|channel|>"
_SILENT = {"content": "", "thinking": "", "reasoning_content": ""}
_PREAMBLE = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
_VEILS = 0x20000  # characters that stand for others: letters that are shown as they are
_UNSEEN = 0  # who wrote strings in what is not looked into
# What holds no strings, or none that functions show.
_BARE = int | float | jinja2.Undefined | Context | EvalContext | jinja2.Environment
_PLAIN = frozenset("\"'\\")  # what repr and JSON look at, beside white space and controls


def system_mark(number: int) -> bytes:
    """Return the mark of the content of a system message, by its number among them."""
    return bytes([128 + number % 128])


def reasoning_tags(template: str | None) -> tuple[str, str] | None:
    """Return the tags around a model's reasoning, by its chat template; None if it has none."""
    return next((tags for tags in _THINK if tags[1] in (template or "")), None)


def _marks(text: str) -> bytes:
    if isinstance(text, Traced | _Safe):
        return text._marks
    return (OWN if text.isdecimal() else MIXED) * len(text)


def _look(value: Any, found: set[int]) -> None:
    # Add the marks of all strings in a value.
    if isinstance(value, str):
        marks = _marks(value)
        found.update(marks[:1], marks.strip(marks[:1]))
    elif isinstance(value, Mapping):
        _look([*value, *value.values()], found)
    elif isinstance(value, list | tuple):
        for each in value:
            _look(each, found)
    elif value is not None and not isinstance(value, _BARE):
        found.add(_UNSEEN)


class _Veils(dict[str, tuple[str, int]]):
    # By a character that stands for another: that one, and who wrote it.

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], str] = {}

    def over(self, value: Any) -> Any:
        """Return a value in which what others than the template wrote is veiled."""
        if isinstance(value, str):
            pairs = zip(str.__str__(value), _marks(value), strict=True)
            veiled = (char if mark in OWN else self._over(char, mark) for char, mark in pairs)
            return (Markup if hasattr(value, "__html__") else str)("".join(veiled))
        if isinstance(value, Mapping):
            return {self.over(key): self.over(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.over, value))
        return value

    def _over(self, char: str, mark: int) -> str:
        if char in _PLAIN or char.isspace() or not char.isprintable():
            return char
        pair = char, mark
        if pair not in self._found:
            veil = self._found[pair] = chr(_VEILS + len(self))
            self[veil] = pair
        return self._found[pair]


def _follow(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    # Call what makes a string of others, and find who wrote its characters: by a second call, in
    # which other characters stand for those of others than the template.
    text = function(*args, **options)
    followed = isinstance(text, Traced | _Safe) and MIXED not in text._marks
    if followed or not isinstance(text, str):
        return text
    made = _Safe if hasattr(text, "__html__") else Traced
    found: set[int] = set()
    _look([*args, *options.values()], found)
    if len(found) < 2 or _UNSEEN in found:
        mark = MIXED if _UNSEEN in found else bytes(found) or OWN
        return made(text, mark * len(text))
    unknown = text if isinstance(text, Traced | _Safe) else made(text)
    veils = _Veils()
    try:
        veiled = {name: veils.over(each) for name, each in options.items()}
        shown = str.__str__(function(*map(veils.over, args), **veiled))
    except (*REFUSALS, jinja2.TemplateError):
        return unknown
    pairs = [veils.get(char, (char, *OWN)) for char in shown]
    if "".join(char for char, _ in pairs) != text:
        return unknown
    return made(text, bytes(mark for _, mark in pairs))


def _mixing(name: str, kind: type[str] = str) -> Any:
    method = getattr(kind, name)

    def mixed(self: Any, *args: Any, **options: Any) -> str:
        if args or kind is Markup:
            return cast(str, _follow(method, self, *args, **options))
        text = method(self)
        if len(text) == len(self):
            return Traced(text, self._marks)
        parts = list(map(method, str.__str__(self)))
        marks = (bytes([mark]) * len(part) for mark, part in zip(self._marks, parts, strict=True))
        return Traced(text, b"".join(marks) if "".join(parts) == text else None)

    return functools.wraps(method)(mixed)


def _cutting(name: str) -> Any:
    method = getattr(str, name)

    def cut(self: Traced, *args: Any, **options: Any) -> Any:
        parts = method(self, *args, **options)
        if isinstance(parts, tuple):
            return tuple(self._parts(parts, ""))
        lines = name == "splitlines"
        return self._parts(parts, None if lines else (*args, options.get("sep"))[0])

    return functools.wraps(method)(cut)


_CUTS = "split rsplit splitlines partition rpartition"
_OTHERS = (
    "__mod__ lower upper title capitalize casefold swapcase ljust rjust center zfill expandtabs"
)

_ESCAPING = "__add__ __radd__ __mod__ join replace"  # methods of Markup


class Traced(str):
    """A string with a mark for each of its characters."""

    __slots__ = ("_marks",)
    _marks: bytes

    def __new__(cls, text: str, marks: bytes | None = None) -> Traced:
        self = super().__new__(cls, str.__str__(text))
        self._marks = MIXED * len(text) if marks is None else marks
        return self

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = str.__getitem__(self, key)
        marks = self._marks[key]
        return Traced(text, marks if isinstance(marks, bytes) else bytes([marks]))

    def __add__(self, other: str) -> str:
        if hasattr(other, "__html__"):
            return NotImplemented
        return Traced(str.__add__(self, other), self._marks + _marks(other))

    def __radd__(self, other: str) -> str:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(other, self), _marks(other) + self._marks)

    def __mul__(self, times: SupportsIndex) -> str:
        return Traced(str.__mul__(self, times), self._marks * times.__index__())

    __rmul__ = __mul__

    def join(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        return Traced(str.join(self, parts), self._marks.join(_marks(part) for part in parts))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        text = str.replace(self, old, new, count)
        if not old:
            return cast(str, _follow(str.replace, self, old, new, count))
        kept, at = [], 0
        for part in str.split(self, old, count):
            kept.append(self._marks[at : at + len(part)])
            at += len(part) + len(old)
        return Traced(text, _marks(new).join(kept))

    def strip(self, chars: str | None = None) -> str:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> str:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> str:
        return self[len(prefix) if self.startswith(prefix) else 0 :]

    def removesuffix(self, suffix: str) -> str:
        return self[: len(str.removesuffix(self, suffix))]

    def _parts(self, parts: Sequence[str], gap: str | None) -> list[str]:
        # Parts in order, with `gap` between them, or white space.
        out, at = [], 0
        for part in parts:
            at = self.find(part, at) if gap is None else at
            out.append(self[at : at + len(part)])
            at += len(part) + len(gap or "")
        return out

    locals().update({name: _cutting(name) for name in _CUTS.split()})
    # The other methods are followed as far as one wrote all.
    locals().update({name: _mixing(name) for name in _OTHERS.split()})


def _kept(name: str) -> Any:
    method = getattr(Traced, name)

    def kept(self: _Safe, *args: Any, **options: Any) -> Any:
        found = method(Traced(self, self._marks), *args, **options)
        if isinstance(found, str):
            return _Safe(found, _marks(found))
        return type(found)(_Safe(each, _marks(each)) for each in found)

    return functools.wraps(method)(kept)


class _Safe(Markup):
    # What filters such as "safe" return.
    __slots__ = ("_marks",)
    _marks: bytes

    def __new__(cls, text: Any = "", marks: bytes | None = None) -> _Safe:
        self = super().__new__(cls, text)
        self._marks = MIXED * len(self) if marks is None else marks
        return self

    def __str__(self) -> str:
        return Traced(self, self._marks)

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"

    locals().update({name: _mixing(name, Markup) for name in _ESCAPING.split()})
    locals().update(
        {name: _kept(name) for name in f"{_CUTS} __getitem__ strip lstrip rstrip".split()}
    )


def traced(value: Any, mark: bytes) -> Any:
    """Return a copy of a value with a mark on every character of its strings, keys included."""
    if isinstance(value, Traced | _Safe):
        return value
    if isinstance(value, str):
        return (_Safe if hasattr(value, "__html__") else Traced)(value, mark * len(value))
    if isinstance(value, Mapping):
        return {traced(key, mark): traced(each, mark) for key, each in value.items()}
    if isinstance(value, list):
        return [traced(each, mark) for each in value]
    if isinstance(value, tuple):
        return tuple(traced(each, mark) for each in value)
    return value


@functools.lru_cache(maxsize=4096)
def _own(text: str) -> str:
    return Traced(text, OWN * len(text))


def recalled(content: Any, tags: tuple[str, str], mark: bytes = OWN) -> Any:
    """Mark the tags of the reasoning that a model's own answer, which is traced, begins with."""
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        first = {**content[0], "text": recalled(content[0].get("text"), tags, mark)}
        return [first, *content[1:]]
    if not isinstance(content, Traced):
        return content
    begin = len(content) - len(content.lstrip())
    if not content.startswith(tags[0], begin):
        return content
    marks = bytearray(content._marks)
    for tag, at in zip(tags, (begin, content.find(tags[1])), strict=True):
        if at >= begin:
            marks[at : at + len(tag)] = mark * len(tag)
    return Traced(content, bytes(marks))


def one_call_each(messages: Sequence[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Give calls messages of their own, each with its result behind it, as gpt-oss writes them.

    Its template shows the first call of a message alone; of another `source` nothing changes.
    """
    out: list[dict[str, Any]] = []
    rest = deque(messages)
    while rest:
        each = rest.popleft()
        calls = each.get("tool_calls")
        if _CHANNEL not in source or not isinstance(calls, list) or len(calls) < 2:
            out.append(each)
            continue
        results = []
        while rest and rest[0].get("role") == "tool":
            results.append(rest.popleft())
        # By ids, where these are those of the calls; else in order.
        places = {call.get("id"): n for n, call in enumerate(calls) if isinstance(call, Mapping)}
        named = [places.get(result.get("tool_call_id")) for result in results]
        if len(places) < len(calls) or None in named:
            named = [min(n, len(calls) - 1) for n in range(len(results))]
        for n, call in enumerate(calls):
            out.append({**(each if not n else {**each, **_SILENT}), "tool_calls": [call]})
            out += [result for result, place in zip(results, named, strict=True) if place == n]
    return out


def with_preambles(messages: Sequence[dict[str, Any]], source: str) -> list[dict[str, Any]] | None:
    """Put what is said before calls behind the reasoning, in its channel, as gpt-oss writes it.

    Its template takes one of both beside a call. None if no traced message has both, or `source`
    is another template.
    """
    if _CHANNEL not in source:
        return None
    out = list(messages)
    for at, each in enumerate(messages):
        thought, said = each.get("thinking"), each.get("content")
        if each.get("tool_calls") and thought and said and isinstance(said, str):
            out[at] = {**each, "thinking": thought + _own(_PREAMBLE) + said, "content": ""}
    return None if out == list(messages) else out


def _concat(parts: Iterable[str]) -> str:
    return Traced("", b"").join(parts)


class _Generator(CodeGenerator):
    # Marks what the template wrote itself.

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        holds = isinstance(value, str | list | tuple | dict)
        self.write(f"environment.own({value!r})" if holds else repr(value))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write(")))")


class _Generation(Extension):
    # Around what the model wrote, for training: a block of its own, of which all is shown.
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("shown"), [], [], body, lineno=line)

    def shown(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        self.filters = {name: _followed(each) for name, each in self.filters.items()}
        self.filters |= {"join": _join(self.filters["join"]), "tojson": _followed(_to_json)}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @staticmethod
    def own(value: Any) -> Any:
        return _own(value) if type(value) is str else traced(value, OWN)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        text = getattr(value, "__self__", "")
        if made is None or _marks(text).strip(OWN):
            return made
        # The text that is filled is followed as another argument.
        return functools.partial(_follow, lambda _, *args, **names: made(*args, **names), text)


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(function)(functools.partial(_follow, function))


def _join(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def joined(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        return function(context, value, traced(str(d), MIXED), attribute)

    return joined


class ChatTemplate:
    """A compiled template.

    Attributes:
        reads: names that it reads of what it is given.
        takes: contents that it shows: "text", "parts", or "both".
    """

    def __init__(self, source: str) -> None:
        """Compile; raises jinja2.TemplateError or one of `REFUSALS`."""
        environment = _Environment()
        # Qwen2.5-Coder's shows its model a call in doubled braces, as of a format string.
        source = re.sub(r'\{(\{\\?"name\\?": <[^{}]*>\})\}', r"\1", source)
        self.reads = meta.find_undeclared_variables(environment.parse(source))
        self._template = environment.from_string(source)
        self.takes = "text"
        if self._shows([{"type": "text", "text": _PROBE}]):
            self.takes = "both" if self._shows(_PROBE) else "parts"

    def render(self, given: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the text and its marks, of values that are `traced`; raises as `__init__`."""
        out = self._template.render(given)
        return str.__str__(out), _marks(out)

    def _shows(self, content: Any) -> bool:
        messages = [{"role": "user", "content": content}]
        try:
            shown = self._template.render(messages=messages, bos_token="", eos_token="")
        except (*REFUSALS, jinja2.TemplateError):
            return False
        return _PROBE in shown


@functools.lru_cache(maxsize=16)
def compiled(source: str) -> ChatTemplate:
    """Return the template of a source; raises as `ChatTemplate`."""
    return ChatTemplate(source)


def call_arguments(value: Any, field: str) -> dict[str, Any]:
    """Read the arguments of a past call, an object or its JSON; empty text is no arguments.

    Raises PromptError, naming the `field`, for anything else.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_no_json) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise PromptError(f"{field} is no JSON ({error}): give an object") from error
    if not isinstance(value, Mapping):
        raise PromptError(f"{field} is {json.dumps(value)[:40]}: it must be a JSON object")
    return dict(value)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike jinja2's own filter this one does not escape HTML.
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return cast(str, _follow(datetime.now().strftime, pattern))

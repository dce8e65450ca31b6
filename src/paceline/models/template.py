"""Chat templates: what Jinja makes of messages, and who wrote each character of it.

Templates see plain strings. `Traced` strings are equal to them in all that a template can ask, and
carry a mark for each character through what it does with them; so special tokens can be told from
text that spells one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, SupportsIndex

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paceline.errors import PromptError

# Who wrote a character: the template, a message, the message that goes on, the model itself (a tag
# around its reasoning); or it cannot be known.
OWN, TOLD, LAST, RECALLED, MIXED = b"o", b"t", b"l", b"r", b"?"
# What a template may raise while it is read or rendered, beside Jinja's own errors.
REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
REFUSALS += (SyntaxError,)  # "break" in a macro
_PROBE = "\x7f\\\x7f"  # neither repr nor JSON shows it as it is
# Tags around the reasoning of models, as templates write them.
_THINK = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


def system_mark(at: int) -> bytes:
    """Return the mark of the content of a system message, by its place."""
    return bytes([128 + at % 128])


def reasoning_tags(template: str | None) -> tuple[str, str] | None:
    """Return the tags around a model's reasoning, by its chat template; None if it has none."""
    return next((tags for tags in _THINK if tags[1] in (template or "")), None)


def _marks(text: str) -> bytes:
    return text._marks if isinstance(text, Traced) else MIXED * len(text)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return (*value, *value.values())
    return value if isinstance(value, list | tuple) else ()


def _written(text: str, *sources: Any) -> str:
    # What became of strings in a way that is not followed: marked if one wrote them all.
    found: set[int] = set()

    def look(value: Any) -> None:
        if isinstance(value, Traced):
            found.update(value._marks)
        for each in _inside(value):
            look(each)

    look(sources)
    if not found:
        return text
    return Traced(text, (bytes(found) if len(found) == 1 else MIXED) * len(text))


def _mixing(name: str) -> Any:
    method = getattr(str, name)

    def mixed(self: Traced, *args: Any, **options: Any) -> str:
        text = method(self, *args, **options)
        same = len(text) == len(self) and not args
        return Traced(text, self._marks) if same else _written(text, self, args, options)

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
            return _written(text, self, new)
        return Traced(text, Traced(new, _marks(new)).join(self.split(old, count))._marks)  # type: ignore[attr-defined]

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


def traced(value: Any, mark: bytes) -> Any:
    """Return a copy of a value with a mark on every character of its strings, keys included."""
    if isinstance(value, str):
        return value if isinstance(value, Traced) else Traced(value, mark * len(value))
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


def recalled(content: Any, tags: tuple[str, str]) -> Any:
    """Mark the tags of the reasoning that a model's own answer, which is traced, begins with."""
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        first = {**content[0], "text": recalled(content[0].get("text"), tags)}
        return [first, *content[1:]]
    if not isinstance(content, Traced):
        return content
    begin = len(content) - len(content.lstrip())
    if not content.startswith(tags[0], begin):
        return content
    marks = bytearray(content._marks)
    for tag, at in zip(tags, (begin, content.find(tags[1])), strict=True):
        if at >= begin:
            marks[at : at + len(tag)] = RECALLED * len(tag)
    return Traced(content, bytes(marks))


def spells(value: Any, token: str) -> bool:
    """Return whether strings in a value hold a token, or a part of one at an end, in any case."""
    if not isinstance(value, str):
        return any(spells(each, token) for each in _inside(value))
    text, token = str.casefold(str.__str__(value)), token.casefold()
    parts = range(1, len(token))
    return token in text or any(
        text.endswith(token[:size]) or text.startswith(token[size:]) for size in parts
    )


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


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters = {name: _followed(each) for name, each in self.filters.items()}
        self.filters["join"] = _join(self.filters["join"])
        self.filters["tojson"] = _followed(_to_json)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @staticmethod
    def own(value: Any) -> Any:
        return _own(value) if isinstance(value, str) else traced(value, OWN)


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def filtered(*args: Any, **options: Any) -> Any:
        found = function(*args, **options)
        return _written(found, args, options) if type(found) is str else found

    return filtered


def _join(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def joined(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        return function(context, value, Traced(d, _marks(d)), attribute)

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
        # Marks of what the model wrote, for training; they print nothing.
        source = re.sub(r"({%-?\s*)generation(\s*-?%})", r"\1if true\2", source)
        source = re.sub(r"({%-?\s*)endgeneration(\s*-?%})", r"\1endif\2", source)
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
        given = {"messages": [{"role": "user", "content": content}], "bos_token": ""}
        try:
            return _PROBE in self._template.render(given)
        except (*REFUSALS, jinja2.TemplateError):
            return False


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
    return _written(datetime.now().strftime(pattern), pattern)

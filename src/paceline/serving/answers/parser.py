"""Split an answer into reasoning, content and calls as it comes.

Every state takes one character, so that the result does not depend on how the text was cut. Runs
that cannot begin a marker are taken at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from paceline.models.calls import CALL_ID, PYTHON
from paceline.serving.answers.call import SPACE, CallReader, Reader, python_arguments
from paceline.serving.answers.style import PYTHON_TAG, Style


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer.

    The first of a call has its `id` and `name` and no text; pieces of its arguments follow.
    """

    kind: Literal["reasoning", "content", "call"]
    text: str
    index: int = 0
    id: str = ""
    name: str = ""


def call_id(request: str, index: int) -> str:
    """Return the id of a request's call, a `CALL_ID`."""
    return hashlib.sha256(f"{request}:{index}".encode()).hexdigest()[:9]


# Marks that models write around calls, whatever their template shows them, and what ends them.
_MARKS = {
    "<tool_call>": "</tool_call>",
    "<tools>": "</tools>",
    "<function_call>": "</function_call>",
    "```json": "```",
}


def _heads(style: Style, names: Iterable[str]) -> dict[str, str]:
    # What opens a call that is no JSON object, and whose call. Where nothing is written behind a
    # name, what must follow it tells that it has ended.
    form = style.form
    necks = [form.neck.strip()] if form.neck.strip() else ["\n", "<"]
    necks += [form.mark] if form.mark else []
    if form.head.startswith("{"):
        return {}
    return {f"{form.head}{name}{neck}": name for name in names for neck in necks}


def _run_before(markers: Iterable[str]) -> re.Pattern[str]:
    first = "".join(sorted({re.escape(marker[:1]) for marker in markers}))
    return re.compile(rf"[^{first}]*[^{first}{SPACE}]" if first else ".+", re.DOTALL)


_LONGEST_ID = 64  # characters


class AnswerParser:
    """Parse one answer.

    A call is given out once its name and the first character of its arguments are read; one whose
    arguments are no JSON when it is whole. What cannot become a call is content, markers included.
    Doubled braces are read as single ones; a call that is written as Python without a marker begins
    an answer. An id that the model wrote is the call's if it is a `CALL_ID` that the answer has not
    used. White space before a call and after the last one is left out, and so are line breaks
    next to tags of reasoning.

    To parse an answer that continues a message, feed that message first and drop its deltas.

    Attributes:
        calls: number of calls whose arguments were read to the end.
    """

    def __init__(
        self,
        style: Style,
        names: Collection[str] = (),
        *,
        inside: bool = False,
        request: str = "",
    ) -> None:
        """Start an answer.

        Args:
            names: of the tools that were offered; no other name makes a call. A mapping has the
                schemas of their arguments, by which values in XML are read.
            inside: the prompt ends inside reasoning (`Style.inside`).
            request: what ids of calls are made from.
        """
        self.calls = 0
        self._names = frozenset(names)
        own = {style.begin: style.end} if style.begin else {}
        self._marks_of_calls = {**_MARKS, **own} if names else {}
        self._schemas = names if isinstance(names, Mapping) else {}
        self._style = style
        self._heads = _heads(style, self._names)
        self._bare = self._heads if style.form.head.startswith("<") else {}  # need no marker
        self._python = _heads(replace(style, form=PYTHON), self._names)
        self._starts = [f"{opened}{head}" for head in self._python for opened in ("[", "")]
        self._end = style.end  # of the calls that are read
        self._think = style.think or ("", "")
        self._runs = self._runs_before()
        self._request = request
        self._out: list[Delta] = []
        # Read and not yet given out: the text of what may become a call; then white space, and
        # behind it what may become a marker.
        self._pending: list[str] = []
        self._space: list[str] = []
        self._held = ""
        self._marker = ""  # read last
        self._said = False  # reasoning or content, in its present part
        self._listed = False
        self._index = 0
        self._call = CallReader()
        self._doubled = False  # braces of the call that is read
        self._bound = False  # its name stands before the object of its arguments
        self._inner: dict[str, str] = {}  # heads that may open the next call
        self._name = ""  # of the call that is given out when it is whole, or whose id is read
        self._id = ""  # that the model wrote for it
        self._ids: set[str] = set()  # given out
        self._from = 0  # where its arguments begin in what is pending
        self._read: Reader = python_arguments
        self._tail = ""
        self._given = False
        self._state: Callable[[str], None] = self._text
        if style.think is not None:
            self._state = self._reasoning if inside else self._start

    def _runs_before(self) -> list[re.Pattern[str]]:
        # What begins no marker, in content and in reasoning.
        return [_run_before(each) for each in (self._marks_of_calls, [self._think[1]])]

    def feed(self, piece: str) -> list[Delta]:
        """Add text; return what is certain with it."""
        at = 0
        while at < len(piece):
            at = self._run(piece, at)
            if at < len(piece):
                self._state(piece[at])
                at += 1
        return self._take()

    def finish(self) -> list[Delta]:
        """Return what was held back; no text follows."""
        kind: Literal["reasoning", "content"] = "content"
        if self._state == self._reasoning:
            kind = "reasoning"
        self._count()
        left = self._drain()
        if left.strip(SPACE) or not self._index:
            self._emit(kind, left)
        return self._take()

    # States:

    def _start(self, char: str) -> None:
        # Reasoning begins an answer or is none.
        if not self._held and char in SPACE:
            self._space.append(char)
        elif self._marks(char, self._think[0]):
            if not self._held:
                self._drain()
                self._state = self._reasoning
        else:
            self._again(self._text)

    def _reasoning(self, char: str) -> None:
        if not self._held and char == "\n":
            self._space.append(char)
        elif self._marks(char, self._think[1]):
            if not self._held:
                self._drain()
                self._state, self._said = self._gap, False
        else:
            self._say("reasoning")

    def _gap(self, char: str) -> None:
        if char != "\n":
            self._state = self._text
            self._text(char)

    def _text(self, char: str) -> None:
        if not self._held and char in SPACE:
            self._space.append(char)
        elif not self._held and char == "{" and self._names and not self._said:
            self._open(char)
        elif self._marks(
            char, *self._marks_of_calls, *self._bare, *([] if self._said else self._starts)
        ):
            if not self._held:
                self._mark()
        else:
            self._say("content")

    def _mark(self) -> None:
        # A marker, or the head of a call without one, was read.
        marker = self._marker
        self._pending = [*self._space]
        self._space.clear()
        self._end = self._marks_of_calls.get(marker, self._style.end)
        self._state = self._opened
        if marker in self._bare:
            self._inner = self._bare
            self._head(marker)
        elif marker in self._marks_of_calls:
            self._pending.append(marker)
            python = marker == PYTHON_TAG
            own = marker == self._style.begin or self._bare
            self._inner = self._python if python else self._heads if own else {}
        else:
            self._inner, self._end = self._python, ""
            self._listed = marker[0] == "["
            self._pending += "[" * self._listed
            self._head(marker.strip("["))

    def _opened(self, char: str) -> None:
        if not self._held and char == "{":
            self._open(char)
        elif self._held or any(head.startswith(char) for head in self._inner):
            if not self._marks(char, *self._inner):
                self._held = self._held[:-1]
                self._fail(char)
            elif not self._held:
                self._pending += self._space
                self._space.clear()
                self._head(self._marker)
        elif char in SPACE or (char == "[" and not self._listed):
            self._pending.append(char)
            self._listed = self._listed or char == "["
        else:
            self._fail(char)

    def _head(self, head: str) -> None:
        # The head of a call that is no JSON object was read.
        style, name = self._style, self._inner[head]
        python = self._inner is self._python
        rest = head[-1] if not style.form.neck.strip() and not python else ""
        self._pending.append(head[: len(head) - len(rest)])
        if style.read is None and not python:
            self._name, self._from = name, len(self._pending)
            if style.form.mark and head.endswith(style.form.mark):
                self._state = self._identified
            else:
                self._call_of(name)
            return
        form = PYTHON if python else style.form
        self._read = style.read if style.read is not None and not python else python_arguments
        self._name, self._tail = name, (form.tail or style.end).strip()
        self._from, self._state = len(self._pending), self._whole
        for char in rest:
            self._whole(char)

    def _whole(self, char: str) -> None:
        # Arguments that are read as a whole.
        self._pending.append(char)
        begin = len(self._pending) - len(self._tail)
        if char == "\n" and self._read is python_arguments:
            self._refuse()
        elif begin >= self._from and "".join(self._pending[begin:]) == self._tail:
            text = "".join(self._pending[self._from : begin])
            with suppress(SyntaxError):  # which says that it goes on
                self._give_whole(self._name, self._read(text, self._schemas.get(self._name, {})))

    def _identified(self, char: str) -> None:
        # An id, up to the neck.
        self._pending.append(char)
        given, neck, _ = "".join(self._pending[self._from :]).partition(self._style.form.neck)
        if neck:
            fresh = re.fullmatch(CALL_ID, given) and given not in self._ids
            self._id = given if fresh else ""
            self._call_of(self._name)
        elif char == "\n" or len(given) > _LONGEST_ID:
            self._refuse()

    def _call_of(self, name: str) -> None:
        # JSON arguments follow.
        self._call, self._doubled, self._bound = CallReader(), False, True
        for char in f'{{"name": {json.dumps(name)}, "arguments": ':
            self._call.feed(char)
        self._state = self._object

    def _object(self, char: str) -> None:
        call = self._call
        if char == "{" and call.opening:  # braces are doubled
            self._pending.append(char)
            self._doubled = True
            return
        if not call.feed(char) or (call.name is not None and call.name not in self._names):
            self._fail(char)
            return
        if self._given:
            self._emit("call", call.take())
        else:
            self._pending.append(char)
        if call.name is not None and not self._given:
            arguments = call.take() or ("{}" if call.done else "")
            if arguments:
                self._give(call.name, arguments)
        if call.done or (self._bound and call.whole):
            self._close()

    def _after(self, char: str) -> None:
        if not self._held and char in SPACE:
            self._space.append(char)
        elif not self._held and self._doubled and char == "}":
            self._space.clear()
        elif not self._held and self._listed and char == "]":
            self._listed = False
            self._space.clear()
        elif not self._held and char == ("," if self._listed else ";"):
            self._pending = [*self._space, char]
            self._space.clear()
            self._state = self._opened
        elif not self._held and char == "{":
            self._open(char)
        elif self._marks(char, self._end):
            if not self._held:
                self._drain()
                self._listed = False
                self._state = self._text
        else:
            self._listed = False
            self._again(self._text)

    # What states share:

    def _run(self, piece: str, at: int) -> int:
        # Say what text begins no marker and ends in no white space; return where it ends.
        if self._said and not self._held and piece[at] not in SPACE:
            thinks = self._state == self._reasoning
            if thinks or self._state == self._text:
                run = self._runs[thinks].match(piece, at)
                if run is not None:
                    self._emit("reasoning" if thinks else "content", self._drain() + run[0])
                    return run.end()
        return at

    def _marks(self, char: str, *markers: str) -> bool:
        # Hold a character; False if what is held does not begin a marker. Nothing is held once
        # a marker is whole.
        self._held += char
        if self._held in markers:
            self._marker, self._held = self._held, ""
            return True
        return any(marker.startswith(self._held) for marker in markers)

    def _say(self, kind: Literal["reasoning", "content"]) -> None:
        # The first character held begins no marker; those behind it may.
        first, rest = self._held[0], self._held[1:]
        self._held = ""
        space = self._drain()
        self._emit(kind, first if kind == "reasoning" and not self._said else space + first)
        self._said = True
        for char in rest:
            self._state(char)

    def _again(self, state: Callable[[str], None]) -> None:
        self._state = state
        for char in self._drain():
            self._state(char)

    def _open(self, char: str) -> None:
        self._pending += self._space
        self._space.clear()
        self._call, self._doubled, self._bound = CallReader(), False, False
        self._state = self._object
        self._object(char)

    def _give(self, name: str, arguments: str) -> None:
        self._given = True
        self._pending.clear()
        identifier = self._id or call_id(self._request, self._index)
        self._ids.add(identifier)
        self._id = ""
        self._out.append(Delta("call", "", self._index, identifier, name))
        self._emit("call", arguments)

    def _give_whole(self, name: str, arguments: str | None) -> None:
        if arguments is None:
            self._refuse()
            return
        self._give(name, arguments)
        self.calls, self._index, self._given = self.calls + 1, self._index + 1, False
        self._state = self._after

    def _close(self) -> None:
        # The object has ended.
        if self._given:
            self._count()
            self._state = self._after
        else:
            self._refuse()

    def _fail(self, char: str) -> None:
        # A call that was given out cannot be taken back: it stays as it is, and the rest is text.
        whole = self._given and self._call.whole
        self._count()
        if whole:
            self._state = self._after
        else:
            self._refuse()
        self._state(char)

    def _refuse(self) -> None:
        self._emit("content", self._drain())
        self._said, self._listed, self._id = True, False, ""
        self._state = self._text

    def _count(self) -> None:
        if self._given:
            self.calls += self._call.whole or self._call.done
            self._index += 1
            self._given = False

    def _drain(self) -> str:
        text = "".join([*self._pending, *self._space, self._held])
        self._pending.clear()
        self._space.clear()
        self._held = ""
        return text

    def _emit(self, kind: Literal["reasoning", "content", "call"], text: str) -> None:
        if text:
            self._out.append(Delta(kind, text, self._index if kind == "call" else 0))

    def _take(self) -> list[Delta]:
        merged = []
        for _, group in groupby(self._out, key=lambda delta: (delta.kind, delta.index, delta.id)):
            first, *rest = group
            merged.append(replace(first, text=first.text + "".join(delta.text for delta in rest)))
        self._out.clear()
        return merged

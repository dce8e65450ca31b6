"""Answers in messages of channels, as gpt-oss writes them (harmony)."""

from __future__ import annotations

import re
from typing import Literal

from paceline.serving.answers.call import SPACE
from paceline.serving.answers.parser import AnswerParser

_BEGINS = ("<|start|>assistant", "<|channel|>", " to=", "to=")
_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADERS = ("<|start|>", "<|channel|>")
_LONGEST = 200  # characters of a header


class ChannelParser(AnswerParser):
    """Parse one answer of messages, `<|channel|>NAME<|message|>TEXT`, between them `<|start|>`.

    "analysis" is reasoning. A message to a function that was offered is a call, its text JSON.
    Messages to others, which nobody here reads, are content, header included; so is what has no
    header. All else is content.
    """

    def _runs_before(self) -> list[re.Pattern[str]]:
        return [re.compile(r"[^<]+")] * 2

    def _start(self, char: str) -> None:
        # Within a header.
        self._pending.append(char)
        text = "".join(self._pending)
        if text.endswith(_BODY):
            self._enter(text)
        elif (
            len(text) > _LONGEST
            or char == "\n"
            or not any(text.startswith(each) or each.startswith(text) for each in _BEGINS)
        ):
            self._refuse()

    def _enter(self, header: str) -> None:
        channel = re.search(r"<\|channel\|>\s*(\w*)", header)
        to = re.search(r"\bto=([^\s<]+)", header)
        name = to[1].removeprefix("functions.") if to else ""
        if name in self._names:
            self._call_of(name)
            return
        if to is None:
            self._pending.clear()
        thinks = to is None and channel is not None and channel[1] == "analysis"
        self._emit("content", self._drain())
        self._state, self._said = self._reasoning if thinks else self._text, True

    def _text(self, char: str) -> None:
        self._message("content", char)

    def _reasoning(self, char: str) -> None:
        self._message("reasoning", char)

    def _after(self, char: str) -> None:
        if char not in SPACE:
            self._state = self._text
            self._text(char)

    def _message(self, kind: Literal["reasoning", "content"], char: str) -> None:
        if not self._marks(char, *_ENDS, *_HEADERS):
            self._say(kind)
        elif not self._held:
            self._pending = [self._marker] if self._marker in _HEADERS else []
            self._state = self._start

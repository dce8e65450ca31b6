"""Segments of a transcript as text, SRT, WebVTT or JSON lines, one by one as they become final."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Caption(NamedTuple):
    """What is said from `begin` to `end`, in seconds."""

    begin: float
    end: float
    text: str


# Of a segment: its number from 1 on, begin and end in seconds, and text.
_Form = Callable[[int, float, float, str], str]


def _text(number: int, begin: float, end: float, text: str) -> str:
    return f"{text}\n"


def _srt(number: int, begin: float, end: float, text: str) -> str:
    return f"{number}\n{_clock(begin, ',')} --> {_clock(end, ',')}\n{_one_line(text)}\n\n"


def _vtt(number: int, begin: float, end: float, text: str) -> str:
    # An arrow in a text would be read as times.
    said = _one_line(text).replace("-->", "->")
    return f"{_clock(begin, '.')} --> {_clock(end, '.')}\n{said}\n\n"


def _json(number: int, begin: float, end: float, text: str) -> str:
    line = {"begin": round(begin, 3), "end": round(end, 3), "text": text}
    return json.dumps(line, ensure_ascii=False) + "\n"


FORMATS: dict[str, _Form] = {"text": _text, "srt": _srt, "vtt": _vtt, "json": _json}
HEADS = {"vtt": "WEBVTT\n\n"}
"""What a file of a format begins with."""
ENDS = {"text": "txt", "srt": "srt", "vtt": "vtt", "json": "jsonl"}
"""How its name ends."""


def whole(form: str, captions: Iterable[Caption]) -> str:
    """Return a file of some format."""
    lines = (FORMATS[form](number, *each) for number, each in enumerate(captions, 1))
    return HEADS.get(form, "") + "".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clock(seconds: float, point: str) -> str:
    whole = round(seconds * 1000)
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"

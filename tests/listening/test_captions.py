"""Captions in their formats."""

from __future__ import annotations

import json

from paceline.listening.captions import FORMATS


def test_times_are_rounded_to_milliseconds_and_carried() -> None:
    said = FORMATS["srt"](2, 59.9996, 3723.25, "a\nb")
    assert said == "2\n00:01:00,000 --> 01:02:03,250\na b\n\n"
    assert FORMATS["vtt"](2, 0, 1.5, "a --> b") == "00:00:00.000 --> 00:00:01.500\na -> b\n\n"


def test_json_lines_hold_any_text() -> None:
    line = FORMATS["json"](1, 0.1 + 0.2, 1, 'ü "x"\n')
    assert json.loads(line) == {"begin": 0.3, "end": 1, "text": 'ü "x"\n'}
    assert line.count("\n") == 1

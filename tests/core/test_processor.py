"""Threads and what the processor says of itself."""

from __future__ import annotations

import pytest

from paceline.core import processor


def test_more_threads_than_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 3)
    assert processor.usable_threads(None) == 3
    assert processor.usable_threads(2) == 2
    assert processor.usable_threads(3) == 3
    assert not caplog.messages
    assert processor.usable_threads(64) == 3
    [message] = caplog.messages
    assert "64" in message
    assert "3 cores" in message

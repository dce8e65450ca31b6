"""What several tests of the server stand on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.tiny_whisper import LoudFinder

from paceline.serving.model import ServedModel


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Served models find speech where it is loud."""
    whole = ServedModel.__init__

    def made(own: ServedModel, *parts: Any) -> None:
        whole(own, *parts)
        own.finder = LoudFinder()  # type: ignore[assignment]

    monkeypatch.setattr(ServedModel, "__init__", made)

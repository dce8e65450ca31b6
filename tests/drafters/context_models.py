"""Both kinds of n-gram models of the target."""

from __future__ import annotations

from paceline.drafters.statistics.context_model import (
    ContextModel,
    NativeContextModel,
    PlainContextModel,
)
from paceline.native.library import library

NATIVE = library() is not None

TEMPERATURE_KINDS: list[type[ContextModel]] = [
    PlainContextModel,
    *([NativeContextModel] if NATIVE else []),
]
"""Those that are to be had here."""

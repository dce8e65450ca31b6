"""Both kinds of n-gram models of the target."""

from __future__ import annotations

from paceline.drafters.context_model import ContextModel
from paceline.drafters.native_context_model import NativeContextModel
from paceline.drafters.plain_context_model import PlainContextModel
from paceline.native.library import library

NATIVE = library() is not None

KINDS: list[type[ContextModel]] = [PlainContextModel, *([NativeContextModel] if NATIVE else [])]
"""Those that are to be had here."""

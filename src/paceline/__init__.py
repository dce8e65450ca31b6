"""Lossless speculative decoding of language models.

engine = paceline.load("smollm2-135m")
print(engine.generate("Why is the sky blue?").text)
"""

from paceline.core.types import SamplingParams, Speculation, TokenLogprob
from paceline.engine.engine import Completion, Engine, Event
from paceline.errors import (
    ContextExceeded,
    IncompatibleDraft,
    InvalidOption,
    ModelError,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.registry.loading import load
from paceline.version import __version__

__all__ = [
    "Completion",
    "ContextExceeded",
    "Engine",
    "Event",
    "IncompatibleDraft",
    "InvalidOption",
    "ModelError",
    "OutOfMemory",
    "PacelineError",
    "PromptError",
    "RuntimeUnavailable",
    "SamplingParams",
    "Speculation",
    "TokenLogprob",
    "__version__",
    "load",
]

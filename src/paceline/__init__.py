"""Lossless speculative decoding of language models.

engine = paceline.load("smollm2-135m")
print(engine.generate("Why is the sky blue?").text)
"""

from paceline.engine import Completion, Engine, Event
from paceline.errors import (
    IncompatibleDraft,
    InvalidOption,
    ModelError,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.loading import load
from paceline.search import FirstFinish, first_finish
from paceline.suggest import Suggestion, Suggestions, suggest
from paceline.types import SamplingParams, Speculation, TokenLogprob
from paceline.version import __version__

__all__ = [
    "Completion",
    "Engine",
    "Event",
    "FirstFinish",
    "IncompatibleDraft",
    "InvalidOption",
    "ModelError",
    "OutOfMemory",
    "PacelineError",
    "PromptError",
    "RuntimeUnavailable",
    "SamplingParams",
    "Speculation",
    "Suggestion",
    "Suggestions",
    "TokenLogprob",
    "__version__",
    "first_finish",
    "load",
    "suggest",
]

"""Lossless speculative decoding of language models.

engine = paceline.load("smollm2-135m")
print(engine.generate("Why is the sky blue?").text)
"""

from paceline.core.types import SamplingParams, Speculation, TokenLogprob
from paceline.engine.engine import Completion, Engine, Event
from paceline.errors import (
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
from paceline.zoo.first_finish import FirstFinish, first_finish
from paceline.zoo.superposed import Suggestion, Suggestions, suggest

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
